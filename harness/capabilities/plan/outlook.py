"""The planner's answers for a set of kinds, and the reason for each question without an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from mixmark.harness.capabilities.plan.machine import (
    Answer,
    Assumption,
    Energy,
    Kind,
    Limits,
    Planner,
    Question,
    Retained,
)
from mixmark.harness.contracts.errors import MixmarkError


@dataclass(frozen=True)
class Outlook:
    """Predictions for a set of kinds. None of them is a score."""

    mix: str
    own_work: bool
    """Whether the user gave the mix as the work of an hour."""
    mix_units: dict[str, float]
    demand: float | None
    """The required mixes per hour."""
    retained: Retained
    energy: Energy | None
    currency: str
    """Empty if none was named."""
    declared: dict[str, tuple[str, ...]]
    """The figures of each kind that were declared instead of measured."""
    assumed: dict[str, Assumption]
    """The kinds that nobody measured."""
    today: Answer | None
    """The owned devices as a machine. None if there are none, or if they do not run the mix."""
    answers: tuple[Answer, ...]
    alone: dict[str, Answer]
    """The first answer if devices of one kind did all the work."""
    front: tuple[Answer, ...]
    not_answered: dict[str, str]
    """Why there is no answer to a question."""
    left_out: tuple[tuple[str, str], ...]
    """(name, reason) of each kind that the plan leaves out."""


QUESTIONS: tuple[Question, ...] = get_args(Question)
NO_WATTS = "its watts are neither measured nor declared"


def answered(planner: Planner, limits: Limits, front: bool) -> Outlook:
    """Answers the questions whose facts are known. Raises UsageError if no machine keeps the limits or a suite runs on
    no kind."""
    planner.check_suites()
    answers: list[Answer] = []
    alone: dict[str, Answer] = {}
    rows: list[Answer] = []
    left_out: dict[str, str] = {}
    not_answered: dict[str, str] = {}
    for question in QUESTIONS:
        asked = replace(limits, mixes_per_hour=None) if question == "most" else limits
        unknown = {kind.name: why for kind in planner.kinds if (why := _unknown(kind, question, asked, planner.energy))}
        own = replace(planner, kinds=[kind for kind in planner.kinds if kind.name not in unknown])
        if why := _unanswerable(own, question, asked, unknown):
            not_answered[question] = why
            continue
        left_out |= unknown
        if _needs_price(question, asked):  # kinds without a price cannot be bought
            own_only = {kind.name: kind.owned for kind in own.kinds if kind.price is None}
            most = {name: min(count, asked.at_most.get(name, count)) for name, count in own_only.items()}
            asked = replace(asked, at_most={**asked.at_most, **most})
        answers.append(own.answer(question, asked))
        alone = alone or own.alone(question, asked)
        if question == "most" and front:
            rows = own.front(asked)
    return Outlook(
        mix="",
        own_work=False,
        mix_units=dict(planner.mix_units),
        demand=limits.mixes_per_hour,
        retained=planner.retained,
        energy=planner.energy,
        currency="",
        declared={kind.name: tuple(sorted(kind.declared)) for kind in planner.kinds if kind.declared},
        assumed={kind.name: kind.assumption for kind in planner.kinds if kind.assumption},
        today=_today(planner),
        answers=tuple(answers),
        alone=alone if len(alone) > 1 else {},
        front=tuple(rows),
        not_answered=not_answered,
        left_out=tuple(left_out.items()),
    )


def _needs_price(question: Question, limits: Limits) -> bool:
    return question == "cheapest" or limits.budget is not None


def _unknown(kind: Kind, question: Question, limits: Limits, energy: Energy | None) -> str | None:
    """The unknown figure of a kind that the question needs. None if all are known."""
    if _needs_price(question, limits) and kind.price is None and kind.owned < max(1, limits.at_least.get(kind.name, 0)):
        return "its price is not known"
    if (
        question == "efficient" or limits.watts is not None or (question == "cheapest" and energy)
    ) and not kind.has_watts:
        return NO_WATTS
    if limits.rack_units is not None and kind.is_host and kind.rack_units is None:
        return "its rack units are not known"
    return None


def _unanswerable(planner: Planner, question: Question, limits: Limits, unknown: Mapping[str, str]) -> str | None:
    if question == "cheapest" and limits.mixes_per_hour is None:
        return "it is not known how much work the machine must do"
    if forced := [f"{name}: {why}" for name, why in unknown.items() if name in limits.at_least]:
        return "; ".join(forced)
    runs = {speed.suite for kind in planner.kinds for speed in kind.speeds}
    if not planner.mix_units.keys() <= runs or not any(kind.is_host for kind in planner.kinds):
        return "; ".join(f"{name}: {why}" for name, why in unknown.items()) or "there is no host"
    bounded = any(most is not None for most in (limits.budget, limits.watts, limits.rack_units, limits.hosts))
    free = [kind.name for kind in planner.kinds if kind.name not in limits.at_most]
    if free and limits.mixes_per_hour is None and not bounded:
        return f"nothing limits how many of {', '.join(free)} there may be"
    return None


def _today(planner: Planner) -> Answer | None:
    own = [kind for kind in planner.kinds if kind.owned]
    try:
        return replace(planner, kinds=own).of({kind.name: kind.owned for kind in own}) if own else None
    except MixmarkError:  # the owned devices cannot run the mix
        return None
