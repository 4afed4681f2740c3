"""The planner's answers for a set of kinds, and the reason for each question without an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from mixmark.harness.capabilities.plan.machine import Answer, Assumption, Constraints, Kind, Question, Retained, Tariff
from mixmark.harness.capabilities.plan.program import Planner


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Predictions for a set of kinds. None of them is a score."""

    mix: str = ""
    own_work: bool = False
    """Whether the user gave the mix as the work of an hour."""
    mix_units: dict[str, float]
    demand: float | None
    """The required mixes per hour."""
    retained: Retained
    energy: Tariff | None
    currency: str = ""
    """Empty if none was named."""
    declared: dict[str, tuple[str, ...]]
    """The figures of each kind that were declared instead of measured."""
    assumed: dict[str, Assumption]
    """The kinds that nobody measured."""
    doubts: dict[str, str]
    """Why the figures of a kind should not be relied on."""
    today: Answer | None
    """The owned devices as a machine. None if there are none, or if they do not run the mix."""
    answers: tuple[Answer, ...]
    all_measured: Answer | None = None
    """The cheapest machine without assumed devices, if the cheapest one has some. None if there is none."""
    alone: dict[str, Answer]
    """The first answer if devices of one kind did all the work."""
    boxes: tuple[Answer, ...]
    """Each machine by itself, the one with the most work for its price first; then by work per kWh."""
    not_answered: dict[str, str]
    """Why there is no answer to a question."""
    left_out: tuple[tuple[str, str], ...]
    """(name, reason) of each kind, result or price that a question leaves out."""


QUESTIONS: tuple[Question, ...] = get_args(Question)
NO_WATTS = "its watts are neither measured nor declared: --prices takes them, a meter measures them"
NO_SLOT = "no host has a slot for it: --prices takes the slots of a host"
Box = tuple[Mapping[str, int], float | None]
"""The devices of a machine, and the price of the whole. None if each device has its own."""


def answered(
    planner: Planner, limits: Constraints, left_out: Sequence[tuple[str, str]] = (), measured: Sequence[Box] = ()
) -> Outlook:
    """Answers the questions whose facts are known. Raises UsageError if no machine keeps the limits or a suite runs on
    no kind.

    left_out: (name, reason) of the results whose devices are not among the kinds. measured: the measured machines.
    """
    usable = replace(planner, kinds=[kind for kind in planner.kinds if limits.at_most.get(kind.name) != 0])
    usable.check_suites()
    answers: list[Answer] = []
    alone: dict[str, Answer] = {}
    without: dict[str, str] = {}
    not_answered: dict[str, str] = {}
    all_measured: Answer | None = None
    missing = [name for name, _ in left_out]
    for question in QUESTIONS:
        asked = replace(limits, mixes_per_hour=None) if question == "most" else limits
        unknown = _unknown(usable, question, asked)
        own = replace(usable, kinds=[kind for kind in usable.kinds if kind.name not in unknown])
        if why := _unanswerable(own, question, asked, unknown):
            not_answered[question] = why
            continue
        without |= unknown
        if _needs_price(question, asked):  # kinds without a price cannot be bought
            own_only = {kind.name: kind.owned for kind in own.kinds if kind.price is None}
            most = {name: min(count, asked.at_most.get(name, count)) for name, count in own_only.items()}
            asked = replace(asked, at_most={**asked.at_most, **most})
        answer, known = own.answer(question, asked), [kind for kind in own.kinds if not kind.assumption]
        counts = {kind.name: answer.counts.get(kind.name, 0) for kind in known}
        measured_only = replace(own, kinds=known)
        alike = measured_only.answer_if_any("most", Constraints(at_least=counts, at_most=counts))
        per_hour = alike.mixes_per_hour.ends[0] if alike else 0.0
        answers.append(replace(answer, not_considered=(*missing, *unknown), measured_per_hour=per_hour))
        if question == "cheapest" and answer.counts.keys() - counts.keys():
            all_measured = measured_only.answer_if_any(question, asked)
        alone = alone or own.alone(question, asked)
    return Outlook(
        mix_units=dict(planner.mix_units),
        demand=limits.mixes_per_hour,
        retained=planner.retained,
        energy=planner.energy,
        declared={kind.name: tuple(sorted(kind.declared)) for kind in planner.kinds if kind.declared},
        assumed={kind.name: kind.assumption for kind in planner.kinds if kind.assumption},
        doubts={kind.name: kind.doubt for kind in planner.kinds if kind.doubt},
        today=_today(planner),
        answers=tuple(answers),
        all_measured=all_measured,
        boxes=boxes(usable, measured),
        alone=alone if len(alone) > 1 else {},
        not_answered=not_answered,
        left_out=(*left_out, *without.items()),
    )


