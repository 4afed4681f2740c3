"""The mix at levels of load, in words and a table."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.ladder.levels import Ladder, Responses
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters import figures
from mixmark.reporters.document import Table
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN, percent, significant


class LadderSection(Section):
    def lines(self, judged: Assessment, found: Ladder) -> Iterator[tuple[str, str]]:
        yield "load", "; ".join(_in_words(found))
        for name, why in found.missing.items():
            yield f"not served: {figures.name(name)}", why
        for level in found.levels:
            for problem in level.problems:
                yield f"at {percent(level.target)}", figures.void(problem, judged.result)

    def table(self, judged: Assessment, found: Ladder) -> Table:
        return table(found)


def _in_words(ladder: Ladder) -> Iterator[str]:
    if ladder.goodput is None:
        yield "no level is shown to keep all latency limits"
    else:
        yield f"all latency limits are kept up to {percent(ladder.goodput)} load"
    if ladder.mixes_per_kwh is not None:
        yield f"{significant(ladder.mixes_per_kwh)} mixes per kWh over the ladder, the ready idle included"
    if ladder.idle_over_full is not None:
        yield f"ready idle takes {percent(ladder.idle_over_full)} of the power of full load"
    if ladder.watts is None:
        yield "nothing meters the power"


def table(ladder: Ladder) -> Table:
    """The full load, each level, and the machine at rest."""
    suites = [each.suite for each in ladder.levels[0].responses] if ladder.levels else []
    unknown = [UNKNOWN] * (len(suites) + 1)
    rows: list[tuple[str, ...]] = [("100 %", UNKNOWN, *_rates(ladder.mixes_per_hour.estimate, ladder.watts), *unknown)]
    for level in ladder.levels:
        rates = _rates(level.run.mixes_per_hour.estimate, level.run.total.watts)
        kept = {True: "kept", False: "broken", None: "too few"}[level.keeps_limits]
        responses = [_response(each) for each in level.responses]
        limits = "void" if level.problems else kept
        rows.append((percent(level.target), percent(level.actual), *rates, *responses, limits))
    for name, watts in (("ready idle", ladder.ready_watts), ("bare idle", ladder.bare_watts)):
        if watts is not None:
            rows.append((name, UNKNOWN, *_rates(0.0, watts), *unknown))
    header = ("load", "actual", "mix/h", "power", "mix/kWh", *map(figures.name, suites), "limits")
    return Table(
        "Response times over the load, median / p90; actual counts no late request", header, rows, text_columns=1
    )


def _rates(mixes_per_hour: float, watts: float | None) -> tuple[str, str, str]:
    power = UNKNOWN if watts is None else figures.prefixed(watts, "W")
    per_kwh = significant(mixes_per_hour * 1000 / watts) if mixes_per_hour and watts else UNKNOWN
    return significant(mixes_per_hour), power, per_kwh


def _response(found: Responses) -> str:
    return " / ".join(UNKNOWN if ns is None else figures.duration(ns) for ns in (found.p50_ns, found.p90_ns))
