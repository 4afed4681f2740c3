"""The progress of a run on stderr: a live display on a terminal, and one line per finished cell everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness import audit, plan
from harness.judge import stamps
from harness.judge.energy.total import Draw
from harness.mix import Snapshot
from harness.run import Observer
from harness.schema import Phase, Record, Share
from harness.text import plain

WIDE = 80  # columns; a narrower terminal has no room for a bar


class Progress:
    """Follows a run and shows its progress; a context manager around the run.

    A step is a cell or a whole mixed phase. The estimate of the remaining time scales the expected time of the steps
    that are left by the ratio of spent to expected time of the finished steps. The time that an audit takes is
    estimated from the answers that were compared before.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        later_s: float = 0.0,
        draw: Callable[[], Draw | None] = lambda: None,
        console: Console | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """later_s: the time that phases will take which are planned only during the run. draw: reads the meters."""
        self.console = console or Console(stderr=True)
        self.later_s, self.draw, self.clock_s = later_s, draw, clock_s
        self.expected_s: dict[str, float] = {}
        self.left: list[str] = []
        self.total = 0
        self._plan(phases)
        self.begin = self.step_begin = clock_s()
        self.spent_s = self.planned_s = 0.0
        self.label = self.stage = ""
        self.to_audit = self.auditing = 0
        self.audits_begin = 0.0
        self.snapshot: Snapshot | None = None
        self.drawn: Draw | None = None
        self.asked_s = float("-inf")
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_interactive:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    @property
    def observer(self) -> Observer:
        return Observer(
            self._planned, self._started, self._staged, self._recorded, auditing=self._auditing, mixing=self._mixing
        )

    def eta_s(self) -> float:
        """Estimates the seconds until the end of the run."""
        pace = (self.spent_s / self.planned_s) if self.planned_s else 1.0
        left_s = (sum(self.expected_s[step] for step in self.left) + self.later_s) * pace
        if self.auditing:
            compared = self.auditing - 1
            to_compare = max(0, self.to_audit - compared)
            return left_s + (to_compare * (self.step_begin - self.audits_begin) / compared if compared else 0)
        current_s = self.expected_s[self.left[0]] * pace if self.left else 0.0
        return left_s - min(self.clock_s() - self.step_begin, 0.95 * current_s)

    def _planned(self, phases: Sequence[Phase]) -> None:
        """Adds phases that were planned during the run."""
        self._plan(phases)
        mixed_s = sum(self.expected_s[phase.name] for phase in phases if phase.placement)
        self.later_s = max(0.0, self.later_s - mixed_s)

    def _plan(self, phases: Sequence[Phase]) -> None:
        for phase in phases:
            shares = [share for task in phase.tasks for share in task.shares]
            for share in shares[:1] if phase.placement else shares:
                step = phase.name if phase.placement else share.key
                self.expected_s[step] = plan.expected_s(share)
                self.left.append(step)
                self.total += 1

    def _started(self, share: Share) -> None:
        if self.auditing:
            self.to_audit = self.auditing = 0
        self.step_begin = self.clock_s()
        self.label, self.stage = f"{share.route.label}, {share.scenario}", "starting"
        if share.scenario == "mixed":
            self.label = "the mix, on all devices"

    def _staged(self, share: Share, stage: str) -> None:
        self.stage = f"{stage} {share.route.suite}" if share.scenario == "mixed" else stage

    def _auditing(self, record: Record) -> None:
        self.step_begin = self.clock_s()
        if not self.auditing:
            self.audits_begin = self.step_begin
        self.auditing += 1
        self.label = record.route.label
        self.stage = f"comparing answers with the reference ({self.auditing} of {max(self.auditing, self.to_audit)})"

    def _mixing(self, snapshot: Snapshot) -> None:
        self.snapshot, self.stage = snapshot, f"{snapshot.mixes:.2f} mixes"

    def _recorded(self, record: Record) -> None:
        step = record.phase if record.scenario == "mixed" else record.key
        if step in self.left:
            self.spent_s += self.clock_s() - self.step_begin
            self.planned_s += self.expected_s[step]
            self.left.remove(step)
            self.snapshot = None
        self.to_audit += audit.pending(record)
        self.step_begin = self.clock_s()
        number = f"[{self.total - len(self.left)}/{self.total}]"
        eta = f"  (about {_clock(self.eta_s())} left)" if self.left and not self.console.is_interactive else ""
        where = "in the mix, " if record.scenario == "mixed" else ""
        self.console.print(
            plain(f"{number} {where}{record.route.label}: {outcome(record)}") + eta,
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _render(self) -> RenderableType:
        now = self.clock_s()
        done = self.total - len(self.left)
        eta_s = self.eta_s()
        elapsed_s = now - self.begin
        share = elapsed_s / (elapsed_s + eta_s) if eta_s > 0 else 1.0
        step = Text.assemble(
            (f"[{min(done + 1, self.total)}/{self.total}] ", "dim"),
            (plain(self.label), "bold"),
            f" · {plain(self.stage)} {_clock(now - self.step_begin)}",
        )
        told = [f"elapsed {_clock(elapsed_s)}", f"ETA {_clock(eta_s)}"]
        if now - self.asked_s >= 1:  # reading many meters takes milliseconds, and a person looks no more often
            self.drawn, self.asked_s = self.draw(), now
        if self.drawn:
            told.append(f"{self.drawn.watts:,.1f} W, {self.drawn.boundary or 'of the metered part only'}")
        whole: RenderableType = Text(" · ".join(told))
        if self.console.width >= WIDE:
            bar = ProgressBar(total=1.0, completed=share, width=WIDE // 2)
            whole = Table.grid(padding=(0, 2))
            whole.add_row(bar, *told)
        return Group(step, *([_state(self.snapshot)] if self.snapshot else []), whole)


def _state(snapshot: Snapshot) -> RenderableType:
    """A table of what each device runs now and of the units that each suite has finished of those that are due."""
    grid = Table.grid(padding=(0, 3))
    for device, suite in snapshot.running.items():
        grid.add_row(device, suite or "idle", "")
    due_mixes = snapshot.planned_per_s * snapshot.elapsed_ns / 1e9
    for suite, units in snapshot.units.items():
        of_mix = snapshot.mix_units[suite]
        grid.add_row(suite, f"{units:,.0f} of {due_mixes * of_mix:,.0f} due", f"{units / of_mix:.2f} mixes")
    return grid


def outcome(record: Record) -> str:
    """Describes a record in a few words."""
    if record.error:
        return f"{record.error.kind}: {record.error.message}"
    assert record.completions is not None
    if record.cut_short:
        return f"cut short, {record.cut_short.kind}: {record.cut_short.message}"
    if record.scenario == "probe":
        return "roofline ceilings measured"
    rate = stamps.throughput_per_s(record.completions)
    figure = "–" if rate is None else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"
    return f"{figure} {record.unit}s/s at batch {record.batch}"


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
