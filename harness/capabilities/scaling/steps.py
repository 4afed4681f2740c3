"""How the rate of the mix grows with the hosts: on the first 1, 2, 4, … hosts, and on all of them.

    efficiency(k) = λ(k)/λ*(k) · λ*(1)/λ(1)

λ* is the bound of each plan, from the same solo rates. On k equal hosts λ* is k times λ* of one host, so the efficiency
is λ(k)/(k λ(1)). On unequal hosts λ* says what each host would add.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Finding, Phase, Rate, Result
from mixmark.harness.contracts.text import Reason
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.diagnosis import unproven
from mixmark.harness.judge.findings import found, voided
from mixmark.harness.judge.mixed_run import HOUR_S, run_of
from mixmark.harness.judge.score import Score, mixed


@dataclass(frozen=True)
class ScalingStep:
    """The mix on some of the hosts, or on all."""

    hosts: tuple[str, ...]
    """Their names."""
    mixes_per_hour: Estimate | None
    """TX. If None, `problems` say why."""
    mixes_per_kwh: Estimate | None
    """MX, from the energy of these hosts alone. If None, `problems` or `unmeasured` say why."""
    bound_per_hour: float
    """λ* of the plan over these hosts."""
    efficiency: float | None = None
    """None if λ is not known, or λ of one host is not."""
    problems: tuple[Finding, ...] = ()
    """Why there is no λ. Empty if there is one."""
    unmeasured: Reason | None = None
    """Why there is λ and no MX."""


def steps(judged: Assessment) -> tuple[ScalingStep, ...]:
    """A step for each number of hosts that the mix ran on, from one to all. Empty if the mix was run on all hosts
    only."""
    result, score, doubts = judged.result, judged.score, judged.doubts
    phases = [phase for phase in result.phases if phase.experiment == "scaling"]
    whole = mixed(result)[:1]
    if score is None or not phases or not whole:
        return ()
    solo = solo_rates.solo(judged.evidence, score.mix, voided(doubts))
    taken = [_step(result, score, phase, doubts, solo) for phase in phases]
    assert whole[0].placement is not None  # as the schema demands
    taken.append(
        ScalingStep(
            hosts=_hosts(whole[0]),
            mixes_per_hour=score.mixes_per_hour,
            mixes_per_kwh=score.mixes_per_kwh,
            bound_per_hour=whole[0].placement.bound_per_s * HOUR_S,
            problems=score.problems,
            unmeasured=score.unmeasured,
        )
    )
    taken.sort(key=lambda step: len(step.hosts))
    first = taken[0]
    if len(first.hosts) != 1 or first.mixes_per_hour is None or not first.mixes_per_hour.estimate:
        return tuple(taken)
    reached = first.mixes_per_hour.estimate / first.bound_per_hour
    return tuple(
        replace(step, efficiency=step.mixes_per_hour.estimate / step.bound_per_hour / reached)
        if step.mixes_per_hour
        else step
        for step in taken
    )


def _step(result: Result, score: Score, phase: Phase, doubts: Sequence[Finding], solo: Sequence[Rate]) -> ScalingStep:
    names, plan = _hosts(phase), phase.placement
    assert plan is not None  # as the schema demands
    step = ScalingStep(hosts=names, mixes_per_hour=None, mixes_per_kwh=None, bound_per_hour=plan.bound_per_s * HOUR_S)
    only = _of_hosts(result, names)
    run = run_of(only, score.mix, phase, doubts)
    if run is None:
        return replace(step, problems=(found("mix_complete.unfinished", phase=phase.name),))
    if problems := (*run.problems, *unproven(phase.name, plan, score.mix.units, result.devices, solo)):
        return replace(step, problems=problems)
    why_no_mx = "; ".join((*run.total.reasons, *run.total.lost)) or None
    if result.domains and not only.domains:
        why_no_mx = "no meter reads these hosts without others"
    mx = None if why_no_mx else run.mixes_per_kwh
    return replace(step, mixes_per_hour=run.mixes_per_hour, mixes_per_kwh=mx, unmeasured=why_no_mx)


def _hosts(phase: Phase) -> tuple[str, ...]:
    """The hosts of the devices that the plan of a phase could choose, and of the devices with a task in it."""
    rates = phase.placement.rates if phase.placement else ()
    devices = (*(rate.device for rate in rates), *(task.device for task in phase.tasks))
    return tuple(dict.fromkeys(map(host_of, devices)))


def _of_hosts(result: Result, names: Collection[str]) -> Result:
    """The result as if it had only these hosts."""
    hosts = [
        host.model_copy(update={"names": kept, "machines": host.machines and min(host.machines, len(kept))})
        for host in result.hosts
        if (kept := tuple(name for name in host.names if name in names))
    ]
    return result.model_copy(
        update={
            "hosts": tuple(hosts),
            "devices": tuple(device for device in result.devices if device.host in names),
            "domains": tuple(domain for domain in result.domains if domain.hosts <= set(names)),
            "absent": tuple(each for each in result.absent if {host_of(part) for part in each.covers} <= set(names)),
        }
    )
