"""The predictions of the planner as documents. Each part says that they are predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from mixmark.harness.capabilities.plan.catalogue import Checked
from mixmark.harness.capabilities.plan.machine import Answer, Assumption
from mixmark.harness.capabilities.plan.outlook import Outlook, per_kwh, per_price
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import UNKNOWN, bare, counted, percent, prefixed, significant
from mixmark.harness.contracts.text import Reason
from mixmark.reporters import charts
from mixmark.reporters.document import Block, Chart, Document, Facts, Heading, Notes, Paragraph, Table, drawing
from mixmark.reporters.pictures import Bar

TITLES = {
    "cheapest": "Cheapest machine for the work",
    "most": "Most work",
    "efficient": "Most work per kilowatt-hour",
}
PER = 1000
"""The money that the work of a machine is divided by."""
NEVER_RANKED = "PREDICTED from solo rates at full load, not measured and never ranked."


def plan(outlook: Outlook, work: str, units: Mapping[str, str]) -> Document:
    """The plan as a document. work: the mix in words. units: the short names of the units of its suites."""
    return Document(NEVER_RANKED, "", list(_blocks(outlook, work, units)))


def _blocks(outlook: Outlook, work: str, units: Mapping[str, str]) -> Iterator[Block]:
    kept = outlook.retained
    doubtful = f", {kept.doubtful} of them disturbed" if kept.doubtful else ""
    if kept.runs:
        span = f"{significant(kept.low)} to {significant(kept.high)} in " if kept.runs > 1 else ""
        raises = "; it raises no figure of an assumed device" if outlook.assumed and kept.high > 1 else ""
        yield Paragraph(
            f"Mixed runs retained {significant(kept.estimate)} of their plan ({span}{counted(kept.runs, 'run')}"
            f"{doubtful}), which the figures include{raises}."
        )
    else:
        yield Paragraph("No mixed run shows what a machine retains of its plan, so the figures are upper bounds.")
    yield Paragraph(f"The work of an hour: {work}" if outlook.own_work else f"One mix {outlook.mix}: {work}")
    yield from (Paragraph(f"{name}: {why}") for name, why in outlook.doubts.items())
    for name, figures in outlook.declared.items():
        yield Paragraph(f"Declared, not measured: {', '.join(figures).replace('_', ' ')} of {name}")
    if outlook.assumed:
        header = ("device", "suite", "computed with", "at most")
        yield Table("Assumed: nobody measured these devices", header, list(_assumed(outlook, units)), 3)
        for kind, assumption in outlook.assumed.items():
            yield Paragraph(f"{kind}: {assumption.source}")
    if today := outlook.today:
        yield Paragraph(f"Today: {_listed(today.counts)}: {', '.join(filter(None, _does(outlook, today)))}")
    if outlook.answers:
        yield _chart(outlook)
    titles: dict[tuple[tuple[str, str], ...], str] = {}
    for answer in outlook.answers:
        title, facts = TITLES[answer.question], tuple(_answer(outlook, answer))
        yield Heading(f"{title}, predicted ({_proof(answer)})")
        alone = [("alone", _alone(outlook, answer))] if outlook.alone and not titles else []
        yield Facts([("the same as", titles[facts].lower())] if facts in titles else [*facts, *alone])
        titles.setdefault(facts, title)
    if len(outlook.boxes) > 1 or any(box.price or box.watts for box in outlook.boxes):
        yield Heading("Each machine by itself, predicted")
        per_kwh_of = "work per kWh" if outlook.own_work else "mixes per kWh"
        header = ("machine", _unit(outlook), f"per {_money(outlook, PER)}", per_kwh_of)
        yield Table("", header, [(_listed(box.counts), _work(outlook, box, ""), *_worth(box)) for box in outlook.boxes])
    questions = [("not answered", TITLES[question].lower(), why) for question, why in outlook.not_answered.items()]
    left_out = [("left out", name, why) for name, why in outlook.left_out]
    yield Notes([*questions, *left_out, *(("note", name, remark) for name, remark in outlook.notes)])


def _chart(outlook: Outlook) -> Chart:
    """The machines of the plan side by side, with the demand as the limit."""
    machines = [("Today", outlook.today)] if outlook.today else []
    machines += [(TITLES[answer.question], answer) for answer in outlook.answers]
    machines += [(f"{name} alone", answer) for name, answer in outlook.alone.items()]
    most = max(outlook.demand or 0.0, *(answer.mixes_per_hour.ends[1] for _, answer in machines))

    def bar(label: str, answer: Answer) -> Bar:
        work, (does, *costs) = answer.mixes_per_hour, _does(outlook, answer)
        detail = ", ".join(filter(None, (does, _listed(answer.counts), *costs)))
        whisker = None if _assumed_in(outlook, answer) else work.ends
        drawn = charts.bar(work.estimate, whisker, outlook.demand, most, hue=0)
        return Bar(label, significant(work.estimate), detail, drawn)

    unit = "multiples of the demand" if outlook.own_work else "mixes per hour"
    demand = " A line marks the demand." if outlook.demand else ""
    remark = (
        f"At full load, on a scale from zero.{demand} Whiskers: every rate at its low or its high end; a machine with "
        "an assumed device has none."
    )
    return drawing(f"Predicted work in {unit}", "bars", remark, [("", [bar(*each) for each in machines])])


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
    price = "" if answer.price is None or not answer.bought else _money(outlook, answer.price)
    if price and answer.bought != answer.counts:
        price += f" for {_listed(answer.bought)}"
    power = "" if answer.watts is None else prefixed(answer.watts, "W")
    if power and significant(answer.planned_per_hour) != significant(answer.mixes_per_hour.estimate):
        power += f" while it does {_per_hour(outlook, answer.planned_per_hour)}"
    return _work(outlook, answer, f" {_unit(outlook)}"), price, power


def _work(outlook: Outlook, answer: Answer, unit: str) -> str:
    """What a machine does, with its interval. An assumption has none."""
    assumed, figure = _assumed_in(outlook, answer), answer.mixes_per_hour
    if not assumed:
        return f"{_range(figure)}{unit}"
    does = significant(figure.estimate)
    if any(basis.at_most for own in assumed.values() for basis in own.suites.values()):
        part = percent(next(iter(assumed.values())).fraction)
        return f"at most {significant(figure.ends[1])}{unit} by datasheet; {does} at {part} of it"
    return f"{does}{unit} if the rates of {', '.join(assumed)} are right"


def _assumed_in(outlook: Outlook, answer: Answer) -> dict[str, Assumption]:
    """The kinds at work that nobody measured."""
    used = {kind for time in answer.time.values() for kind in time}
    return {name: own for name, own in outlook.assumed.items() if name in used}


def _worth(box: Answer) -> tuple[str, str]:
    """The work for money and for energy."""
    for_money, for_energy = per_price(box), per_kwh(box)
    return (
        UNKNOWN if for_money is None else significant(PER * for_money),
        UNKNOWN if for_energy is None else significant(for_energy),
    )


def _answer(outlook: Outlook, answer: Answer) -> Iterator[tuple[str, str]]:
    for kind, count in answer.counts.items():
        parts = {suite: time[kind] / count for suite, time in answer.time.items() if kind in time}
        words = ", ".join(f"{suite} {percent(part)}" for suite, part in parts.items())
        yield f"{count} × {kind}", f"{words} of the time" if words else "hosts the others"
    facts = dict(zip(("does", "price", "power"), _does(outlook, answer), strict=True))
    yield from ((name, words) for name, words in facts.items() if words)
    if outlook.demand and (met := _meets(outlook, answer, outlook.demand)):
        yield "demand", met
    if outlook.energy and answer.energy_cost is not None:
        years = f"{bare(outlook.energy.years)} {'year' if outlook.energy.years == 1 else 'years'}"
        mean = outlook.energy.mean_load
        load = f", {percent(mean)} of this work on average" if mean < 1 else ""
        cost = f"{_money(outlook, answer.energy_cost)} in {years} at {bare(outlook.energy.per_kwh)} per kWh"
        yield "energy", f"{cost}{load}"
        if answer.price is not None:
            yield "price and energy", _money(outlook, answer.price + answer.energy_cost)
    if (months := outlook.paid_back_months.get(answer.question)) is not None:
        yield "paid back", _paid_back(outlook, answer, months)
    if answer.rack_units:
        yield "rack units", bare(answer.rack_units)
    if answer.not_considered:
        yield "not considered", ", ".join(answer.not_considered)


def _meets(outlook: Outlook, answer: Answer, demand: float) -> str:
    """Whether an answer meets the demand. Empty if measured rates meet it and it was found for that."""
    asked = _per_hour(outlook, demand)
    if answer.mixes_per_hour.ends[0] < demand * (
        1 - 1e-6
    ):  # a machine that was found for it meets it to the last digit
        return f"{asked} are not met by its low rates"
    if assumed := _assumed_in(outlook, answer):
        return f"{asked} are met only if {', '.join(assumed)} does what is assumed of it"
    return f"{asked} are met" if answer.question == "most" else ""


def _paid_back(outlook: Outlook, answer: Answer, months: float | Reason) -> str:
    if isinstance(months, str):
        return f"not known: {months}"
    work = _per_hour(outlook, answer.planned_per_hour)
    if math.isinf(months):
        return f"never by electricity: for {work} today's machine takes no more"
    assumed = ", ".join(_assumed_in(outlook, answer))
    provided = f", if {assumed} does what is assumed of it" if assumed else ""
    return f"in month {math.ceil(months)} of {work}, by the electricity that today's machine takes for them{provided}"


def _alone(outlook: Outlook, answer: Answer) -> str:
    """What the best of one kind would cost or do instead."""
    if len(used := {kind for time in answer.time.values() for kind in time}) == 1:
        return f"no mixture of what was considered is better than {used.pop()}"
    if answer.question == "cheapest":
        costs = {name: (each.price or 0) + (each.energy_cost or 0) for name, each in outlook.alone.items()}
        name = min(costs, key=costs.__getitem__)
        own = (answer.price or 0) + (answer.energy_cost or 0)
        more = f"{_money(outlook, costs[name])}, {significant(costs[name] / own)} × the cost" if own else "no less"
    else:
        does = {name: each.mixes_per_hour.estimate for name, each in outlook.alone.items()}
        name = max(does, key=does.__getitem__)
        ratio = does[name] / answer.mixes_per_hour.estimate
        more = f"{_per_hour(outlook, does[name])}, {significant(ratio)} × the work"
    return f"all work on {name}, in {_listed(outlook.alone[name].counts)}: {more}"


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
    proof = f"none is better by more than {percent(answer.gap)}" if answer.gap else "proved optimal"
    return f"{proof} of what was considered" if answer.not_considered else proof


def _range(figure: Estimate) -> str:
    low, high = map(significant, figure.ends)
    return f"{significant(figure.estimate)} ({low} to {high})"


def _unit(outlook: Outlook) -> str:
    return "times the work" if outlook.own_work else "mixes per hour"


def _per_hour(outlook: Outlook, per_hour: float) -> str:
    return f"{significant(per_hour)} {_unit(outlook)}"


def _money(outlook: Outlook, amount: float) -> str:
    return f"{bare(amount, 4)} {outlook.currency}".strip()


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in counts.items())
