"""The progress of a run on stderr: a live display on a terminal, and one line per finished step everywhere."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mixmark.harness.cli.eta import Pace, clock
from mixmark.harness.contracts.schema import Phase, Record, Result, Share
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.measure import audit
from mixmark.harness.measure.benchmark import Observer, Procedure
from mixmark.harness.measure.mixed import Snapshot

WIDE = 60  # columns of the bar where the terminal has them
QUIET_S = 60  # a file gets a line at least about so often, so that a long step is not taken for a hang
COMPARING = "comparing with the reference"
RESTING = "resting: the meters read the idle machine"


class Progress:
    """Follows a run and shows its progress; a context manager around the run.

    A step is a cell, the comparison of answers with the reference, all routes that are measured once more, or a mixed
    phase. What is told of the time left is decided in `cli.eta`.
    """

    def __init__(
        self,
        header: Result,
        how: Procedure,
        past: Mapping[str, float] | None = None,
        metered: bool = False,
        draw: Callable[[], CurrentPower | None] = lambda: None,
        console: Console | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """past: the seconds that pieces of past runs took. metered: whether meters rest. draw: reads the meters."""
        self.console = console or Console(stderr=True)
        self.draw, self.clock_s = draw, clock_s
        waiting = {record.key for record in header.records if audit.pending(record)}
        self.pace = Pace(header, how, waiting, metered, past or {}, clock_s())
        self.units = {suite.name: suite.unit_names.short for suite in header.suites}
        self.purposes: dict[str, str] = {phase.name: phase.purpose for phase in header.phases}
        self.label = self.stage = ""
        self.agreed = self.compared = 0
        """How many records of this step were compared with the reference, and how many of them agreed with it."""
        self.snapshot: Snapshot | None = None
        self.drawn: CurrentPower | None = None
        self.asked_s = float("-inf")
        self.line_s = clock_s()
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
            planned=self._planned,
            started=self._started,
            stage=self._staged,
            recorded=self._recorded,
            auditing=self._auditing,
            audited=self._audited,
            mixing=self._mixing,
        )

    def _planned(self, phases: Sequence[Phase]) -> None:
        self.purposes |= {phase.name: phase.purpose for phase in phases}
        self.pace.planned(phases, self.clock_s())

    def _started(self, share: Share) -> None:
        self.pace.enter("prepare", share.key, self.clock_s())
        self.label = f"{share.route.label}, {share.scenario}"
        self.stage = "starting"
        if share.scenario == "mixed":
            self.label = "the mix, on all devices"

    def _staged(self, share: Share, stage: str) -> None:
        mixed = share.scenario == "mixed"
        self.pace.enter("measure" if stage == "measuring" and not mixed else "prepare", share.key, self.clock_s())
        self.stage = f"{stage} {share.route.suite}" if mixed else stage
        self._murmur()

    def _mixing(self, snapshot: Snapshot) -> None:
        if self.snapshot is None:
            self.pace.enter("mix", "mix", self.clock_s())
        self.snapshot, self.stage = snapshot, f"{snapshot.mixes:.2f} mixes"
        self._murmur()

    def _recorded(self, record: Record) -> None:
        self.snapshot = None
        number = self.pace.step_of(record.phase)
        self.pace.recorded(record, audit.pending(record), self.clock_s())
        before = {"mixed": "in the mix, ", "confirmation": "once more, ", "screening": "screening run, "}
        before["scaling"] = "in the mix on a part of the hosts, "
        where = before.get(self.purposes.get(record.phase, ""), "")
        self._say(f"{where}{record.route.label}: {self._outcome(record)}", number, tell=record.scenario != "mixed")
        self._await()

    def _auditing(self, record: Record) -> None:
        self.pace.enter("compare", record.key, self.clock_s())
        self.label, self.stage = COMPARING, f"{record.route.suite} by {record.route.adapter}"
        self._murmur()

    def _audited(self, record: Record) -> None:
        number = self.pace.step
        self.compared += 1
        self.agreed += record.audit is not None and record.audit.passed
        self.pace.compared(record, self.clock_s())
        if self.pace.step != number or not self.pace.left:
            self._say(f"answers compared with the reference: {self.agreed} of {self.compared} agree", number)
            self.agreed = self.compared = 0
        self._await()

    def _outcome(self, record: Record) -> str:
        """Describes a record in a few words."""
        if record.error:
            hint = f" ({record.error.hint})" if record.error.hint else ""
            return f"{record.error.kind}: {record.error.message}{hint}"
        assert record.completions is not None
        if record.cut_short:
            return f"cut short, {record.cut_short.kind}: {record.cut_short.message}"
        if record.scenario == "probe":
            return "ceilings known"
        rate = timestamps.rate_per_s(record)
        figure = "–" if rate is None else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"
        return f"{figure} {self.units.get(record.route.suite, f'{record.unit}s')}/s"

    def _await(self) -> None:
        """Says what is done until the next event, if it is known: the machine rests, or a reference is loaded."""
        if self.pace.left and self.pace.left[0].kind == "reference":
            self.label, self.stage = COMPARING, f"loading the reference of {self.pace.left[0].about}"
        elif self.pace.left and self.pace.left[0].kind == "rest":
            self.stage = RESTING

    def _murmur(self) -> None:
        """Where no display is live, says now and then how a long step goes on."""
        if not self.console.is_interactive and self.clock_s() - self.line_s >= QUIET_S:
            self._say(f"{self.label}: {self.stage}", self.pace.step)

    def _say(self, words: str, number: int, tell: bool = True) -> None:
        """Writes a line, as narrow as the terminal, without a break inside a word."""
        self.line_s = self.clock_s()
        tell = tell and bool(self.pace.left) and not self.console.is_interactive
        left = f", {self.pace.told(self.line_s)}" if tell else ""
        line = self._wrapped(f"{words}{left}", self._number(number))
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _number(self, step: int) -> str:
        return f"[{step}/{self.pace.total}]"

    def _wrapped(self, text: str, number: str) -> str:
        """The number and the text behind it, on as many lines as the width needs."""
        lines = textwrap.wrap(
            plain(text), self.console.width - len(number) - 1, break_long_words=False, break_on_hyphens=False
        )
        return "\n".join(
            f"{before} {line}" for before, line in zip_longest([number], lines, fillvalue=" " * len(number))
        )

    def _render(self) -> RenderableType:
        now_s = self.clock_s()
        number = self._number(self.pace.step)
        late = ", longer than expected" if self.pace.late(now_s) else ""
        stage = f"{self.stage}, {clock(now_s - self.pace.piece_s)}{late}"
        told = [f"{clock(now_s - self.pace.begin_s)} passed", str(self.pace.told(now_s))]
        if now_s - self.asked_s >= 1:  # reading many meters takes milliseconds, and a person looks no more often
            self.drawn, self.asked_s = self.draw(), now_s
        if self.drawn:
            told.append(f"{self.drawn.watts:,.1f} W, {self.drawn.boundary or 'of the metered part only'}")
        bar = Table.grid()  # a bar alone ends no line
        bar.add_row(ProgressBar(total=1.0, completed=self.pace.share(now_s), width=min(WIDE, self.console.width)))
        return Group(
            Text(self._wrapped(self.label, number), "bold"),
            Text(self._wrapped(stage, " " * len(number))),
            *([_state(self.snapshot)] if self.snapshot else []),
            bar,
            Text(" · ".join(told)),
        )


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
