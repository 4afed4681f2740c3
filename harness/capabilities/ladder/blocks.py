"""The mix at levels of load, in words, a table and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mixmark.harness.capabilities.ladder.levels import Ladder, Level, Responses
from mixmark.harness.contracts.schema import BY_PLAN, Result
from mixmark.harness.plugins.experiments import fact
from mixmark.reporters import charts, figures
from mixmark.reporters.document import Chart, Table
from mixmark.reporters.figures import UNKNOWN, percent, significant


def lines(ladder: Ladder, result: Result) -> Iterator[tuple[str, str]]:
    yield "load", "; ".join(_in_words(ladder))
    for name, why in ladder.missing.items():
        yield f"not served: {figures.name(name)}", why
    for level in ladder.levels:
        for problem in level.problems:
            yield f"at {_name(level)}", figures.void(problem, result)


def _in_words(ladder: Ladder) -> Iterator[str]:
    if ladder.goodput is None:
        yield "no level is shown to keep all latency limits"
    else:
        yield f"all latency limits are kept up to {percent(ladder.goodput)} load"
    if ladder.mixes_per_kwh is not None:
        yield f"{significant(ladder.mixes_per_kwh)} mixes per kWh over the ladder, the ready idle included"
    if ladder.idle_over_full is not None:
        idle = f"ready idle takes {percent(ladder.idle_over_full)} of the power of full load"
        yield idle if ladder.departure is None else f"{idle}, the power departs from the line by {_signed(ladder)}"
    if ladder.watts is None:
        yield "nothing meters the power"


def _signed(ladder: Ladder) -> str:
    return f"{(ladder.departure or 0.0) * 100:+.1f} %"


def table(ladder: Ladder, result: Result) -> Table:
    """The full load, each level, and the machine at rest."""
    metered = ladder.watts is not None
    by = bool(fact(result, "policies", "policies", ()))
    suites = [each.suite for each in ladder.levels[0].responses] if ladder.levels else []
    unknown = [UNKNOWN] * (len(suites) + 1)
    full = _rates(ladder.mixes_per_hour.estimate, ladder.watts, metered)
    rows: list[tuple[str, ...]] = [("100 %", *[BY_PLAN] * by, UNKNOWN, *full, *unknown)]
    for level in ladder.levels:
        rates = _rates(level.run.mixes_per_hour.estimate, level.run.total.watts, metered)
        kept = {True: "kept", False: "broken", None: "too few"}[level.keeps_limits]
        responses = [_response(each) for each in level.responses]
        names = (percent(level.target), *[figures.name(level.policy)] * by, percent(level.actual))
        rows.append((*names, *rates, *responses, "void" if level.problems else kept))
    for name, watts in (("ready idle", ladder.ready_watts), ("bare idle", ladder.bare_watts)):
        if watts is not None:
            rows.append((name, *[UNKNOWN] * by, UNKNOWN, *_rates(0.0, watts, metered), *unknown))
    power = ("power", "mix/kWh") if metered else ()
    header = ("load", *["policy"] * by, "actual", "mix/h", *power, *map(figures.name, suites), "limits")
    return Table("Response times over the load, median / p90", header, rows, text_columns=1 + by)


def _name(level: Level) -> str:
    by = "" if level.policy == BY_PLAN else f" by {figures.name(level.policy)}"
    return f"{percent(level.target)}{by}"


def _rates(mixes_per_hour: float, watts: float | None, metered: bool) -> tuple[str, ...]:
    """metered: whether any row has a power."""
    per_kwh = _per_kwh(mixes_per_hour, watts)
    power = UNKNOWN if watts is None else figures.prefixed(watts, "W")
    return (significant(mixes_per_hour), *((power, significant(per_kwh) if per_kwh else UNKNOWN) if metered else ()))


def _response(found: Responses) -> str:
    return " / ".join(UNKNOWN if ns is None else figures.duration(ns) for ns in (found.p50_ns, found.p90_ns))


def charts_of(ladder: Ladder) -> list[Chart]:
    """Charts of the power and of the efficiency over the load, if they are known, and of the response times."""
    if len(ladder.of()) < 2:
        return []
    levels = ladder.of()
    watts = [(level.actual, level.run.total.watts) for level in levels]
    watts += [(1.0, ladder.watts), (0.0, ladder.ready_watts)]
    found = [_chart("power", "Power over the load", watts, "W", lambda value: figures.prefixed(value, "W"))]
    per_kwh = [(level.actual, _per_kwh(level.run.mixes_per_hour.estimate, level.run.total.watts)) for level in levels]
    per_kwh.append((1.0, _per_kwh(ladder.mixes_per_hour.estimate, ladder.watts)))
    found.append(_chart("efficiency", "Efficiency over the load", per_kwh, "mixes per kWh", significant))
    for index, suite in enumerate(each.suite for each in levels[0].responses):
        responses = [(level.actual, level.responses[index].p50_ns) for level in levels]
        seconds = [(at, None if ns is None else ns / 1e9) for at, ns in responses]
        title = f"Median response time of {figures.name(suite)} over the load"
        found.append(_chart(f"response{index}", title, seconds, "s", lambda value: figures.duration(value * 1e9)))
    return [each for each in found if each is not None]


def _per_kwh(mixes_per_hour: float, watts: float | None) -> float | None:
    return mixes_per_hour * 1000 / watts if watts else None


def _chart(
    key: str,
    title: str,
    points: Sequence[tuple[float, float | None]],
    unit: str,
    text: Callable[[float], str],
) -> Chart | None:
    known = sorted((at * 100, value) for at, value in points if value is not None)
    if len(known) < 2:
        return None
    return Chart(title, charts.over_percent(f"load-{key}", title, known, unit, text, "load"))
