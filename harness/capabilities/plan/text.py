"""The predictions of the planner as documents. Each part says that they are predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mixmark.harness.capabilities.plan.catalogue import Checked
from mixmark.harness.capabilities.plan.machine import Answer
from mixmark.harness.capabilities.plan.outlook import Outlook
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import bare, counted, percent, prefixed, significant
from mixmark.reporters import charts
from mixmark.reporters.document import Block, Chart, Document, Facts, Heading, Notes, Paragraph, Table, drawing
from mixmark.reporters.pictures import Bar

TITLES = {
    "cheapest": "Cheapest machine for the work",
    "most": "Most work",
    "efficient": "Most work per kilowatt-hour",
}
ASSUMED_COLUMNS = ("device", "suite", "computed with", "at most")
NEVER_RANKED = "PREDICTED from solo rates at full load, not measured and never ranked."


def plan(outlook: Outlook, work: str, units: Mapping[str, str]) -> Document:
    """The plan as a document. work: the mix in words. units: the short names of the units of its suites."""
    return Document(NEVER_RANKED, "", list(_blocks(outlook, work, units)))


def _blocks(outlook: Outlook, work: str, units: Mapping[str, str]) -> Iterator[Block]:
    kept = outlook.retained
    if kept.runs:
        yield Paragraph(
            f"Mixed runs retained {significant(kept.estimate)} of their plan ({significant(kept.low)} to "
            f"{significant(kept.high)} in {counted(kept.runs, 'run')}), which the figures include."
        )
    else:
        yield Paragraph("No mixed run shows what a machine retains of its plan, so the figures are upper bounds.")
    yield Paragraph(f"The work of an hour: {work}" if outlook.own_work else f"One mix {outlook.mix}: {work}")
    for name, figures in outlook.declared.items():
        yield Paragraph(f"Declared, not measured: {', '.join(figures).replace('_', ' ')} of {name}")
    if outlook.assumed:
        yield Table("Assumed: nobody measured these devices", ASSUMED_COLUMNS, list(_assumed(outlook, units)), 3)
        for kind, assumption in outlook.assumed.items():
            yield Paragraph(f"{kind}: {assumption.source}")
    if today := outlook.today:
        yield Paragraph(f"Today: {_counts(today)}: {', '.join(filter(None, _does(outlook, today)))}")
    if outlook.answers:
        yield _chart(outlook)
    titles: dict[tuple[tuple[str, str], ...], str] = {}
    for answer in outlook.answers:
        title, facts = TITLES[answer.question], tuple(_answer(outlook, answer))
        yield Heading(f"{title}, predicted ({_proof(answer)})")
        alone = [("alone", _alone(outlook, answer))] if outlook.alone and not titles else []
        yield Facts([("the same as", titles[facts].lower())] if facts in titles else [*facts, *alone])
        titles.setdefault(facts, title)
    if outlook.front:
        yield Heading("Predicted machines that no other beats in work, price and power at once")
        rows = [(_counts(answer), *_does(outlook, answer)) for answer in outlook.front]
        yield Table("", ("machine", "does", "price", "power"), rows)
    questions = [("not answered", TITLES[question].lower(), why) for question, why in outlook.not_answered.items()]
    yield Notes([*questions, *(("left out", name, why) for name, why in outlook.left_out)])


def _chart(outlook: Outlook) -> Chart:
    """The machines of the plan side by side, with the demand as the limit."""
    machines = [("Today", outlook.today)] if outlook.today else []
    machines += [(TITLES[answer.question], answer) for answer in outlook.answers]
    machines += [(f"{name} alone", answer) for name, answer in outlook.alone.items()]
    beaten_by_none = [(_counts(answer), answer) for answer in outlook.front]
    ends = [answer.mixes_per_hour.ends[1] for _, answer in (*machines, *beaten_by_none)]
    most = max(outlook.demand or 0.0, *ends)

    def bar(label: str, answer: Answer) -> Bar:
        work, (_, *costs) = answer.mixes_per_hour, _does(outlook, answer)
        low, high = map(significant, work.ends)
        detail = ", ".join(filter(None, (f"{low} to {high}", _counts(answer).removeprefix(label), *costs)))
        drawn = charts.bar(work.estimate, work.ends, outlook.demand, most, hue=0)
        return Bar(label, significant(work.estimate), detail, drawn)

    groups = [("", machines), ("No other beats these in work, price and power at once", beaten_by_none)]
    unit = "multiples of the demand" if outlook.own_work else "mixes per hour"
    demand = " A line marks the demand." if outlook.demand else ""
    remark = f"At full load, on a scale from zero.{demand} Whiskers: every rate at its low or its high end."
    drawn = [(title, [bar(*each) for each in rows]) for title, rows in groups if rows]
    return drawing(f"Predicted work in {unit}", "bars", remark, drawn)


def _assumed(outlook: Outlook, units: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """A row of each rate that nobody measured."""
    for kind, assumption in outlook.assumed.items():
        for suite in outlook.mix_units:
            basis = assumption.suites.get(suite)
            if basis is None:
                yield kind, suite, "no rate", ""
            elif basis.at_most is None:
                yield kind, suite, basis.limit or "the declared rate", ""
            else:
                part = f"{percent(assumption.fraction)} of the bound"
                at_most = f"{significant(basis.at_most)} {units.get(suite, 'units')}/s"
                yield kind, suite, f"{part} by {basis.limit}", at_most


def _does(outlook: Outlook, answer: Answer) -> tuple[str, str, str]:
    """(work, price, power). Empty if it is not known."""
    does = f"{_range(answer.mixes_per_hour)} {_unit(outlook)}"
    price = "" if answer.price is None or not (answer.price or outlook.currency) else _money(outlook, answer.price)
    return does, price, "" if answer.watts is None else prefixed(answer.watts, "W")


def _answer(outlook: Outlook, answer: Answer) -> Iterator[tuple[str, str]]:
    for kind, count in answer.counts.items():
        parts = {suite: time[kind] / count for suite, time in answer.time.items() if kind in time}
        words = ", ".join(f"{suite} {percent(part)}" for suite, part in parts.items())
        yield f"{count} × {kind}", f"{words} of the time" if words else "hosts the others"
    does, price, power = _does(outlook, answer)
    yield "does", does
    if price:
        yield "price", price
    if power:
        yield "power", f"{power} while it does {_work(outlook, answer.planned_per_hour)}"
    if outlook.energy and answer.energy_cost is not None:
        years = f"{bare(outlook.energy.years)} {'year' if outlook.energy.years == 1 else 'years'}"
        mean = outlook.energy.mean_load
        load = f", {percent(mean)} of this work on average" if mean < 1 else ""
        cost = f"{_money(outlook, answer.energy_cost)} in {years} at {bare(outlook.energy.per_kwh)} per kWh"
        yield "energy", f"{cost}{load}"
        if answer.price is not None:
            yield "price and energy", _money(outlook, answer.price + answer.energy_cost)
    if answer.rack_units:
        yield "space", f"{bare(answer.rack_units)} rack units"


def _alone(outlook: Outlook, answer: Answer) -> str:
    """What the best of one kind would cost or do instead."""
    if len({kind for time in answer.time.values() for kind in time}) == 1:
        return "no mixture is better than this one kind"
    if answer.question == "cheapest":
        costs = {name: (each.price or 0) + (each.energy_cost or 0) for name, each in outlook.alone.items()}
        name = min(costs, key=costs.__getitem__)
        own = (answer.price or 0) + (answer.energy_cost or 0)
        more = f"{_money(outlook, costs[name])}, {significant(costs[name] / own)} × the cost" if own else "no less"
    else:
        does = {name: each.mixes_per_hour.estimate for name, each in outlook.alone.items()}
        name = max(does, key=does.__getitem__)
        ratio = does[name] / answer.mixes_per_hour.estimate
        more = f"{_work(outlook, does[name])}, {significant(ratio)} × the work"
    return f"the best of one kind: {_counts(outlook.alone[name])}: {more}"


def checks(found: Sequence[Checked]) -> Document:
    """The predictions beside what was measured."""
    rows = [
        (
            check.name,
            f"{_range(check.predicted)} mixes per hour",
            f"{significant(check.measured.estimate)} mixes per hour",
            f"{abs(check.off) * 100:.1f} % too {'high' if check.off > 0 else 'low'}",
            f"{'inside' if check.inside else 'OUTSIDE'} the interval",
        )
        for check in found
    ]
    about = "The rates are of each machine; what a mix retains of its plan is from the mixed runs of others."
    return Document(NEVER_RANKED, about, [Table("", ("machine", "predicted", "measured", "off", "which is"), rows)])


def _proof(answer: Answer) -> str:
    if answer.gap is None:
        return "not proved to be the best"
    return f"none is better by more than {percent(answer.gap)}" if answer.gap else "proved optimal"


def _range(figure: Estimate) -> str:
    low, high = map(significant, figure.ends)
    return f"{significant(figure.estimate)} ({low} to {high})"


def _unit(outlook: Outlook) -> str:
    return "times the work" if outlook.own_work else "mixes per hour"


def _work(outlook: Outlook, per_hour: float) -> str:
    return f"{significant(per_hour)} {_unit(outlook)}"


def _money(outlook: Outlook, amount: float) -> str:
    return f"{bare(amount, 4)} {outlook.currency}".strip()


def _counts(answer: Answer) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in answer.counts.items())