def boxes(planner: Planner, measured: Sequence[Box]) -> tuple[Answer, ...]:
    """Each measured machine, and each assumed device by itself, an accelerator in the host with which it does most.
    Those that cannot do the mix, or have a device that may not be used, are left out."""
    free = replace(planner, kinds=[replace(kind, owned=0) for kind in planner.kinds])
    found: dict[tuple[tuple[str, int], ...], Answer] = {}
    for counts, price in (*measured, *(({kind.name: 1}, None) for kind in planner.kinds if kind.assumption)):
        if not counts.keys() <= {kind.name for kind in free.kinds}:
            continue
        hosted = any(kind.is_host and kind.name in counts for kind in free.kinds)
        at_most = {kind.name: counts.get(kind.name, 0) for kind in free.kinds if hosted or not kind.is_host}
        limits = Constraints(hosts=None if hosted else 1, at_least=counts, at_most=at_most)
        if answer := free.answer_if_any("most", limits):
            own = replace(answer, price=price) if answer.price is None else answer
            found.setdefault(tuple(sorted(answer.counts.items())), own)
    return tuple(
        sorted(found.values(), key=lambda box: (per_price(box) or 0, per_kwh(box) or 0, box.mixes_per_hour.estimate))
    )[::-1]


def per_price(answer: Answer) -> float | None:
    """Mixes per hour for each unit of money. None if the price is not known or 0."""
    return answer.mixes_per_hour.estimate / answer.price if answer.price else None


def per_kwh(answer: Answer) -> float | None:
    """Mixes for each kilowatt-hour. None if the watts are not known or 0."""
    return answer.planned_per_hour * 1000 / answer.watts if answer.watts else None


def _needs_price(question: Question, limits: Constraints) -> bool:
    return question == "cheapest" or limits.budget is not None


def _unknown(planner: Planner, question: Question, limits: Constraints) -> dict[str, str]:
    """Why kinds have no part in the question, by their names."""
    found = {kind.name: why for kind in planner.kinds if (why := _lacks(kind, question, limits, planner.energy))}
    hosts = [kind.name for kind in planner.kinds if kind.slots]
    if all(name in found for name in hosts):
        why = f"{hosts[0]}: {found[hosts[0]]}" if hosts else NO_SLOT
        found |= {kind.name: why for kind in planner.kinds if not kind.is_host and kind.name not in found}
    return found


def _lacks(kind: Kind, question: Question, limits: Constraints, energy: Tariff | None) -> str | None:
    """The unknown figure of a kind that the question needs. None if all are known."""
    if _needs_price(question, limits) and kind.price is None and kind.owned < max(1, limits.at_least.get(kind.name, 0)):
        return "its price is not known: --prices takes it"
    if (
        question == "efficient" or limits.watts is not None or (question == "cheapest" and energy)
    ) and not kind.has_watts:
        return NO_WATTS
    return None


def _unanswerable(planner: Planner, question: Question, limits: Constraints, unknown: Mapping[str, str]) -> str | None:
    if question == "cheapest" and limits.mixes_per_hour is None:
        return "--mixes-per-hour or --per-hour says how much work the machine must do"
    if forced := [f"{name}: {why}" for name, why in unknown.items() if name in limits.at_least]:
        return "; ".join(forced)
    runs = {speed.suite for kind in planner.kinds for speed in kind.speeds}
    if not planner.mix_units.keys() <= runs or not any(kind.is_host for kind in planner.kinds):
        return "; ".join(f"{name}: {why}" for name, why in unknown.items()) or "there is no host"
    bounded = any(most is not None for most in (limits.budget, limits.watts, limits.hosts))
    free = [kind.name for kind in planner.kinds if kind.name not in limits.at_most]
    if free and limits.mixes_per_hour is None and not bounded:
        return f"--budget, --power or --hosts limits how many of {', '.join(free)} there may be"
    return None


def _today(planner: Planner) -> Answer | None:
    own = [kind for kind in planner.kinds if kind.owned]
    counts = {kind.name: kind.owned for kind in own}
    return (
        replace(planner, kinds=own).answer_if_any("most", Constraints(at_least=counts, at_most=counts)) if own else None
    )
