from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.machine import sampling
from mixmark.harness.machine.sampling import Watch
from mixmark.harness.resources import clock
from tests.fakes.clock import BEGIN_NS, JumpingClock
from tests.machine.test_accelerators import found
from tests.machine.test_counters import SECOND, WORKER, Clock, quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("importable")]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, jumping_clock: JumpingClock) -> None:
    """The watch samples once a second, whatever it costs."""
    monkeypatch.setattr(sampling, "WATCH_FRACTION", 1.0)


@pytest.mark.usefixtures("free")
def test_the_watch_leaves_blocks_without_a_gap(tmp_path: Path) -> None:
    watch = Watch([WORKER], quiet(tmp_path), watchers={}).start()
    clock.sleep(3.5)
    blocks = watch.stop().blocks
    assert [(each.begin_ns - BEGIN_NS) / SECOND for each in blocks] == [0, 1, 2, 3]
    assert [(each.end_ns - BEGIN_NS) / SECOND for each in blocks] == [1, 2, 3, 3.5]


def test_a_watch_that_is_stopped_at_once_still_tells(tmp_path: Path) -> None:
    watched = Watch([WORKER], quiet(tmp_path), watchers={}).start().stop()
    [only] = watched.blocks
    assert only.begin_ns < only.end_ns and watched.absent == ()


@pytest.mark.usefixtures("jumping_clock", "in_process")
def test_a_watcher_that_hangs_stops_neither_the_blocks_nor_the_run(tmp_path: Path) -> None:
    watched = Watch([WORKER], quiet(tmp_path), watchers=found("Hanging")).start().stop()
    assert [each.label for each in watched.absent] == ["watcher hanging"]
    assert watched.blocks[-1].busy_ns == 0  # the machine's own counters go on


def test_what_watchers_cost_stretches_the_pause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At half a percent of a core, 50 ms of CPU time allow a sample every 10 s."""
    pauses: list[float] = []
    watch = Watch([WORKER], quiet(tmp_path), watchers=found("Slow"))

    class Stopped:
        """Lets one more sample pass at once."""

        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 2

        def set(self) -> None: ...

    monkeypatch.setattr(watch, "_stopped", Stopped())
    watch.start().stop()
    assert pauses[0] == sampling.INTERVAL_S
    assert pauses[1] >= 10


def test_a_canary_is_a_block_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ns", Clock(7))
    found = sampling.canary()
    assert found.canary_ns == (7,) * sampling.CANARY_TIMES
    assert (found.busy_ns, found.cpus) == (None, None)
