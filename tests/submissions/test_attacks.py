"""Attacks of a forger on an entry. Each one is rejected, or changes no class and no figure."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Completions, Metering, Record, Result, Samples
from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from mixmark.harness.resources.files import regular
from mixmark.submissions import bundle, check, files, submission
from mixmark.submissions.conclude import contribution_of
from mixmark.submissions.entry import DECLARATION, MANIFEST
from tests.fakes.folders import write_hashes
from tests.submissions.made import DECLARED, PRICE, codes, edited, rewritten, verdict

RESULT = "results/1/result.json"
SUMS = "results/1/SHA256SUMS"


def mixed_key(folder: Path) -> str:
    """The raw file of a record of the first mixed run."""
    return next(path.name for path in (folder / "results/1/raw").glob("mix1.dlrm.*[!s].npz"))


def test_one_changed_digit_in_any_file_is_found(folder: Path) -> None:
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    for name in names:
        path = folder / name
        content = path.read_bytes()
        at = next((at for at, byte in enumerate(content) if chr(byte).isdigit()), len(content) // 2)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert codes(folder), name
        path.write_bytes(content)
    assert not codes(folder)


def changed(result: Result, key: str, **columns: Callable[[Any], Any]) -> Result:
    """The result with other timestamps of one record."""

    def alter(record: Record) -> Record:
        done = record.completions
        if record.key != key or done is None:
            return record
        names = ("due_ns", "issued_ns", "ends", "yielded_ns", "units")
        values = {name: columns.get(name, lambda same: same)(getattr(done, name)) for name in names}
        return record.model_copy(update={"completions": Completions(**values)})

    return result.model_copy(update={"records": tuple(map(alter, result.records))})


def early(times_ns: Any) -> Any:
    """Times within the first twentieth of the window."""
    return times_ns[0] + (times_ns - times_ns[0]) // 20


@pytest.mark.parametrize(
    "columns",
    [dict.fromkeys(("due_ns", "issued_ns", "yielded_ns"), early), {"units": lambda units: units * 2}],
    ids=["feeds faster than light", "units that were never done"],
)
def test_an_impossible_rate_is_rejected(folder: Path, columns: dict[str, Callable[[Any], Any]]) -> None:
    key = mixed_key(folder).removesuffix(".npz")
    rewritten(folder, lambda result: changed(result, key, **columns))
    assert codes(folder) == {"E-VALID", "E-SCORE"}


def without_run(result: Result, name: str) -> Result:
    """The result without a mixed phase and all that was measured of it."""
    return result.model_copy(
        update={
            "phases": tuple(phase for phase in result.phases if phase.name != name),
            "records": tuple(record for record in result.records if record.phase != name),
            "meterings": tuple(metering for metering in result.meterings if metering.phase != name),
        }
    )


def without_resnet50(result: Result) -> Result:
    records = (record for record in result.records if (record.scenario, record.route.suite) != ("mixed", "resnet50"))
    return result.model_copy(update={"records": tuple(records)})


@pytest.mark.parametrize("change", [lambda result: without_run(result, "mix1"), without_resnet50])
def test_a_part_of_a_result_that_is_dropped_is_missed(folder: Path, change: Callable[[Result], Result]) -> None:
    rewritten(folder, change)
    assert codes(folder) in ({"E-RESULT"}, {"E-SCORE"}, {"E-SCORE", "E-VALID"})


def test_a_run_that_is_dropped_at_the_end_costs_the_grade(folder: Path) -> None:
    before = verdict(folder).entry
    rewritten(folder, lambda result: without_run(result, "mix2"))
    after = verdict(folder).entry
    assert before is not None and after is not None
    assert "1 of 3 runs" in after.reasons["grade"]
    assert (len(before.runs), len(after.runs)) == (2, 1)


def remetered(result: Result, *meterings: Metering, **changes: object) -> Result:
    return result.model_copy(update={"meterings": meterings, **changes})


def test_the_energy_of_another_run_is_rejected(folder: Path) -> None:
    """The second mixed run is given the samples of the first, moved in time."""

    def noisy(metering: Metering, seed: int) -> Metering:
        rng = np.random.default_rng(seed)
        samples = {
            id: Samples(own.before_ns, own.after_ns, own.values + np.cumsum(rng.random(len(own.values))) * 0.01)
            for id, own in metering.samples.items()
        }
        return metering.model_copy(update={"samples": samples})

    rewritten(folder, lambda result: remetered(result, *map(noisy, result.meterings, range(99))))
    assert codes(folder) == set()
    fingerprints = contribution_of(1, judge(store.open(folder / "results/1")), "").fingerprints
    named = {name.rpartition(" ")[2] for name, _ in fingerprints if name.startswith("the samples of")}
    assert named == {"mix1", "mix2"}  # the weight classes of one run have the other phases in common

    def forged(result: Result) -> Result:
        *others, first, second = result.meterings
        samples = {}
        for id, own in second.samples.items():
            count = min(len(own.values), len(first.samples[id].values))
            values = first.samples[id].values[:count]
            samples[id] = Samples(own.before_ns[:count], own.after_ns[:count], values - values[0] + own.values[0])
        return remetered(result, *others, first, second.model_copy(update={"samples": samples}))

    rewritten(folder, forged)
    assert "E-COPIED" in codes(folder)


def test_a_copy_of_a_run_with_a_little_noise_is_the_same_run(folder: Path) -> None:
    """Its timestamps are 0 to 2 ns earlier, and it has no samples."""
    rng = np.random.default_rng(7)

    def early(record: Record) -> Record:
        if record.completions is None:
            return record
        marks = record.completions.yielded_ns
        noisy = dataclasses.replace(record.completions, yielded_ns=marks - rng.integers(0, 3, len(marks)))
        return record.model_copy(update={"completions": noisy})

    def forged(result: Result) -> Result:
        return result.model_copy(update={"records": tuple(map(early, result.records)), "meterings": ()})

    copy = Path(shutil.copytree(folder, folder.parents[2] / "acme" / folder.parent.name / folder.name))
    edited(copy, organisation="Acme")
    rewritten(copy, forged)
    assert codes(copy) == set()
    assert codes(folder, copy) == codes(copy, folder) == {"E-DUPLICATE"}


def test_a_device_that_no_meter_covers_leaves_no_efficiency(folder: Path) -> None:
    """The energy of the GPU is left out of the boundary, everywhere alike."""

    def less(metering: Metering) -> Metering:
        samples = {id: samples for id, samples in metering.samples.items() if id != "nvml/0"}
        return metering.model_copy(update={"samples": samples})

    def change(result: Result) -> Result:
        domains = tuple(domain for domain in result.domains if domain.id != "nvml/0")
        return remetered(result, *map(less, result.meterings), domains=domains)

    rewritten(folder, change)
    found = verdict(folder).entry
    assert found is not None and found.mixes_per_kwh is None and found.boundary is None
    assert "gpu:GPU-0 is not metered" in found.unmeasured


# Files that are hard to read


def test_a_bundle_of_many_files_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_FILES", 100)
    for number in range(200):
        (folder / f"results/1/raw/{number}.npz").touch()
    assert "E-LIMITS" in codes(folder)


def test_a_result_of_more_devices_than_a_machine_has_is_not_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MAX_PARTS", 1)
    (problem,) = verdict(folder).problems
    assert problem.message == "it has more than 1 devices or energy sources"


def test_folders_that_are_nested_deeply_are_not_followed(folder: Path) -> None:
    deep = folder.joinpath(*["x"] * 300)
    deep.mkdir(parents=True)
    assert "E-LIMITS" in codes(folder)


@pytest.mark.parametrize("name", [DECLARATION, MANIFEST])
@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"1" * 100_000, b"\xff\xfe", b"null", b'"\\ud800"', b"\xef\xbb\xbf{}"],
    ids=["lists", "digits", "bytes", "null", "surrogate", "mark"],
)
def test_json_that_is_none_is_rejected(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    if name != MANIFEST:
        files.write_manifest(folder)
    assert codes(folder) == {"E-SCHEMA"}


def replace(path: Path, old: str, new: str) -> None:
    """Replaces a text that must be in the file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "text",
    [
        '"provisioned_watts": 450.0',
        '"provisioned_watts": "450"',
        '"provisioned_watts": 9007199254740993',
        '"provisioned_watts": 450, "mixes_per_kwh": 99',
        '"provisioned_watts": 900, "provisioned_watts": 450',
    ],
)
def test_a_declaration_in_another_form_is_rejected(folder: Path, text: str) -> None:
    replace(folder / DECLARATION, '"provisioned_watts": 450', text)
    files.write_manifest(folder)
    assert codes(folder) == {"E-SCHEMA"}


