"""The progress of a run on stderr: a live display on a terminal, and one line per finished phase everywhere."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from statistics import fmean
from types import TracebackType

from rich import progress as bars
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mixmark.harness.cli.eta import Eta
from mixmark.harness.contracts.numbers import rate_unit, significant
from mixmark.harness.contracts.schema import Found, Phase, Record, Result
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.mixed_run import HOUR_S
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.measure import audit, experiments
from mixmark.harness.measure.benchmark import Audited, AuditStarted, Event, Observer, Planned, Recorded, Scored
from mixmark.harness.measure.executor import PhaseStarted, StageStarted
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.measure.stages import stage_of
from mixmark.harness.plan import presets
from mixmark.harness.resources import clock
from mixmark.reporters.experiments import section_of

BAR_COLUMNS = 60  # at most
TIMES_COLUMNS = 30  # beside the bar: the time passed and the time left
LONG_S = 120  # a run that is expected to take longer says how long it takes
LINE_EVERY_S = 60  # without a terminal, so that a long phase is not taken for a hang
COMPARING = "comparing with the reference"


class Progress:
    """Follows a run and shows its progress; a context manager that gives the observer of the run."""

    def __init__(
        self,
        header: Result,
        metered: bool = False,
        console: Console | None = None,
        clock_s: Callable[[], float] = clock.now_s,
    ) -> None:
        """metered: whether meters read the idle machine around each phase."""
        self.console = console or Console(stderr=True)
        self.clock_s = clock_s
        self.rests = metered and presets.of(header.preset, header.tier).idle_s > 0
        self.eta = Eta(header, metered)
        self.units = {suite.name: suite.unit_names.short for suite in header.suites}
        self.shown = 0.0  # fraction of the expected time that is shown; it never decreases
        first = [each.first for each in experiments.of(header) if each.first]
        self.label = first[0] if first and not header.records else ""
        self.stage = "measuring" if self.label else ""
        self.whole = "mixes"
        """What the phase counts."""
        self.pending = {record.key for record in header.records if audit.pending(record)}
        self.audited: list[Record] = []
        """The records whose audits are over since the last phase."""
        self.snapshot: MixSnapshot | None = None
        self.line_s = clock_s()
        self._begin(self.eta.before_s)
        self.column = bars.BarColumn()
        columns = (self.column, bars.TimeElapsedColumn(), "passed", bars.TimeRemainingColumn(), "left")
        self.bar = bars.Progress(*columns, console=self.console, get_time=clock_s, speed_estimate_period=1e9)
        self.task = self.bar.add_task("", total=self.eta.total_s, completed=int(self.eta.done_s))
        self.live = Live(console=self.console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def __enter__(self) -> Observer:
        if (left_s := self.eta.total_s - self.eta.done_s) >= LONG_S:
            takes = f"takes about {left_s / 60:.0f} minutes, longer on a slow or busy machine"
            self.console.print(f"mixmark: this run {takes}", highlight=False)
        if self.console.is_interactive:
            self.live.start()
        return self.notify

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def notify(self, event: Event) -> None:
        """The observer of the run."""
        match event:
            case Planned():
                self.eta.plan(event.phases)
                if event.repeats:
                    disturbed, why = event.repeats
                    self._print(f"{disturbed} was disturbed, so the mix is run once more: {words(why)}")
                self._expect_mix(event.phases)
            case PhaseStarted(phase=phase):
                self.eta.first_phase()
                self._begin(self.eta.seconds("phase", phase.name))
                self.label, self.whole = stage_of(phase).label(phase), stage_of(phase).bundles
                self.stage = "starting"
            case StageStarted(share=share, stage=stage):
                self.stage = f"{stage} {share.route.suite}" if share.scenario == "mixed" else stage
                self._report_stage()
            case MixSnapshot():
                self.snapshot, self.stage = event, _done(event, self.whole)
                self._report_stage()
            case Found(experiment=name):
                self._print(section_of(name).said(event))
            case Recorded(record=record):
                self._recorded(record)
            case AuditStarted(record=record):
                self._begin(self.eta.seconds("audit", record.key))
                self.label, self.stage = COMPARING, f"{record.route.suite} by {record.route.adapter}"
                self._report_stage()
            case Audited(record=record):
                self._audited(record)
            case Scored(result=result):
                judged = judge(result.model_copy(update={"finished": True, "live": False}))
                if score := judged.score:
                    said = f"{score.headline}. Verdict: {judged.verdict.word}"
                    self._print(f"{said}. Each suite alone comes next; Ctrl-C keeps the score")

    def _expect_mix(self, phases: Sequence[Phase]) -> None:
        """Says before the first mixed phase what the plan expects of it: the first figure of a run."""
        for phase in phases:
            if phase.purpose == "mixed" and phase.placement and phase.shares[0].run == 1:
                per_hour = significant(phase.placement.mixes_per_s * HOUR_S)
                self._print(f"about {per_hour} mixes per hour expected by these rates; now measured")

    def _recorded(self, record: Record) -> None:
        self.snapshot = None
        self.eta.record(record)
        if audit.pending(record):
            self.pending.add(record.key)
        self._begin(0.0)
        self.stage = "the meters read the idle machine" if self.rests else "ending"
        phase = next(each for each in self.eta.run.result.phases if each.name == record.phase)
        label = ", ".join(filter(None, (stage_of(phase).prefix(phase), record.route.label)))
        self._print(f"{label}: {self._outcome(record)}")

    def _audited(self, record: Record) -> None:
        if record.key not in self.pending:
            return  # an accelerator's audit that the CPU repeated
        self.pending.remove(record.key)
        self.eta.record(record)
        self._begin(0.0)
        self.audited.append(record)
        if not self.pending:
            why = next((each.unaudited for each in reversed(self.audited) if each.unaudited), "")
            compared = [each for each in self.audited if not each.unaudited]
            agree = sum(each.audit is not None and each.audit.passed for each in compared)
            others = f"; the others could not be compared: {why}" if why else ""
            agreed = f"outputs compared with the reference: {agree} of {len(compared)} agree{others}"
            self._print(agreed if compared else f"no output could be compared: {why}")
            self.audited = []

    def _outcome(self, record: Record) -> str:
        """Describes a record in a few words."""
        if record.error:
            hint = f" ({record.error.hint})" if record.error.hint else ""
            return f"{record.error.kind}: {record.error.message}{hint}"
        assert record.completions is not None
        if record.cut_short:
            return f"cut short, {record.cut_short.kind}: {record.cut_short.message}"
        if record.scenario == "probe":
            return "hardware limits measured"
        rate = timestamps.rate_per_s(record)
        figure = "–" if rate is None else f"{'about ' if record.screening else ''}{significant(rate)}"
        return f"{figure} {rate_unit(self.units.get(record.route.suite, f'{record.unit}s'))}"

    def _begin(self, expected_s: float) -> None:
        """Another step begins. expected_s: of the step; 0 if it is not known yet."""
        self.began_s, self.expected_s = self.clock_s(), expected_s

    def _report_stage(self) -> None:
        """Prints the stage of a long phase every LINE_EVERY_S if there is no live display."""
        if not self.console.is_interactive and self.clock_s() - self.line_s >= LINE_EVERY_S:
            self._print(f"{self.label}: {self.stage}")

    def _print(self, words: str) -> None:
        """Prints a text within the width of the terminal, without a break inside a word."""
        self.line_s = self.clock_s()
        self.console.print(self._wrapped(words, self._part()), highlight=False, markup=False, soft_wrap=True)

    def _part(self) -> str:
        """The part of the run that is over: all of it only when nothing is left to do."""
        self.shown = max(self.shown, self._done_s() / self.eta.total_s)
        most = 100 if math.isclose(self.eta.done_s, self.eta.total_s) else 99
        return f"[{min(self.shown * 100, most):3.0f} %]"

    def _done_s(self) -> float:
        """The expected seconds of all that is over, and of the step that goes on."""
        return self.eta.done_s + min(self._passed_s(), self.expected_s)

    def _passed_s(self) -> float:
        """The expected seconds that the step has taken. rich knows how many of them were done per second."""
        return (self.clock_s() - self.began_s) * (self.bar.tasks[0].speed or 1.0)

    def _is_late(self) -> bool:
        """Whether the step takes longer than expected, by more than a hundredth of the run."""
        return 0 < self.expected_s < self._passed_s() - 0.01 * self.eta.total_s

    def _wrapped(self, text: str, first: str) -> str:
        """The first word and the text, on as many lines as the width needs."""
        lines = textwrap.wrap(
            plain(text), self.console.width - len(first) - 1, break_long_words=False, break_on_hyphens=False
        )
        return "\n".join(f"{before} {line}" for before, line in zip_longest([first], lines, fillvalue=" " * len(first)))

    def _render(self) -> RenderableType:
        now_s, part = self.clock_s(), self._part()
        stage = f"{self.stage}, {_clock(now_s - self.began_s)}{', longer than expected' * self._is_late()}"
        return Group(
            Text(self._wrapped(self.label, part), "bold"),
            Text(self._wrapped(stage, " " * len(part))),
            *([_state(self.snapshot, self.whole)] if self.snapshot else []),
            self._bar(),
        )

    def _bar(self) -> RenderableType:
        """The bar and the ETA: rich divides the remaining expected seconds by those done per second. There is no ETA
        while a step takes longer than expected."""
        self.bar.tasks[0].total = None if self._is_late() else self.eta.total_s  # `update` would forget the speed
        self.bar.update(self.task, completed=min(self._done_s(), 0.99 * self.eta.total_s))
        self.column.bar_width = max(1, min(BAR_COLUMNS, self.console.width - TIMES_COLUMNS))
        return self.bar.get_renderable()


def _done(snapshot: MixSnapshot, whole: str) -> str:
    """The work that is done, and how much the suite has that is furthest behind: its first feed may end last."""
    done = fmean(snapshot.units.get(suite, 0.0) / units for suite, units in snapshot.mix_units.items())
    return f"work for {done:.2f} {whole}; slowest suite {snapshot.mixes:.2f}"


def _clock(seconds: float) -> str:
    """Minutes and seconds: 75:09."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _state(snapshot: MixSnapshot, whole: str) -> RenderableType:
    """A table of what each device runs now and of the units that each suite has finished of the units that are due."""
    grid = Table.grid(padding=(0, 3))
    for device, suite in snapshot.running.items():
        grid.add_row(device, suite or "idle", "")
    due_mixes = snapshot.planned_per_s * snapshot.elapsed_ns / 1e9
    for suite, units in snapshot.units.items():
        of_mix = snapshot.mix_units[suite]
        grid.add_row(suite, f"{units:,.0f} of {due_mixes * of_mix:,.0f} due", f"{units / of_mix:.2f} {whole}")
    return grid
