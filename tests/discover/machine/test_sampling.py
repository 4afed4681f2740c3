from __future__ import annotations

import time
from pathlib import Path

import pytest

from mixmark.harness.discover.machine import accelerators, sampling
from mixmark.harness.discover.machine.sampling import Watch
from tests.discover.machine.test_accelerators import WELL, found
from tests.discover.machine.test_counters import SECOND, WORKER, Clock, quiet


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch samples a hundred times a second, whatever it costs."""
    monkeypatch.setattr(sampling, "INTERVAL_S", 0.01)
    monkeypatch.setattr(sampling, "WATCH_FRACTION", 1.0)


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("importable")]


def until(clock: Clock, end_ns: int) -> None:
    while clock.now_ns < end_ns:
        time.sleep(0.001)


@pytest.mark.usefixtures("often")
def test_the_watch_leaves_blocks_without_a_gap(tmp_path: Path) -> None:
    clock = Clock()
    watch = Watch([WORKER], quiet(tmp_path), clock, watchers={}).start()
    until(clock, 10 * SECOND)
    blocks = watch.stop().blocks
    assert len(blocks) >= 4
    assert [each.begin_ns for each in blocks[1:]] == [each.end_ns for each in blocks[:-1]]
    assert blocks[0].begin_ns == 6 * SECOND
    assert blocks[-1].end_ns == clock.now_ns


def test_a_watch_that_is_stopped_at_once_still_tells(tmp_path: Path) -> None:
    watched = Watch([WORKER], quiet(tmp_path), Clock(), watchers={}).start().stop()
    [only] = watched.blocks
    assert (only.begin_ns, only.end_ns) == (6 * SECOND, 7 * SECOND)
    assert watched.absent == ()


@pytest.mark.usefixtures("often")
def test_a_watcher_that_fails_takes_only_its_own_states_along(tmp_path: Path) -> None:
    clock = Clock()
    watchers = found("Raising", "Onyx")
    watch = Watch([WORKER], quiet(tmp_path), clock, watchers=watchers).start()
    until(clock, 12 * SECOND)
    watched = watch.stop()
    assert [each.accelerators for each in watched.blocks[-2:]] == [(WELL,), (WELL,)]
    assert [each.label for each in watched.absent] == ["watcher raising"]


def test_a_watcher_that_hangs_stops_neither_the_blocks_nor_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(accelerators, "READ_S", 0.2)
    watched = Watch([WORKER], quiet(tmp_path), Clock(), watchers=found("Hanging")).start().stop()
    assert [each.label for each in watched.absent] == ["watcher hanging"]
    assert watched.blocks[-1].busy_ns == 0  # the machine's own counters go on


def test_what_watchers_cost_stretches_the_pause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At half a percent of a core, 50 ms of CPU time allow a sample every 10 s."""
    monkeypatch.setattr(sampling, "INTERVAL_S", 0.01)
    pauses: list[float] = []
    watch = Watch([WORKER], quiet(tmp_path), Clock(), watchers=found("Slow"))

    class Stopped:
        """Lets one more sample pass at once."""

        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 2

        def set(self) -> None: ...

    monkeypatch.setattr(watch, "_stopped", Stopped())
    watch.start().stop()
    assert pauses[0] == 0.01
    assert pauses[1] >= 10


def test_a_canary_is_a_block_of_its_own() -> None:
    found = sampling.canary(Clock(7))
    assert found.canary_ns == (7,) * sampling.CANARY_TIMES
    assert (found.busy_ns, found.cpus) == (None, None)