def priced(name: str, *values: object) -> list[dict[str, object]]:
    return [{"price": {**PRICE.model_dump(mode="json"), name: value}} for value in values]


@pytest.mark.parametrize(
    "changes",
    [
        *priced("amount", "1e3", "-1", "1,5", "NaN", "01", " 1", "1.00000", "9" * 13, 12.5),
        *priced("source", "javascript:alert(1)", 'https://x/"onclick="y', "https://x/<b>", "//x", "data:text/html,x"),
        {"organisation": "Асme"},  # the first two letters are Cyrillic
        *({"system": name} for name in ("Acme\u200b", "\u202eemcA", "Ａcme", "Acmė", "Acme\u0301", "ACME\n")),
        *({"organisation": name} for name in ("-", "", "Ac" * 40)),
    ],
)
def test_an_amount_a_link_or_a_name_that_is_none_or_looks_like_another_is_rejected(
    folder: Path, changes: dict[str, Any]
) -> None:
    edited(folder, **changes)
    assert codes(folder) == {"E-SCHEMA"}


@pytest.mark.parametrize("text", ['"concurrency": 1.0', '"concurrency": "1"'])
def test_a_result_in_another_form_is_rejected(folder: Path, text: str) -> None:
    replace(folder / RESULT, '"concurrency": 1', text)
    write_hashes(folder / "results/1")
    files.write_manifest(folder)
    assert codes(folder) & {"E-RESULT", "E-WHOLE-RESULT"}


