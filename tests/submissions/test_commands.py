"""The commands submit, check and audit on entries; test_walkthrough.py follows the page submit.md."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mixmark.harness.cli.commands import main
from mixmark.harness.cli.show import next_command
from mixmark.harness.judge.assessment import judge
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import registry
from mixmark.harness.record.files import sha256_of
from mixmark.reporters.figures import significant
from mixmark.submissions.entry import DECLARATION, Declaration
from tests.fakes.folders import Maker, forge, write
from tests.fakes.machine import EDGE, one_run
from tests.golden.sample import apart, closed_loop, record, result
from tests.record.test_store import written
from tests.submissions.made import DECLARED, edited

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs/capabilities/submissions/submit.md").read_text("utf-8")
FLAGS = (
    *("--org", "Acme", "--system", "Acme One", "--availability", "research"),
    *("--form-factor", "desktop", "--origin", "Acme, Germany"),
)


def typed(*words: object, text: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=text, catch_exceptions=False)


def shown(page_file: str) -> str:
    """The code block of submit.md behind the comment with the name of its file."""
    found = re.search(rf"<!-- file: {re.escape(page_file)} -->\n```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found, page_file
    return found[1]


def test_an_entry_is_made_and_obeys_the_rules(results: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "entries"
    done = typed("submit", *results, *FLAGS, "--out", out)
    assert done.exit_code == 0, done.output
    entry = out / "acme/acme-one/two-16-bit"
    assert f"{entry} has " in done.output
    found = json.loads(typed("check", out, "--json").output)["entries"][0]["entry"]
    title = f"acme/acme-one/two-16-bit obeys all rules: MX {significant(found['mixes_per_kwh']['estimate'])} mix/kWh"
    assert title in done.output
    checked = typed("check", out)
    assert checked.exit_code == 0 and title in checked.output
    assert "| weights | 16 bit | " in typed("check", entry, "--markdown").output
    assert [path.name for path in out.iterdir()] == ["acme"]


def test_a_dry_run_shows_all_and_writes_nothing(results: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "entries"
    done = typed("submit", results[0], *FLAGS, "--out", out, "--dry-run")
    assert done.exit_code == 0 and "A dry run: " in done.output
    for name in ("energy boundary", DECLARATION, "results/1/SHA256SUMS", "texts of plugins", "cpu_model"):
        assert name in done.output
    assert not out.exists()


def test_a_run_without_a_mix_is_told_which_suites_a_score_lacks(tmp_path: Path) -> None:
    alone = apart(result(record("a", "llm", "token", closed_loop([[5, 6]]))))
    written(tmp_path / "run", alone).finish(alone)
    refused = typed("submit", tmp_path / "run", *FLAGS, "--out", tmp_path / "entries")
    assert refused.exit_code == 2 and "edge-1 also needs diffusion, dlrm, resnet50" in refused.output


def test_a_run_that_was_interrupted_is_told_how_to_finish_it(tmp_path: Path) -> None:
    write(tmp_path / "run", Maker().result())
    forge(tmp_path / "run", lambda content: content.update(finished=False))
    done = typed("submit", tmp_path / "run", *FLAGS, "--out", tmp_path / "entries")
    assert done.exit_code == 2 and "mixmark run --resume" in done.output and "was interrupted" in done.output


def test_a_folder_that_is_not_there_is_named_before_anything_is_asked(tmp_path: Path) -> None:
    done = typed("submit", tmp_path / "nosuch")
    assert done.exit_code == 2 and "nosuch' does not exist" in " ".join(done.output.split())


def test_missing_facts_are_named_without_a_terminal(results: tuple[Path, Path]) -> None:
    done = typed("submit", results[0], "--org", "Acme", "--availability", "research")
    assert done.exit_code == 2
    assert "an entry needs --system, --form-factor, --origin" in done.output


def test_missing_facts_are_asked_on_a_terminal(
    results: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mixmark.submissions.commands.asks", lambda: True)
    flags = ("--org", "Acme", "--availability", "research", "--out", tmp_path)
    done = typed("submit", results[0], *flags, text="Acme One\nlaptop\nAcme, Germany\nn\n")
    assert done.exit_code == 1 and "Publish these texts as they stand?" in done.output and not [*tmp_path.iterdir()]
    done = typed("submit", results[0], *flags, text="Acme One\nlaptop\nAcme, Germany\ny\n")
    assert done.exit_code == 0, done.output
    declared = json.loads((tmp_path / "acme/acme-one/two-16-bit" / DECLARATION).read_text())
    assert (declared["form_factor"], declared["origin"]) == ("laptop", "Acme, Germany")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--form-factor", "boat"), "form_factor: Input should be 'board'"),
        (("--org", "Асme"), "organisation: Value error, a name has only letters"),
        (("--provisioned-watts", "-1"), "provisioned_watts: Input should be greater than 0"),
        (("--declaration", "nothing.toml"), "cannot read the declaration nothing.toml"),
        (("--sign", "nothing"), "nothing is not a file"),
    ],
)
def test_a_wrong_declaration_is_an_error_and_nothing_is_written(
    results: tuple[Path, Path], tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    done = typed("submit", results[0], *FLAGS, *flags, "--out", tmp_path)
    assert done.exit_code == 2 and message in done.output.replace("\n         ", " ")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_an_error_of_one_sentence(results: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = typed("submit", results[0], *FLAGS, "--out", tmp_path / "file/entries")
    assert done.exit_code == 2 and "file/entries: Not a directory" in done.output
    assert (tmp_path / "file").read_text() == "mine"


def test_a_replaced_entry_stays_as_history_and_another_declaration_of_the_same_results_leaves_none(
    results: tuple[Path, Path], tmp_path: Path
) -> None:
    def entries() -> list[tuple[int, bool]]:
        """(number of results, replaced) of each."""
        checked = json.loads(typed("check", tmp_path, "--json").output)["entries"]
        assert not any(each["problems"] for each in checked), "an entry may hold the runs of one that it replaced"
        return [(len(each["entry"]["results"]), each["entry"]["replaced"]) for each in checked]

    typed("submit", results[0], *FLAGS, "--out", tmp_path)
    refused = typed("submit", results[1], *FLAGS, "--out", tmp_path)
    assert refused.exit_code == 2 and "give --replace" in refused.output
    typed("submit", results[0], *FLAGS, "--out", tmp_path, "--replace", "--licence", "MIT")
    assert entries() == [(1, False)]
    again = typed("submit", *results, *FLAGS, "--out", tmp_path, "--replace")
    former = next(path for path in tmp_path.glob("*/*/*") if re.search("-bit-[0-9a-f]{12}$", path.name))
    assert again.exit_code == 0 and str(former) in again.output
    assert entries() == [(2, False), (1, True)]
    shutil.copytree(former, former.with_name("two-16-bit-0123456789ab"))
    assert "E-PLACE" in typed("check", tmp_path).output, "the id of a folder is that of its results"


def test_a_run_that_another_entry_holds_is_told_as_the_entry_is_made(
    folder: Path, results: tuple[Path, Path], tmp_path: Path
) -> None:
    out, originals = folder.parents[2], tmp_path / "originals"
    asked = ("submit", results[0], *FLAGS, "--system", "Other", "--out", out)
    typed("submit", results[1], *FLAGS, "--system", "Third", "--out", out)
    sums = folder / "results/1/SHA256SUMS"
    originals.write_text(f"{sha256_of(sums)}  {sums.relative_to(out)}\n")
    refused = typed(*asked, "--originals", originals)
    assert refused.exit_code == 1 and "E-DUPLICATE" in refused.output and "Nothing was written" in refused.output
    done = typed(*asked)
    assert done.exit_code == 1 and "E-DUPLICATE" in done.output and len([*out.glob("*/other/*")]) == 1


def test_a_word_is_removed_if_asked(results: tuple[Path, Path], tmp_path: Path) -> None:
    done = typed("submit", results[0], *FLAGS, "--out", tmp_path, "--redact", "Topaz")
    assert done.exit_code == 0 and "word-1" in done.output
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Topaz" not in text and b"Acme word-1" in text


def test_a_rejected_entry_is_shown_in_three_forms(folder: Path) -> None:
    edited(folder, notes="Ask jane@example.org.")
    done = typed("check", folder)
    assert done.exit_code == 1 and "acme-sohne/acme-one/two-16-bit is rejected" in done.output
    assert "E-PRIVATE" in done.output and "Entries that obey all rules: 0 of 1." in done.output
    as_json = typed("check", folder, "--json")
    verdict = json.loads(as_json.output)
    assert as_json.exit_code == 1 and verdict["rejected"] == 1
    assert [problem["code"] for problem in verdict["entries"][0]["problems"]] == ["E-PRIVATE"]
    markdown = typed("check", folder, "--markdown").output
    assert "## acme-sohne/acme-one/two-16-bit is rejected" in markdown
    assert "| E-PRIVATE | declaration.json | email address that must not be published: jane@example.org |" in markdown


def test_a_path_without_entries_is_an_error(tmp_path: Path) -> None:
    done = typed("check", tmp_path / "nothing")
    assert done.exit_code == 2 and "what is" in done.output
    done = typed("check", tmp_path)
    assert done.exit_code == 2 and "there is no entry in" in done.output


def test_an_entry_whose_audits_cannot_be_repeated_is_rejected(folder: Path) -> None:
    """The made-up result has no seeds, which no other rule asks for."""
    assert typed("check", folder).exit_code == 0
    done = typed("check", folder, "--reaudit", "1")
    assert done.exit_code == 1 and "E-AUDIT" in done.output and "it has no seed" in done.output
    done = typed("audit", folder)
    assert done.exit_code == 1 and "it has no seed" in done.output


def test_the_declarations_on_the_page_are_valid() -> None:
    text = "".join(map(shown, ("submission.toml", "price.toml", "reproduced.toml")))
    declared = Declaration.model_validate(tomllib.loads(text))
    assert declared.price and declared.reproduced_by and declared.folders == ("acme", "acme-one")


def test_two_forms_of_a_verdict_are_refused(folder: Path) -> None:
    assert "ask for different forms" in typed("check", folder, "--json", "--markdown").stderr


def test_a_result_with_a_rank_can_be_entered_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    ranked, entered = judge(one_run(None, runs=3)), folder / "results" / "1"
    assert next_command(ranked, Path("out")) == "mixmark submit out"
    assert next_command(ranked, entered) == f"mixmark report {entered} --verbose"


def test_what_entries_offer_to_a_planner(folder: Path, results: tuple[Path, Path]) -> None:
    offered = registry.find("services")["entries"].load()
    assert offered([results[0], results[0].parent]) == {}
    above = folder.parents[2]
    [entry] = offered([above])[above]
    assert (entry.name, entry.problem, entry.result) == ("Acme One", None, folder / "results/1")
    assert entry.price == DECLARED.price
    assert offered([above, folder])[folder] == [entry], "one entry by two paths is no copy"
    copy = folder.parents[3] / "another" / "beta" / folder.parent.name / folder.name
    shutil.copytree(folder, copy)
    edited(copy, organisation="Beta")
    for [entry] in offered([above, copy]).values():
        assert entry.result is None
        assert "disputes it: name only the entry that you trust: E-DUPLICATE" in entry.problem
    (folder / DECLARATION).write_text("{}", "utf-8")
    [entry] = offered([folder])[folder]
    assert entry.name == "acme-sohne/acme-one/two-16-bit" and entry.result is None
    assert entry.problem.startswith("mixmark check rejects it: E-")
