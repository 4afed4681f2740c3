"""The predictions of the planner as documents. Each part says that they are predictions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mixmark.harness.capabilities.plan.machine import Answer, Assumption
from mixmark.harness.capabilities.plan.outlook import Outlook, per_kwh, per_price
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import UNKNOWN, bare, counted, percent, prefixed, significant
from mixmark.reporters.document import Block, Document, Facts, Heading, Notes, Paragraph, Table

TITLES = {"cheapest": "Cheapest machine for the work", "most": "Most work", "efficient": "Most work per kilowatt-hour"}
PER = 1000
"""The money that the work of a machine is divided by."""
AT_MOST = "at most, by datasheet"
NEVER_RANKED = "PREDICTED from solo rates at full load, not measured and never ranked."


def plan(outlook: Outlook, work: str, units: Mapping[str, str]) -> Document:
    """The plan as a document. work: the mix in words. units: the short names of the units of its suites."""
    return Document(NEVER_RANKED, "", list(_blocks(outlook, work, units)))


def _blocks(outlook: Outlook, work: str, units: Mapping[str, str]) -> Iterator[Block]:
    kept = outlook.retained
    if kept.runs:
        span = f"{significant(kept.low)} to {significant(kept.high)} in " if kept.runs > 1 else ""
        raises = "; it raises no figure of an assumed device" if outlook.assumed and kept.high > 1 else ""
        yield Paragraph(
            f"Mixed runs retained {significant(kept.estimate)} of their plan ({span}{counted(kept.runs, 'run')}), "
            f"which the figures include{raises}."
        )
    else:
        yield Paragraph("No mixed run shows what a machine retains of its plan, so the figures are upper bounds.")
    yield Paragraph(f"The work of an hour: {work}" if outlook.own_work else f"One mix {outlook.mix}: {work}")
    yield from (Paragraph(f"{name}: {why}") for name, why in outlook.doubts.items())
    for name, figures in outlook.declared.items():
        yield Paragraph(f"Declared, not measured: {', '.join(figures).replace('_', ' ')} of {name}")
    yield from _assumed(outlook, units)
    if today := outlook.today:
        does = ", ".join(f"{name} {words}" for name, words in _does(outlook, today))
        yield Paragraph(f"Today: {_listed(today.counts)}: {does}")
    for answer in outlook.answers:
        yield Heading(f"{TITLES[answer.question]}, predicted ({_proof(answer)})")
        yield Facts(list(_answer(outlook, answer)))
    if outlook.alone:
        title = TITLES[outlook.answers[0].question].lower()
        yield from _machines(outlook, f"The {title}, if devices of one kind do all of it", outlook.alone.values())
    if len(outlook.boxes) > 1 or any(box.price or box.watts for box in outlook.boxes):
        yield from _machines(outlook, "Each machine by itself", outlook.boxes)
    questions = [("not answered", TITLES[question].lower(), why) for question, why in outlook.not_answered.items()]
    yield Notes([*questions, *(("left out", name, why) for name, why in outlook.left_out)])


def _assumed(outlook: Outlook, units: Mapping[str, str]) -> Iterator[Block]:
    """Each rate that nobody measured, and the source of each device."""
    rows: list[tuple[str, ...]] = []
    for kind, own in outlook.assumed.items():
        for suite in outlook.mix_units:
            basis, unit = own.suites.get(suite), units.get(suite, "units")
            if basis is None:
                rows.append((kind, suite, "no rate", UNKNOWN, UNKNOWN))
            elif basis.at_most is None:
                rows.append((kind, suite, "declared", f"{significant(basis.units_per_s)} {unit}/s", UNKNOWN))
            else:
                at_most = f"{significant(basis.at_most)} {unit}/s"
                rows.append((kind, suite, basis.limit, f"{significant(basis.units_per_s)} {unit}/s", at_most))
    if rows:
        header = ("device", "suite", "limited by", "computed with", "at most")
        yield Table("Assumed: nobody measured these devices; the most is by datasheet", header, rows, 3)
    yield from (Paragraph(f"{kind}: {own.source}") for kind, own in outlook.assumed.items())


def _machines(outlook: Outlook, title: str, machines: Collection[Answer]) -> Iterator[Block]:
    """A table of machines, with a column of bounds if one has an assumed device."""
    bounds = [_at_most(outlook, machine) for machine in machines]
    rows = []
    for machine, bound in zip(machines, bounds, strict=True):
        price = UNKNOWN if machine.price is None else bare(machine.price, 4)
        worth = ((PER * found if (found := per_price(machine)) else None), per_kwh(machine))
        ratios = (UNKNOWN if ratio is None else significant(ratio) for ratio in worth)
        bounded = (bound or UNKNOWN,) if any(bounds) else ()
        rows.append((_listed(machine.counts), _work(outlook, machine), *bounded, price, *ratios))
    per_kwh_of = "work per kWh" if outlook.own_work else "mixes per kWh"
    bounded = ("at most",) if any(bounds) else ()
    price = f"price, {outlook.currency}".removesuffix(", ")
    yield Heading(f"{title}, predicted")
    yield Table("", ("machine", _unit(outlook), *bounded, price, f"per {_money(outlook, PER)}", per_kwh_of), rows)


def _does(outlook: Outlook, answer: Answer) -> Iterator[tuple[str, str]]:
    """What a machine does, costs and draws, as far as it is known."""
    assumed = _assumed_in(outlook, answer)
    declared = [name for name, own in assumed.items() if all(basis.at_most is None for basis in own.suites.values())]
    provided = f" if the rates of {', '.join(declared)} are right" if declared else ""
    yield "does", f"{_work(outlook, answer)} {_unit(outlook)}{provided}"
    if at_most := _at_most(outlook, answer):
        yield AT_MOST, f"{at_most} {_unit(outlook)}"
    if answer.price is not None and answer.bought:
        bought = "" if answer.bought == answer.counts else f" for {_listed(answer.bought)}"
        yield "price", f"{_money(outlook, answer.price)}{bought}"
    if answer.watts is not None:
        partly = significant(answer.planned_per_hour) != significant(answer.mixes_per_hour.estimate)
        load = f" while it does {_per_hour(outlook, answer.planned_per_hour)}" if partly else ""
        yield "power", f"{prefixed(answer.watts, 'W')}{load}"


def _work(outlook: Outlook, answer: Answer) -> str:
    """What a machine does, with its interval. An assumption has none."""
    figure = answer.mixes_per_hour
    return significant(figure.estimate) if _assumed_in(outlook, answer) else _range(figure)


def _at_most(outlook: Outlook, answer: Answer) -> str:
    """The most that a machine does by the datasheets of its devices. Empty if it has no such device."""
    known = [basis for own in _assumed_in(outlook, answer).values() for basis in own.suites.values()]
    return significant(answer.mixes_per_hour.ends[1]) if any(basis.at_most for basis in known) else ""


def _assumed_in(outlook: Outlook, answer: Answer) -> dict[str, Assumption]:
    """The kinds at work that nobody measured."""
    used = {kind for time in answer.time.values() for kind in time}
    return {name: own for name, own in outlook.assumed.items() if name in used}


def _answer(outlook: Outlook, answer: Answer) -> Iterator[tuple[str, str]]:
    for kind, count in answer.counts.items():
        parts = {suite: time[kind] / count for suite, time in answer.time.items() if kind in time}
        words = ", ".join(f"{suite} {percent(part)}" for suite, part in parts.items())
        yield f"{count} × {kind}", f"{words} of the time" if words else "hosts the others"
    yield from _does(outlook, answer)
    if outlook.demand and (met := _meets(outlook, answer, outlook.demand)):
        yield "demand", met
    if outlook.energy and answer.energy_cost is not None:
        years = f"{bare(outlook.energy.years)} {'year' if outlook.energy.years == 1 else 'years'}"
        yield "energy", f"{_money(outlook, answer.energy_cost)} in {years} at {bare(outlook.energy.per_kwh)} per kWh"
        if answer.price is not None:
            yield "price and energy", _money(outlook, answer.price + answer.energy_cost)
    if answer.question == "cheapest" and (other := outlook.all_measured):
        price = "" if other.price is None else f": {_money(outlook, other.price)}"
        yield "all measured", f"{_listed(other.counts)}{price}"
    if answer.not_considered:
        yield "not considered", ", ".join(answer.not_considered)


def _meets(outlook: Outlook, answer: Answer, demand: float) -> str:
    """Whether an answer meets the demand. Empty if measured rates meet it and it was found for that."""
    asked = _per_hour(outlook, demand)
    if answer.mixes_per_hour.ends[0] < demand * (
        1 - 1e-6
    ):  # a machine that was found for it meets it to the last digit
        return f"{asked} are not met by its low rates"
    assumed = _assumed_in(outlook, answer)
    if assumed and answer.measured_per_hour < demand * (1 - 1e-6):
        return f"{asked} are met only if {', '.join(assumed)} does what is assumed of it"
    return f"{asked} are met" if answer.question == "most" else ""


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