def test_hashes_in_another_order_are_rejected(folder: Path) -> None:
    path = folder / SUMS
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    files.write_manifest(folder)
    assert codes(folder) == {"E-WHOLE-RESULT"}


def test_a_result_from_before_a_field_existed_obeys_the_rules(folder: Path) -> None:
    """The field has its default; no digit of the file changes."""
    before = (folder / RESULT).read_text("utf-8")
    assert before.count('"found": [],') == 1
    replace(folder / RESULT, '"found": [],', "")
    write_hashes(folder / "results/1")
    files.write_manifest(folder)
    assert not codes(folder)


# Names and links


@pytest.mark.parametrize("name", ["a" * 81, "two-", "two--two"])
def test_a_mix_whose_name_is_no_folder_s_is_rejected(folder: Path, tmp_path: Path, name: str) -> None:
    def renamed(result: Result) -> Result:
        assert result.mix is not None
        return result.model_copy(update={"mix": result.mix.model_copy(update={"name": name})})

    rewritten(folder, renamed)
    assert codes(folder) == {"E-ONE-MIX"}
    with pytest.raises(ResultError, match="cannot name a folder"):
        bundle.bundle([folder / "results/1"], DECLARED, tmp_path / "out")


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "results/1/../../x", "a\\b", "", "results//1"])
def test_a_path_that_leaves_the_entry_is_no_path_of_a_manifest(folder: Path, name: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][0]["path"] = name
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    assert codes(folder) == {"E-SCHEMA"}


@pytest.mark.parametrize("name", ["²", "01", "0", "x"])
def test_a_result_has_a_plain_number(folder: Path, name: str) -> None:
    (folder / "results/1").rename(folder / "results" / name)
    assert "E-LAYOUT" in codes(folder)


