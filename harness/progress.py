"""What a person sees while a run goes on: a live display on a terminal, a line a cell elsewhere. Writes to stderr."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness import plan, stats
from harness.campaign import Observer
from harness.mixed import Snapshot
from harness.schema import Phase, Record, Share


class Progress:
    """Follows a run; use as a context manager around it.

    A step is a cell, or a whole mixed phase. The ETA scales what is left by how the steps so far kept to what was
    expected; of phases that are planned later it knows nothing.
    """

    def __init__(self, phases: Sequence[Phase], console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.expected_s: dict[str, float] = {}
        self.left: list[str] = []
        self.total = 0
        self._planned(phases)
        self.begin = self.step_begin = time.monotonic()
        self.spent_s = self.planned_s = 0.0
        self.label = self.stage = self.audited = ""
        self.snapshot: Snapshot | None = None
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
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
        """Seconds until the end, as far as one can tell."""
        pace = (self.spent_s / self.planned_s) if self.planned_s else 1.0
        left_s = sum(self.expected_s[step] for step in self.left) * pace
        running_s = time.monotonic() - self.step_begin
        current_s = self.expected_s[self.left[0]] * pace if self.left else 0.0
        return left_s - min(running_s, 0.95 * current_s)

    def _planned(self, phases: Sequence[Phase]) -> None:
        for phase in phases:
            shares = [share for task in phase.tasks for share in task.shares]
            for share in shares[:1] if phase.placement else shares:
                step = phase.name if phase.placement else share.key
                self.expected_s[step] = plan.expected_s(share)
                self.left.append(step)
                self.total += 1

    def _started(self, share: Share) -> None:
        self.step_begin = time.monotonic()
        self.label, self.stage = f"{share.route.label}, {share.scenario}", "starting"
        if share.scenario == "mixed":
            self.label = "the mix, on all devices"

    def _staged(self, share: Share, stage: str) -> None:
        self.stage = f"{stage} {share.route.suite}" if share.scenario == "mixed" else stage

    def _auditing(self, record: Record) -> None:
        if record.key != self.audited:
            self.step_begin, self.audited = time.monotonic(), record.key
        self.label, self.stage = record.route.label, "comparing answers with the reference"

    def _mixing(self, snapshot: Snapshot) -> None:
        self.snapshot, self.stage = snapshot, f"{snapshot.mixes:.2f} mixes"

    def _recorded(self, record: Record) -> None:
        step = record.phase if record.scenario == "mixed" else record.key
        if step in self.left:
            self.spent_s += time.monotonic() - self.step_begin
            self.planned_s += self.expected_s[step]
            self.left.remove(step)
            self.snapshot = None
        number = f"[{self.total - len(self.left)}/{self.total}]"
        eta = f"  (about {_clock(self.eta_s())} left)" if self.left and not self.console.is_terminal else ""
        where = "in the mix, " if record.scenario == "mixed" else ""
        self.console.print(
            f"{number} {where}{record.route.label}: {outcome(record)}{eta}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        self.step_begin = time.monotonic()

    def _render(self) -> RenderableType:
        now = time.monotonic()
        done = self.total - len(self.left)
        eta_s = self.eta_s()
        elapsed_s = now - self.begin
        share = elapsed_s / (elapsed_s + eta_s) if eta_s > 0 else 1.0
        step = Text.assemble(
            (f"[{min(done + 1, self.total)}/{self.total}] ", "dim"),
            (self.label, "bold"),
            f" · {self.stage} {_clock(now - self.step_begin)}",
        )
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=1.0, completed=share, width=40), f"elapsed {_clock(elapsed_s)}", f"ETA {_clock(eta_s)}"
        )
        return Group(step, *([_state(self.snapshot)] if self.snapshot else []), line)


def _state(snapshot: Snapshot) -> RenderableType:
    """What each device runs now, and how far each suite is."""
    grid = Table.grid(padding=(0, 3))
    for device, suite in snapshot.running.items():
        grid.add_row(device, suite or "waits", "")
    for suite, units in snapshot.units.items():
        grid.add_row(suite, f"{units:,.0f} done", f"{units / snapshot.mix_units[suite]:.2f} mixes")
    return grid


def outcome(record: Record) -> str:
    """A record in a few words."""
    if record.error:
        return f"{record.error.kind}: {record.error.message}"
    assert record.completions is not None
    if record.cut_short:
        return f"cut short, {record.cut_short.kind}: {record.cut_short.message}"
    if record.route.suite == "probe":
        return "ceilings measured"
    rate = stats.throughput_per_s(record.completions)
    figure = "–" if rate is None else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"
    return f"{figure} {record.unit}s/s at batch {record.batch}"


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
