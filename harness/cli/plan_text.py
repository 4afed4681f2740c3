"""The predictions of the planner as text. Each part says that they are predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.numbers import percent, prefixed, significant
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.catalogue import Checked
from mixmark.harness.plan.machine import Answer
from mixmark.harness.plan.outlook import Outlook

TITLES = {
    "cheapest": "Cheapest machine for the work",
    "most": "Most work",
    "efficient": "Most work per kilowatt-hour",
}
BAR = 30  # letters of the longest bar of the front


def console(outlook: Outlook) -> str:
    return "\n".join(_lines(outlook)) + "\n"


def _lines(outlook: Outlook) -> Iterator[str]:
    kept = outlook.retained
    yield "PREDICTED from solo rates at full load, not measured and never ranked."
    if kept.runs:
        yield (
            f"Mixed runs retained {significant(kept.estimate)} of their plan ({significant(kept.low)} to "
            f"{significant(kept.high)} in {kept.runs} runs), which the figures include."
        )
    else:
        yield "No mixed run shows what a machine retains of its plan, so the figures are upper bounds."
    units = ", ".join(f"{significant(count)} {plain(suite)}" for suite, count in outlook.mix_units.items())
    yield f"The work of an hour: {units}" if outlook.own_work else f"One mix {plain(outlook.mix)}: {units}"
    for name, figures in outlook.declared.items():
        yield f"Declared, not measured: {', '.join(figures).replace('_', ' ')} of {plain(name)}"
    if outlook.today:
        yield ""
        yield f"Today: {_counts(outlook.today)}: {_does(outlook, outlook.today.mixes_per_hour)}{_power(outlook.today)}"
    for answer in outlook.answers:
        yield ""
        yield from _answer(outlook, answer)
    if outlook.front:
        yield from ("", "Predicted machines of which none is better in work, price and power at once")
        yield from _front(outlook)
    if outlook.not_answered or outlook.left_out:
        yield ""
    for question, why in outlook.not_answered.items():
        yield f"Not answered: {TITLES[question].lower()}: {plain(why, 300)}"
    for name, why in outlook.left_out:
        yield f"Left out: {plain(name)}: {plain(why, 300)}"


def _answer(outlook: Outlook, answer: Answer) -> Iterator[str]:
    yield f"{TITLES[answer.question]}, predicted ({_proof(answer)})"
    for kind, count in answer.counts.items():
        parts = {suite: time[kind] / count for suite, time in answer.time.items() if kind in time}
        words = ", ".join(f"{plain(suite)} {percent(part)}" for suite, part in parts.items())
        yield f"  {count} × {plain(kind)}: {words or 'hosts the others'}"
    yield f"  does    {_does(outlook, answer.mixes_per_hour)}"
    if answer.price is not None and (answer.price or outlook.currency):
        yield f"  price   {_money(outlook, answer.price)}"
    if answer.watts is not None:
        yield f"  power   {prefixed(answer.watts, 'W')} while it does {_work(outlook, answer.planned_per_hour)}"
    if outlook.energy and answer.energy_cost is not None:
        years, tariff = significant(outlook.energy.years), significant(outlook.energy.per_kwh)
        yield f"  energy  {_money(outlook, answer.energy_cost)} in {years} years at {tariff} per kWh"
        if answer.price is not None:
            yield f"  both    {_money(outlook, answer.price + answer.energy_cost)}"
    if answer.rack_units:
        yield f"  space   {significant(answer.rack_units)} rack units"
    if answer is outlook.answers[0] and outlook.alone:
        yield from _alone(outlook, answer)


def _alone(outlook: Outlook, answer: Answer) -> Iterator[str]:
    """What the best of one kind would cost or do instead."""
    if len({kind for time in answer.time.values() for kind in time}) == 1:
        yield "  alone   no mixture is better than this one kind"
        return
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
    yield f"  alone   the best of one kind: {_counts(outlook.alone[name])}: {more}"


def _front(outlook: Outlook) -> Iterator[str]:
    longest = max(answer.mixes_per_hour.estimate for answer in outlook.front)
    for answer in outlook.front:
        bar = "█" * max(1, round(BAR * answer.mixes_per_hour.estimate / longest))
        price = "" if answer.price is None else f", {_money(outlook, answer.price)}"
        yield f"  {bar:{BAR}}  {_does(outlook, answer.mixes_per_hour)}{price}{_power(answer)}: {_counts(answer)}"


def checks(found: Sequence[Checked]) -> str:
    """The predictions beside what was measured."""
    lines = [
        "PREDICTED from the solo rates of each machine and from what the mixed runs of others retained; never ranked."
    ]
    for check in found:
        range_, measured = check.predicted, significant(check.measured.estimate)
        where = "inside" if check.inside else "OUTSIDE"
        off = f"{abs(check.off) * 100:.1f} % too {'high' if check.off > 0 else 'low'}"
        lines.append(
            f"{plain(check.name)}: predicted {_range(range_)} mixes per hour, measured {measured}: {off}, {where} the "
            "interval"
        )
    return "\n".join(lines) + "\n"


def _proof(answer: Answer) -> str:
    if answer.gap is None:
        return "not proved to be the best"
    return f"none is better by more than {percent(answer.gap)}" if answer.gap else "proved optimal"


def _range(figure: Estimate) -> str:
    low, high = map(significant, figure.ends)
    return f"{significant(figure.estimate)} ({low} to {high})"


def _does(outlook: Outlook, figure: Estimate) -> str:
    return f"{_range(figure)} {'times the work' if outlook.own_work else 'mixes per hour'}"


def _work(outlook: Outlook, per_hour: float) -> str:
    return f"{significant(per_hour)} {'times the work' if outlook.own_work else 'mixes per hour'}"


def _money(outlook: Outlook, amount: float) -> str:
    return f"{significant(amount, 4)} {outlook.currency}".strip()


def _power(answer: Answer) -> str:
    return "" if answer.watts is None else f", {prefixed(answer.watts, 'W')}"


def _counts(answer: Answer) -> str:
    return ", ".join(f"{count} × {plain(kind)}" for kind, count in answer.counts.items())