@pytest.mark.parametrize("of", ["../..", "..", "", "results", "results/1/raw", DECLARATION])
def test_no_part_of_an_entry_and_no_folder_around_it_is_a_link(folder: Path, tmp_path: Path, of: str) -> None:
    path = (folder / of).resolve()
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    (found,) = check.find(folder.parents[2])
    assert codes(found) & {"E-LINKS", "E-PLACE"}


def test_a_pipe_among_the_raw_files_is_not_read(folder: Path) -> None:
    os.mkfifo(folder / "results/1/raw/pipe.npz")
    assert codes(folder) == {"E-LINKS"}


def test_control_characters_in_a_message_do_not_reach_the_terminal(folder: Path) -> None:
    (folder / "\x1b[31mred").write_text("x")
    (problem,) = verdict(folder).problems
    assert "\x1b" not in problem.where


def test_a_hidden_folder_beside_entries_is_found(folder: Path) -> None:
    hidden = folder.parents[1] / ".hidden"
    hidden.mkdir()
    (hidden / "notes.txt").write_text("x")
    assert check.find(folder.parents[2]) == [hidden, folder]
    (folder.parents[2] / ".git").mkdir()
    assert check.find(folder.parents[2]) == [hidden, folder]


def test_a_stray_file_beside_entries_is_found(folder: Path) -> None:
    (folder.parents[1] / "notes.txt").write_text("x")
    (found,) = check.find(folder.parents[2])
    assert found == folder.parents[1]
    assert "E-LAYOUT" in codes(found)


def test_a_name_that_spills_over_its_row_is_rejected(folder: Path) -> None:
    content = json.loads((folder / RESULT).read_text())
    for name in ("x" * 3_000_000, "a" + "\u0301" * 180):
        content["devices"][0]["name"] = content["system"]["cpu_model"] = name
        (folder / RESULT).write_text(json.dumps(content, indent=2) + "\n")
        write_hashes(folder / "results/1")
        files.write_manifest(folder)
        assert codes(folder) == {"E-WHOLE-RESULT"}
        assert len(store.open(folder / "results/1").devices[0].name) <= 200
    edited(folder, notes="a" + "\u0301" * 180)
    assert codes(folder) == {"E-SCHEMA"}


# Files that block or do not end


def never_ending(path: Path, how: str) -> None:
    """Replaces a file by one that a reader would wait for, or read for ever."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)


@pytest.mark.parametrize("how", ["pipe", "device", "huge"])
def test_whatever_lies_where_a_document_should_be_nothing_waits_for_it(folder: Path, tmp_path: Path, how: str) -> None:
    result = folder / "results/1"
    never_ending(folder.parents[2] / "evil/box/edge-1-16-bit" / MANIFEST, how)
    other = bundle.bundle([result], DECLARED.model_copy(update={"system": "Two"}), folder.parents[2], dry_run=True)
    assert [problem.code for problem in other.verdict.problems] == ["E-DUPLICATE"], "the good entry beside it is seen"
    for name in (MANIFEST, DECLARATION, SUMS, RESULT):
        copied = Path(shutil.copytree(folder, tmp_path / name / "a/b/c"))
        never_ending(copied / name, how)
        assert codes(copied) & ({"E-LIMITS"} if how == "huge" else {"E-LINKS", "E-MANIFEST", "E-RESULT", "E-PLACE"})
        with pytest.raises((ResultError, OSError)):
            regular(copied / name, 1 << 20) if name in (MANIFEST, DECLARATION) else store.open(copied / "results/1")
    never_ending(tmp_path / "live" / store.JOURNAL, how)
    assert how == "huge" or not store.live(tmp_path / "live")
    never_ending(result / "raw" / mixed_key(folder), how)
    with pytest.raises(ResultError, match="is damaged"):
        store.open(result)


def test_who_reads_entries_opens_their_files_in_one_place() -> None:
    root = Path(__file__).parents[2]
    paths = [*(root / "submissions").glob("*.py"), *(root / "harness/record").glob("*.py")]
    opens = [path.name for path in paths for _ in re.findall(r'read_(?:text|bytes)\(|open\("rb"\)', path.read_text())]
    assert opens == ["files.py"], "the list of originals, which the owner of a board wrote"
