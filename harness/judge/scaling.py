"""How the rate of the mix grows with the hosts: on the first 1, 2, 4, … of several, and on all of them.

    efficiency(k) = λ(k)/λ*(k) · λ*(1)/λ(1)

λ* is the bound of each plan over the same rates of the devices alone. Of equal hosts it is k times that of one, so that
the efficiency is λ(k)/(k λ(1)). Of unequal ones the bound says what each host would add.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import Finding, Phase, Rate, Result
from mixmark.harness.judge import score as scoring
from mixmark.harness.judge.diagnosis import unmeasured
from mixmark.harness.judge.energy.coverage import hosts as hosts_of
from mixmark.harness.judge.score import Figure, Score
from mixmark.harness.plan.placement import verify


@dataclass(frozen=True)
class ScalingStep:
    """The mix on so many hosts."""

    hosts: tuple[str, ...]
    """Their names."""
    mixes_per_s: Figure | None
    """λ. None: `problem` says why."""
    mixes_per_kj: Figure | None
    """MX, from the energy of these hosts alone. None: `problem` or `unmeasured` says why."""
    bound_per_s: float
    """λ* of the plan over these hosts."""
    efficiency: float | None = None
    """None: λ is not known, or that of one host."""
    problem: str = ""
    """Why there is no λ; empty where there is."""
    unmeasured: str = ""
    """Why there is no MX though there is λ; empty where there is."""


def steps(
    result: Result, score: Score | None, doubts: Sequence[Finding], solo: Sequence[Rate]
) -> tuple[ScalingStep, ...]:
    """From one host to all of them. Empty where the mix was run on all hosts only.

    doubts: the findings of the rules of honesty. solo: the rates that the solo records measured.
    """
    parts = [phase for phase in result.phases if phase.purpose == "scaling"]
    whole = scoring.mixed(result)[:1]
    if score is None or not parts or not whole:
        return ()
    found = [_part(result, score, phase, doubts, solo) for phase in parts]
    assert whole[0].placement is not None  # as the schema demands
    found.append(
        ScalingStep(
            hosts=_hosts(whole[0]),
            mixes_per_s=score.mixes_per_s,
            mixes_per_kj=score.mixes_per_kj,
            bound_per_s=whole[0].placement.bound_per_s,
            problem="; ".join(each.text for each in score.problems),
            unmeasured=score.unmeasured,
        )
    )
    found.sort(key=lambda each: len(each.hosts))
    one = found[0]
    if len(one.hosts) != 1 or one.mixes_per_s is None or not one.mixes_per_s.estimate:
        return tuple(found)
    reached = one.mixes_per_s.estimate / one.bound_per_s
    return tuple(
        each
        if each.mixes_per_s is None
        else replace(each, efficiency=each.mixes_per_s.estimate / each.bound_per_s / reached)
        for each in found
    )


def _part(result: Result, score: Score, phase: Phase, doubts: Sequence[Finding], solo: Sequence[Rate]) -> ScalingStep:
    names, plan = _hosts(phase), phase.placement
    assert plan is not None  # as the schema demands
    step = ScalingStep(hosts=names, mixes_per_s=None, mixes_per_kj=None, bound_per_s=plan.bound_per_s)
    only = _of(result, names)
    run = scoring.run_of(only, score.mix, phase, doubts)
    if run is None:
        return replace(step, problem="it was not run to its end")
    problems = [each.text for each in run.problems]
    problems += [
        f"λ* is not proven: {why}" for why in (*verify(plan, score.mix.units, result.devices), *unmeasured(plan, solo))
    ]
    if problems:
        return replace(step, problem="; ".join(problems))
    blind = "; ".join((*run.total.reasons, *run.total.lost))
    if result.domains and not only.domains:
        blind = "no meter reads these hosts without others"
    mx = None if blind else run.mixes_per_kj
    return replace(step, mixes_per_s=run.mixes_per_s, mixes_per_kj=mx, unmeasured="" if mx else blind)


def _hosts(phase: Phase) -> tuple[str, ...]:
    """The hosts of a phase: those that its plan could choose, and those that do something in it."""
    rates = phase.placement.rates if phase.placement else ()
    return tuple(
        dict.fromkeys(host_of(id) for id in (*(each.device for each in rates), *(t.device for t in phase.tasks)))
    )


def _of(result: Result, names: Collection[str]) -> Result:
    """The result as if it had only these hosts."""
    return result.model_copy(
        update={
            "hosts": tuple(
                each.model_copy(update={"names": kept})
                for each in result.hosts
                if (kept := tuple(name for name in each.names if name in names))
            ),
            "devices": tuple(each for each in result.devices if each.host in names),
            "domains": tuple(each for each in result.domains if hosts_of(each) <= set(names)),
            "absent": tuple(each for each in result.absent if {host_of(part) for part in each.covers} <= set(names)),
        }
    )
