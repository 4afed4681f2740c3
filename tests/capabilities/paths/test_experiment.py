"""A run with paths: what it keeps, what comes first and what comes after the mix, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.paths import measuring
from mixmark.harness.capabilities.paths.facts import CopyFault, CopySample, DataPath, PathRecord, measured
from mixmark.harness.cli.eta import Eta
from mixmark.harness.contracts.schema import Absent, Found
from mixmark.harness.judge.rules.consistency import SuiteClaims, contradictions
from mixmark.harness.measure.executor import PhaseStarted
from mixmark.harness.plugins import registry
from mixmark.harness.record import store
from tests.capabilities.paths.fakes import PATH, with_paths
from tests.cli.shell import Shell
from tests.cli.test_progress import FAILED, Player, header
from tests.golden.sample import but, result, sample
from tests.measure.test_repeats import QUIET, Desk, benchmark
from tests.measure.test_stages import DEVICES, solo


def on_path(id: str, source: str, destination: str, ns: int, **more: Any) -> PathRecord:
    """Copies of 4 KiB and of 64 KiB, each in this time. None reaches memory."""
    samples = tuple(CopySample(size_bytes=size, copies=1, ns=ns) for size in (4096, 1 << 16) for _ in range(6))
    path = DataPath(id=id, source=source, destination=destination, through_caches=True, **more)
    return PathRecord(path=path, samples=samples)


IN_HOST = on_path("host/copy", "host", "host", 900)


def test_each_path_is_told_once_it_is_measured() -> None:
    player = Player(width=200)
    path = DataPath(id="host/copy", source="host", destination="host", through_caches=True)
    fault = CopyFault(kind="late", size_bytes=4096, first_byte=0)
    for each in (PathRecord(path=path), PathRecord(path=path, failure=FAILED), PathRecord(path=path, fault=fault)):
        player.notify(Found(experiment="paths", facts=each.model_dump(mode="json")))
    assert [line.split("] ")[1] for line in player.lines] == [
        "path host/copy: measured",
        f"path host/copy: {FAILED.message}",
        "path host/copy: a wrong copy (late)",
    ]


def test_the_progress_moves_while_paths_are_measured() -> None:
    """A processor has four paths of 20 s, which is 80 s before the first phase."""
    player = Player(width=200, of=with_paths(header()))
    whole_s = player.progress.eta.total_s
    path = Found(experiment="paths", facts=IN_HOST.model_dump(mode="json"))
    for player.now_s in (30, 75, 100):
        player.notify(path)
    player.notify(PhaseStarted(player.header.phases[0]))
    player.notify(path)
    expected = [f"{seconds / whole_s * 100:3.0f} %" for seconds in (30, 75, 80, 80)]
    assert [line[1:].partition("]")[0] for line in player.lines] == expected
    assert player.progress.eta.done_s == 80
    assert Eta(with_paths(header()), True).before_s == 4 * (20 + 5 * 4.5)
    assert Eta(with_paths(sample()), False).before_s == 0, "they were measured"


def test_paths_come_first_and_a_run_that_ends_among_them_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run ends after a path and an absence; the resumed run measures only the path that is left."""
    asked: list[Sequence[PathRecord | Absent]] = []
    lacking = Absent(kind="path", name="fake/none", reason="no path: there is no second memory")
    last = but(PATH, id="fake/last")

    def measure(known: Sequence[PathRecord | Absent], meters: object) -> Iterator[PathRecord | Absent]:
        asked.append(known)
        if known:
            yield PathRecord(path=last)
            raise KeyboardInterrupt
        yield from (PathRecord(path=PATH), lacking)
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measure", measure)
    header = but(with_paths(solo(DEVICES[0])), phases=(), records=())
    keeper = store.create(tmp_path / "a", header)
    for _ in range(2):
        made = benchmark(header, Desk(QUIET), keeper, 1)
        with pytest.raises(KeyboardInterrupt):
            made.run()
        header, before = store.open(tmp_path / "a"), header
        assert (made.result.found, made.result.absent) == (header.found, header.absent)
        assert (header.absent[-1], header.finished) == (lacking, False)
        keeper = store.resume(tmp_path / "a")
    assert asked == [[], [PathRecord(path=PATH), lacking]]
    assert [each.path for each in measured(header)] == [PATH, last]
    assert header.absent == before.absent


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SIZES", (4096, 1 << 16))


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_paths_are_measured_also_without_a_mix_and_each_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(tmp_path)
    monkeypatch.setitem(registry.BUILT_IN, "paths", {"fakes": "tests.capabilities.paths.fakes:Fakes"})
    done = shell.run("--paths", "--scenario", "server", "--rate", "40")
    assert done.returncode == 0, done.stderr
    assert "Paths between memories" in done.stdout
    found = store.open(shell.folder / "out")
    samples = {each.path.id: len(each.samples) for each in measured(found)}
    assert samples == {"fakes/fine": 24, "fakes/raises": 0, "fakes/dies": 12}
    assert [each.name for each in found.absent if each.kind == "path"] == ["fakes/none"]
    shown = json.loads(shell("report", "out", "--json").stdout)
    assert "fakes/fine" in {each["path"]["id"] for each in shown["experiments"]["paths"]}
    assert "there is no suite 'host'" in shell("run", "--paths", "host").stderr


def test_facts_that_are_not_of_a_path_contradict_the_result() -> None:
    whole = with_paths(result(), IN_HOST)

    def said(**changes: object) -> list[str]:
        changed = whole.model_copy(update=changes)
        return [each for each in contradictions(changed, SuiteClaims()) if "paths" in each]

    assert said() == []
    assert said(found=(but(whole.found[0], facts={"path": 7}),)) == ["what was found has other facts than paths keeps"]
    assert said(experiments={}) == ["what was found is of paths, which the run was not asked for"]
