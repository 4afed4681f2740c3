"""What a person sees while a run goes on: a live display on a terminal, a line a cell elsewhere. Writes to stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from harness import stats
from harness.run import Observer
from harness.schema import Record, Share


class Progress:
    """Follows a run; use as a context manager around it.

    expected_s: by share key. The ETA scales what is left by how the cells so far kept to what was expected.
    """

    def __init__(
        self, shares: Sequence[Share], expected_s: Mapping[str, float], console: Console | None = None
    ) -> None:
        self.console = console or Console(stderr=True)
        self.expected_s = expected_s
        self.left = [share.key for share in shares]
        self.total = len(shares)
        self.begin = self.cell_begin = time.monotonic()
        self.spent_s = self.planned_s = 0.0
        self.label = self.stage = self.audited = ""
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
        return Observer(self._started, self._staged, self._auditing, self._recorded)

    def eta_s(self) -> float:
        """Seconds until the end, as far as one can tell."""
        pace = (self.spent_s / self.planned_s) if self.planned_s else 1.0
        left_s = sum(self.expected_s[key] for key in self.left) * pace
        running_s = time.monotonic() - self.cell_begin
        current_s = self.expected_s[self.left[0]] * pace if self.left else 0.0
        return left_s - min(running_s, 0.95 * current_s)

    def _started(self, share: Share) -> None:
        self.cell_begin = time.monotonic()
        self.label, self.stage = f"{share.route.label}, {share.scenario}", "starting"

    def _staged(self, share: Share, stage: str) -> None:
        self.stage = stage

    def _auditing(self, record: Record) -> None:
        if record.key != self.audited:
            self.cell_begin, self.audited = time.monotonic(), record.key
        self.label, self.stage = record.route.label, "comparing answers with the reference"

    def _recorded(self, record: Record) -> None:
        self.spent_s += time.monotonic() - self.cell_begin
        self.planned_s += self.expected_s[record.key]
        self.left.remove(record.key)
        number = f"[{self.total - len(self.left)}/{self.total}]"
        eta = f"  (about {_clock(self.eta_s())} left)" if self.left and not self.console.is_terminal else ""
        self.console.print(
            f"{number} {record.route.label}: {outcome(record)}{eta}", highlight=False, markup=False, soft_wrap=True
        )
        self.cell_begin = time.monotonic()

    def _render(self) -> RenderableType:
        now = time.monotonic()
        done = self.total - len(self.left)
        eta_s = self.eta_s()
        elapsed_s = now - self.begin
        share = elapsed_s / (elapsed_s + eta_s) if eta_s > 0 else 1.0
        cell = Text.assemble(
            (f"[{min(done + 1, self.total)}/{self.total}] ", "dim"),
            (self.label, "bold"),
            f" · {self.stage} {_clock(now - self.cell_begin)}",
        )
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=1.0, completed=share, width=40), f"elapsed {_clock(elapsed_s)}", f"ETA {_clock(eta_s)}"
        )
        return Group(cell, line)


def outcome(record: Record) -> str:
    """A record in a few words."""
    if record.error:
        return f"{record.error.kind}: {record.error.message}"
    assert record.completions is not None
    if record.route.suite == "probe":
        return "ceilings measured"
    rate = stats.throughput_per_s(record.completions)
    figure = "–" if rate is None else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"
    return f"{figure} {record.unit}s/s at batch {record.batch}"


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
