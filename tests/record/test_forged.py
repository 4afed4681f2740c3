"""Forgeries of a whole result folder. Each is made with care: the hashes agree with the changed files, unless the test
is about them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import words
from mixmark.harness.machine.suite_claims import judge_stored
from mixmark.harness.record import store
from mixmark.reporters.document import Bullets, Paragraph
from mixmark.reporters.report import Depth, report
from mixmark.suites.probe import Probe
from tests.fakes.folders import Maker, forge, write

Content = dict[str, Any]
WHOLE = Maker().result(runs=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    write(folder, WHOLE)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def opened(folder: Path) -> Assessment:
    return judge_stored(store.open(folder))


def test_what_was_written_has_a_score(folder: Path) -> None:
    found = opened(folder).score
    assert found is not None and found.mixes_per_kwh is not None and not found.problems
    forge(folder, lambda content: None)
    again = opened(folder).score
    assert again is not None and again.mixes_per_kwh == found.mixes_per_kwh


def stamps(folder: Path, key: str, /, **changed: Callable[[Any], Any]) -> None:
    """Changes columns of the raw file of a record."""
    path = folder / "raw" / f"{key}.npz"
    with np.load(path) as arrays:
        columns = {name: changed.get(name, lambda same: same)(arrays[name]) for name in arrays.files}
    np.savez(path, **columns)


def mixed(content: Content) -> list[Content]:
    return [each for each in content["records"] if each["scenario"] == "mixed"]


def alone(content: Content) -> Content:
    return next(each for each in content["records"] if each["scenario"] == "offline")


def share_of(content: Content, key: str) -> Content:
    shares = (each for phase in content["phases"] for task in phase["tasks"] for each in task["shares"])
    found: Content = next(each for each in shares if each["key"] == key)
    return found


def doubled(folder: Path) -> None:
    """Units, feed units and outputs of all parts of the mix."""

    def change(content: Content) -> None:
        for record in mixed(content):
            record["feed_units"] *= 2
            stamps(folder, record["key"], units=lambda units: units * 2)
            stamps(folder, f"{record['key']}.outputs", outputs=lambda outputs: np.concatenate((outputs, outputs), 1))

    forge(folder, change)


def wide(folder: Path) -> None:
    def change(content: Content) -> None:
        for record in content["records"]:
            if record["audit"]:
                record["audit"]["gate"]["at_most"] = 1e6

    forge(folder, change)


def audited_screening(folder: Path) -> None:
    """A record with wrong outputs is called a screening run, which nobody audits, and keeps its audit."""

    def change(content: Content) -> None:
        record = alone(content)
        phase = next(each for each in content["phases"] if each["name"] == record["phase"])
        content["candidates"] = [json.loads(json.dumps(phase))]
        phase["purpose"] = "screening"
        share_of(content, record["key"])["limits"] |= {"screening": True, "audits": 0}
        record |= {"screening": True, "exempt": "not asked for"}

    forge(folder, change)


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        (doubled, "has feeds of 8 units, and its suite makes feeds of 4"),
        (wide, "has another gate than its suite"),
        (audited_screening, "was not planned so in"),
    ],
    ids=["doubled", "gate", "audited"],
)
def test_a_forgery_shows_no_figure(folder: Path, forgery: Callable[[Path], None], said: str) -> None:
    forgery(folder)
    found = opened(folder)
    assert any(re.search(said, words(finding)) for finding in found.findings)
    assert {finding.severity for finding in found.findings} == {"invalid"}
    assert (found.score, found.runs, found.exit_code, found.verdict.word) == (None, (), 1, "invalid")


def test_of_a_forgery_nothing_is_shown_but_which_run_it_claims_to_be(folder: Path) -> None:
    doubled(folder)
    told, shown = store.open(folder), opened(folder).result
    claimed = {"created_utc", "tier", "preset", "system", "hosts", "devices", "finished"}
    nothing = Result.model_construct(records=())
    hidden = [name for name in Result.model_fields if name not in claimed]
    assert [name for name in hidden if getattr(shown, name) != getattr(nothing, name)] == []
    assert [getattr(shown, name) for name in claimed] == [getattr(told, name) for name in claimed]
    has = {name for name in hidden if getattr(told, name) != getattr(nothing, name)}
    assert {"records", "phases", "suites", "environments", "mix"} <= has
    said = [words(finding) for finding in opened(folder).findings]
    for depth in get_args(Depth):
        page = report(opened(folder), depth)
        assert page.title == "Acme Quartz, 16 cores, 32 threads, 64.0 GiB, Acme Topaz"
        verdict, *reasons = page.blocks
        assert isinstance(verdict, Paragraph) and (verdict.word, verdict.lead) == ("invalid", "Don't use this")
        assert reasons == ([] if depth in ("brief", "summary") else [Bullets(said)])


def test_an_unfinished_forgery_is_invalid_too(folder: Path) -> None:
    forge(folder, lambda content: content["records"].reverse() or content.update(finished=False))
    assert (opened(folder).exit_code, opened(folder).verdict.word) == (1, "invalid")


@pytest.mark.parametrize("name", ["result.json", "SHA256SUMS"])
def test_a_file_that_was_altered_alone_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes().replace(b"Acme Quartz", b"Acme Diamond").replace(b"  raw/", b"   raw/"))
    with pytest.raises(ResultError, match="SHA256SUMS"):
        store.open(folder)


def test_a_folder_without_its_hashes_is_refused(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(ResultError, match="has no SHA256SUMS"):
        store.open(folder)


def test_a_raw_file_of_another_run_is_refused(folder: Path) -> None:
    stamps(folder, WHOLE.records[1].key, yielded_ns=lambda at: at + 1)
    with pytest.raises(ResultError, match=r"its hash is not the one that was written with it"):
        store.open(folder)


def test_a_suite_that_is_not_installed_has_no_rank(folder: Path) -> None:
    def change(content: Content) -> None:
        for record in content["records"]:
            record["route"]["suite_version"] = share_of(content, record["key"])["route"]["suite_version"] = "9"

    forge(folder, change)
    found = opened(folder)
    told = [each for each in found.findings if each.rule == "suites_verified"]
    assert len(told) == len(WHOLE.records)
    assert f"version 9 of probe, and version {Probe.version} is installed" in words(told[0])
    assert found.score is not None
    costs = [words(each) for each in found.score.unranked if each.code == "suites_verified.unranked"]
    assert costs == ["the suites probe, dlrm, resnet50 were not compared with their code"], "each suite once"
