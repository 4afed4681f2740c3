from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mixmark.harness.cli.commands import main
from mixmark.harness.judge.references import published as shipped
from mixmark.harness.record.files import sha256_of
from mixmark.submissions import check, references
from mixmark.submissions.board import rank
from tests.submissions.made import edited


def asked(*words: object) -> Result:
    return CliRunner().invoke(main, ["leaderboard", *map(str, words)])


def test_an_entry_becomes_a_site_with_a_report_of_its_raw_data(folder: Path, tmp_path: Path) -> None:
    entries, out = folder.parents[2], tmp_path / "site"
    done = asked(entries, "--out", out, "--date", "2026-11-22", "--url", "https://example.org/board")
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(rf"1 entry on \d boards?: {re.escape(str(out / 'index.html'))}\n", done.stdout)
    board = json.loads((out / "leaderboard.json").read_text())
    assert (board["url"], board["as_of"]) == ("https://example.org/board/", "2026-11-22")
    page = out / board["entries"][0]["page"]
    report = out / board["entries"][0]["permanent_page"].replace("index.html", "report-1.html")
    assert f'href="../{report.parent.name}/report-1.html"' in page.read_text()
    assert "https://example.org/board/entries/acme-sohne/" in page.read_text()
    assert report.read_text().startswith("<!doctype html>")
    again = asked(entries, "--out", out, "--json")
    assert json.loads(again.stdout)["entries"] == 1 and again.exit_code == 0
    assert report.exists() and page.exists()


def test_what_breaks_a_rule_is_named_and_not_on_the_board(folder: Path, tmp_path: Path) -> None:
    entries, out = folder.parents[2], tmp_path / "site"
    other = shutil.copytree(folder, entries / "acme-sohne" / "other" / folder.name)
    (folder / "README.md").write_text("better", encoding="utf-8")
    done = asked(entries, "--out", out)
    assert done.exit_code == 1
    rejected = set(re.findall(r"^(\S+) is rejected: E-[A-Z-]+:", done.stderr, re.MULTILINE))
    assert rejected == {f"acme-sohne/{path.parent.name}/{path.name}" for path in (folder, other)}
    assert "no entry yet" in (out / "index.html").read_text()
    assert json.loads((out / "leaderboard.json").read_text())["entries"] == []


def test_a_run_in_two_entries_has_no_rank_until_the_list_of_originals_has_it(folder: Path, tmp_path: Path) -> None:
    entries, out, originals = folder.parents[2], tmp_path / "site", tmp_path / "originals"
    copy = shutil.copytree(folder, entries / "acme" / folder.parent.name / folder.name)
    edited(copy, organisation="Acme")
    done = asked(entries, "--out", out)
    state = re.compile(r"^(\S+) (is rejected|has no rank): E-DUPLICATE:", re.MULTILINE)
    names = ["/".join(entry.parts[-3:]) for entry in (copy, folder)]
    assert done.exit_code == 1 and state.findall(done.stderr) == [(name, "has no rank") for name in names]
    shown = json.loads((out / "leaderboard.json").read_text())["entries"]
    assert [each["ranked"] for each in shown] == [False, False]
    checked = CliRunner().invoke(main, ["check", str(entries)])
    assert checked.exit_code == 1 and checked.output.count("E-DUPLICATE") == 2
    assert "Entries that obey all rules: 0 of 2." in checked.output
    sums = folder / "results/1/SHA256SUMS"
    originals.write_text(f"{sha256_of(sums)}  {sums.relative_to(entries)}\n")
    done = asked(entries, "--out", out, "--originals", originals)
    assert done.exit_code == 1 and state.findall(done.stderr) == [(names[0], "is rejected")]
    assert len(json.loads((out / "leaderboard.json").read_text())["entries"]) == 1
    originals.write_text("mine\n")
    assert asked(entries, "--out", out, "--originals", originals).exit_code == 2


def test_a_board_may_be_empty_and_an_address_may_not_be_anything(tmp_path: Path) -> None:
    (tmp_path / "entries").mkdir()
    done = asked(tmp_path / "entries", "--out", tmp_path / "site")
    assert done.exit_code == 0 and done.stdout.startswith("0 entries on 0 boards")
    assert asked(tmp_path / "entries", "--url", "javascript:alert(1)").exit_code == 2
    assert asked(tmp_path / "nowhere").exit_code == 2
    assert asked(tmp_path / "entries", "--contact", "javascript:alert(1)@a").exit_code == 2
    done = asked(tmp_path / "entries", "--out", tmp_path / "site", "--contact", "a@b")
    assert done.exit_code == 0 and "mailto:a@b" in (tmp_path / "site/index.html").read_text()


def test_references_are_the_ranked_closed_entries_the_newest_first(folder: Path) -> None:
    (verdict,) = check.check([folder])
    assert verdict.entry is not None
    entry = verdict.entry
    ranked = entry.model_copy(update={"ranked": True, "division": "closed"})
    newer = ranked.model_copy(update={"ended_utc": "2026-09-01T00:00:00+00:00"})
    unranked = ranked.model_copy(update={"ranked": False})
    unlike = ranked.model_copy(update={"division": "open"})
    written = json.loads(references.written([ranked, unranked, newer, unlike]))
    assert [reference["created_utc"] for reference in written] == [newer.ended_utc, ranked.ended_utc]
    assert written[0]["name"] == f"{entry.declaration.organisation} {entry.declaration.system}"
    assert written[0]["mixes_per_hour"]["estimate"] == entry.mixes_per_hour.estimate
    assert references.written([]) == "[]\n"
    rough = json.loads(references.written([unranked, unlike]))
    assert [reference["grade"] for reference in rough] == [unranked.grade], "no ranked entry has this mix"


@pytest.mark.slow
def test_the_references_that_ship_are_those_of_the_entries() -> None:
    assert references.SHIPPED.read_text("utf-8") == references.written(references.published()), (
        "run python -m mixmark.submissions.references"
    )
    assert len(shipped()) == len(json.loads(references.SHIPPED.read_text("utf-8")))


def test_the_numbers_of_the_board_are_those_of_its_page() -> None:
    page = (Path(__file__).parents[3] / "docs/capabilities/submissions/board.md").read_text("utf-8")
    rows = re.findall(r"\| ([\d,]+)[^|]* \| `submissions\.board\.([\w.]+)` \|", page)
    named = {name: value for value, name in rows}
    assert named == {"rank.STALE_YEARS": str(rank.STALE_YEARS)}
