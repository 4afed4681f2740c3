"""What a person sees while a run goes on, on a clock that the test turns."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from harness.judge.energy.total import Draw
from harness.mix import Snapshot
from harness.progress import Progress
from harness.schema import Failure, Limits, Mix, Phase, Placement, Share, Task
from tests.golden.sample import closed_loop, record

S = 1_000_000_000
MIX = Mix(name="edge-1", tier="edge", units={"llm": 50.0, "dlrm": 2000.0})
PLAN = Placement(
    objective="throughput",
    rates=(),
    shares={},
    mixes_per_s=0.5,
    bound_per_s=0.5,
    bound_shares={},
    suite_prices={},
    device_prices={},
)


def cell(key: str, placement: Placement | None = None) -> Phase:
    """A cell that is expected to take 20 s: 10 s to start, 10 s of work."""
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=10 * S, max_ns=40 * S, min_feeds=1)
    scenario = "mixed" if placement else "single-stream"
    share = Share.model_validate(
        {"key": key, "route": record(key, "llm", "token", closed_loop([[1]])).route, "scenario": scenario}
        | {"batch": 1, "limits": limits}
    )
    return Phase(
        name=key,
        purpose="mixed" if placement else "solo",
        tasks=(Task(device="cpu:0", shares=(share,)),),
        placement=placement,
    )


class Watched:
    """A run that somebody follows on a terminal."""

    def __init__(self, *phases: Phase, width: int = 100, terminal: bool = True, later_s: float = 0) -> None:
        self.now_s = 0.0
        self.drawn: Draw | None = None
        self.out = StringIO()
        self.console = Console(file=self.out, width=width, force_terminal=terminal, color_system=None, _environ={})
        self.progress = Progress(phases, later_s, lambda: self.drawn, self.console, lambda: self.now_s)
        self.observer = self.progress.observer

    def display(self) -> str:
        with self.console.capture() as captured:
            self.console.print(self.progress._render())
        return captured.get()

    def do(self, phase: Phase, seconds: float) -> None:
        self.observer.started(phase.tasks[0].shares[0])
        self.now_s += seconds
        self.observer.recorded(record(phase.name, "llm", "token", closed_loop([[5, 5]])))


def playing(elapsed_s: float) -> Snapshot:
    return Snapshot(
        elapsed_ns=round(elapsed_s * S),
        longest_ns=60 * S,
        mixes=4.5,
        planned_per_s=PLAN.mixes_per_s,
        running={"cpu:0": "llm", "gpu:a": ""},
        units={"llm": 225.0, "dlrm": 12_000.0},
        mix_units=MIX.units,
    )


def test_the_mix_shows_devices_streams_against_what_is_due_and_mixes() -> None:
    watched = Watched(phase := cell("m1", PLAN))
    watched.observer.started(phase.tasks[0].shares[0])
    watched.observer.mixing(playing(elapsed_s=10))
    shown = watched.display()
    assert "the mix, on all devices · 4.50 mixes" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["cpu:0", "llm"] in lines and ["gpu:a", "idle"] in lines
    assert ["llm", "225", "of", "250", "due", "4.50", "mixes"] in lines, "10 s at half a mix a second are 5 mixes"
    assert ["dlrm", "12,000", "of", "10,000", "due", "6.00", "mixes"] in lines


def test_watts_are_shown_as_far_as_they_are_known() -> None:
    watched = Watched(cell("a"))
    assert "W" not in watched.display()
    watched.drawn = Draw(235.04, "wall")
    assert "W" not in watched.display(), "once a second is enough"
    watched.now_s += 1
    assert "235.0 W, wall" in watched.display()
    watched.drawn = Draw(90.0, None)
    watched.now_s += 1
    assert "90.0 W, of the metered part only" in watched.display()
    watched.drawn = None
    watched.now_s += 1
    assert "W" not in watched.display(), "unknown is not 0"


def test_the_eta_follows_the_pace_and_knows_of_the_mix_to_come() -> None:
    first, second = cell("a"), cell("b")
    watched = Watched(first, second, later_s=30)
    assert watched.progress.eta_s() == 20 + 20 + 30
    watched.do(first, 40)
    assert watched.progress.eta_s() == 2 * (20 + 30), "twice as slow as expected"
    watched.now_s += 10
    assert watched.progress.eta_s() == 90
    watched.do(second, 40)
    watched.observer.planned((cell("m1", PLAN),))
    assert watched.progress.eta_s() == 2 * (20 + 10), "the mix is planned, and of what was to come 10 s are left"


def test_answers_that_are_compared_are_counted_and_timed() -> None:
    watched = Watched(phase := cell("a"))
    watched.do(phase, 20)
    watched.progress.to_audit = 4
    for _ in range(2):
        watched.observer.auditing(record("a", "llm", "token", closed_loop([[5]])))
        watched.now_s += 7
    assert "comparing answers with the reference (2 of 4)" in watched.display()
    assert watched.progress.eta_s() == 3 * 7


@pytest.mark.parametrize("width", [40, 79, 80, 200])
def test_it_fits_the_terminal(width: int) -> None:
    watched = Watched(phase := cell("m1", PLAN), width=width)
    watched.drawn = Draw(1_234.5, None)
    watched.now_s += 1
    watched.observer.started(phase.tasks[0].shares[0])
    watched.observer.mixing(playing(elapsed_s=10))
    shown = watched.display()
    assert max(map(len, shown.splitlines())) <= width
    for word in ("cpu:0", "elapsed", "ETA", "1,234.5 W", "mixes"):
        assert word in " ".join(shown.split())


def test_what_a_stranger_named_moves_no_cursor() -> None:
    phase = cell("a")
    share = phase.tasks[0].shares[0]
    named = share.model_copy(update={"route": share.route.model_copy(update={"adapter": "acme\x1b[2J\x1b]0;x\x07"})})
    watched = Watched(phase, terminal=False)
    watched.observer.started(named)
    watched.observer.stage(named, "loading \x9b5A")
    failure = Failure(kind="crashed", message="it said \x1b[31mno\r\ntwice")
    watched.observer.recorded(record("a", "llm", "token", error=failure).model_copy(update={"route": named.route}))
    shown = watched.display() + watched.out.getvalue()
    assert "\x1b" not in shown and "\x9b" not in shown and "\r" not in shown
    assert "[1/1] llm on cpu:0 by acme in fp32: crashed: it said no twice\n" in watched.out.getvalue()


@pytest.mark.parametrize(
    ("environment", "terminal"), [({"TERM": "dumb"}, True), ({}, False)], ids=["dumb terminal", "file"]
)
def test_where_no_cursor_moves_there_are_only_lines(environment: dict[str, str], terminal: bool) -> None:
    watched = Watched(first := cell("a"), second := cell("b"))
    watched.console = Console(file=watched.out, width=40, force_terminal=terminal, _environ=environment)
    watched.progress = Progress((first, second), console=watched.console, clock_s=lambda: watched.now_s)
    watched.observer = watched.progress.observer
    with watched.progress:  # which would start a thread
        watched.do(first, 20)
        watched.do(second, 20)
    assert watched.out.getvalue().splitlines() == [
        "[1/2] llm on cpu:0 by torch in fp32: 200,000,000 tokens/s at batch 1  (about 0:20 left)",
        "[2/2] llm on cpu:0 by torch in fp32: 200,000,000 tokens/s at batch 1",
    ]
