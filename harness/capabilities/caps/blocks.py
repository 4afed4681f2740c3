"""The mix with less power, in words, a table and charts."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.caps.frontier import CappedRun, Frontier
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.energy.total import unmeasured
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.reporters import figures
from mixmark.reporters.document import Table
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN, percent, significant

STATES = {True: "exceeded", False: "shown by a meter", None: "not metered"}
LACKS = {
    True: "a device drew more than its cap, so this cap does not count",
    None: "no meter shows what the devices drew, so this cap does not count",
}


class CapsSection(Section):
    def lines(self, judged: Assessment, found: Frontier) -> Iterator[tuple[str, str]]:
        """Where the machine does the most per joule, and the caps that tell nothing."""
        yield "less power", _in_words(found)
        for run in found.runs:
            for problem in run.run.problems:
                yield f"at {percent(run.cap)} power", figures.void(problem, judged.result)
            if run.exceeded is not False:
                yield f"at {percent(run.cap)} power", LACKS[run.exceeded]
        for why in found.missing:
            yield "not run", why

    def table(self, judged: Assessment, found: Frontier) -> Table:
        return table(found)


def _in_words(found: Frontier) -> str:
    if found.best is None:
        totals = {"100 %": found.full.total} | {percent(run.cap): run.run.total for run in found.runs}
        return f"the best cap is not known: {unmeasured(totals) or 'it needs MX and a cap that counts'}"
    if found.best == 1:
        return "no cap does more mixes per kWh than all power"
    best = next(run.run for run in found.runs if run.cap == found.best)
    return f"the most mixes per kWh at {percent(found.best)}: {_beside(best, found.full)}"


def _beside(run: ScoredRun, full: ScoredRun) -> str:
    """The gain of a run over all power, and its price. Both have MX."""
    assert run.mixes_per_kwh is not None and full.mixes_per_kwh is not None  # the caller has checked it
    gain = run.mixes_per_kwh.estimate / full.mixes_per_kwh.estimate
    pace = run.mixes_per_hour.estimate / full.mixes_per_hour.estimate
    return f"{significant(gain)} × those at all power, at {significant(pace)} × its mixes per hour"


def table(found: Frontier) -> Table:
    """All power, and each cap."""
    rows = [("100 %", *_figures(found.full), UNKNOWN)]
    rows += [(percent(run.cap), *_figures(run.run), _state(run)) for run in found.runs]
    return Table("Less power", ("power cap", "mix/h", "power", "mix/kWh", "J/mix", "cap"), rows)


def _state(run: CappedRun) -> str:
    return "void" if run.run.problems else STATES[run.exceeded]


def _figures(run: ScoredRun) -> tuple[str, ...]:
    watts, joules = run.total.watts, run.total.joules
    return (
        significant(run.mixes_per_hour.estimate),
        UNKNOWN if watts is None else figures.prefixed(watts, "W"),
        significant(run.mixes_per_kwh.estimate) if run.mixes_per_kwh else UNKNOWN,
        figures.prefixed(joules / run.mixes, "J") if joules is not None and run.mixes else UNKNOWN,
    )
