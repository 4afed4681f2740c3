"""What measured machines are made of, for the planner: kinds of devices, and how much of a plan a mixed run kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from mixmark.harness.capabilities.plan.machine import Kind, Retained, Speed
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Device, Mix, Result, weight_class
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.diagnosis import BestRate
from mixmark.harness.judge.evidence import Evidence, gather
from mixmark.harness.judge.findings import voided
from mixmark.harness.judge.references import retained
from mixmark.harness.plan.bound import each_once, fastest
from mixmark.harness.plan.placement import Power

Rates = Mapping[tuple[str, str], BestRate]
"""The fastest route of each suite and device."""


@dataclass(frozen=True)
class MeasuredMachine:
    """One measured machine."""

    name: str
    kinds: tuple[Kind, ...]
    """Each owns as many devices as were measured."""
    versions: Mapping[str, str]
    """The version of each suite."""
    created_utc: str
    retained: tuple[float, ...]
    """Measured over planned mixes per hour of each mixed run that counts."""
    mark: str
    """The verdict on the result if its figures should not be relied on. Empty otherwise."""


def measured_machine(name: str, assessment: Assessment, mix: Mix, bits: int) -> MeasuredMachine:
    """The kinds of a judged result, from solo measurements of the mix's suites by routes of at least `bits` bits.

    Raises UsageError if nothing was measured that counts.
    """
    result, verdict = assessment.result, assessment.verdict
    evidence = gather(result)
    alone = solo_rates.alone(evidence, mix, voided(assessment.findings))
    allowed = (each for each in alone if weight_class(each.rate.precision) >= bits)
    rates = fastest(allowed, lambda each: (each.rate.suite, each.rate.device), lambda each: each.rate.units_per_s)
    if verdict.word == "invalid":
        raise UsageError(str(verdict))
    if not rates:
        raise UsageError(f"{name} has no solo measurement of {', '.join(mix.units)} that counts")
    mark = verdict.word if verdict.word in ("disturbed", "unfinished") else ""
    doubt = verdict.reason if mark else ""
    return MeasuredMachine(
        name=f"{name} ({mark})" if mark else name,
        kinds=tuple(replace(kind, doubt=doubt).marked(mark) for kind in _kinds(name, evidence, rates)),
        versions={suite.name: suite.version for suite in result.suites if suite.name in mix.units},
        created_utc=result.created_utc,
        retained=retained(assessment.score, assessment.diagnoses),
        mark=mark,
    )


def of_runs(machines: Iterable[Sequence[float]]) -> Retained:
    """The mean over machines of what their runs retained, and the lowest and highest run. All 1 if there is none."""
    known = [runs for runs in machines if runs]
    runs = [run for own in known for run in own]
    return Retained(mean(map(mean, known)), min(runs), max(runs), len(runs)) if known else Retained()


def _kinds(name: str, evidence: Evidence, rates: Rates) -> Iterator[Kind]:
    """Hosts with all devices in their memory, and accelerators. Equal ones are one kind, with their mean rates."""
    result = evidence.result
    hosts: dict[str, list[Device]] = defaultdict(list)
    cards: dict[str, list[list[Device]]] = defaultdict(list)
    slots: Counter[str] = Counter()
    for device in _once(result.devices, rates):
        own = hosts[device.host]
        if device.kind == "cpu" or device.in_host_memory:
            own.append(device)
        else:
            cards[device.name or device.local_id].append([device])
            slots[device.host] += 1
    power, threads = solo_rates.power(result), solo_rates.host_fraction(evidence)
    rest_watts = power.rest_watts / len(hosts) if power else 0.0
    equal: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for host, devices in hosts.items():
        equal[slots[host], *((device.local_id, device.name) for device in devices)].append(host)
    for names in equal.values():
        devices = hosts[names[0]]
        host_kind = _kind(
            name if len(equal) == 1 else f"{name}, {names[0]}", [hosts[host] for host in names], result, rates, power
        )
        yield replace(
            host_kind,
            is_host=True,
            slots=slots[names[0]],
            processors=frozenset(_inside(devices, device) for device in devices if device.kind == "cpu"),
            threads=min(1.0, threads * sum(device.kind != "cpu" for device in devices)),
            idle_watts=None if host_kind.idle_watts is None else host_kind.idle_watts + rest_watts,
        )
    for card, copies in cards.items():
        yield replace(_kind(card, copies, result, rates, power), threads=threads)


def _inside(devices: Sequence[Device], device: Device) -> str:
    return device.local_id if len(devices) > 1 else ""


def _once(devices: Sequence[Device], rates: Rates) -> list[Device]:
    """Measured devices without shared silicon. A group is left out if each of its parts runs all of its suites."""
    suites: dict[str, set[str]] = defaultdict(set)
    for suite, id in rates:
        suites[id].add(suite)
    known = [device for device in devices if device.id in suites and device.kind != "simulated"]
    return each_once(
        device
        for device in known
        if not device.parts or not all(suites[part] >= suites[device.id] for part in device.parts)
    )


def _kind(name: str, copies: Sequence[Sequence[Device]], result: Result, rates: Rates, power: Power | None) -> Kind:
    """A kind with its measured copies. copies: the devices of each."""
    measured: dict[tuple[str, str, str], list[tuple[BestRate, float | None]]] = defaultdict(list)
    room: dict[str, int] = {}
    for devices in copies:
        for device in devices:
            pool = device.local_pool
            if size := _free_bytes(result, device):
                room[pool] = min(size, room.get(pool, size))
            idle = power.idle_watts[device.id] if power else None
            for (suite, id), best in rates.items():
                if id == device.id:
                    watts = None if idle is None or best.rate.watts is None else max(0.0, best.rate.watts - idle)
                    measured[suite, _inside(devices, device), pool].append((best, watts))
    idle_watts = [sum(power.idle_watts[device.id] for device in devices) for devices in copies] if power else []
    speeds = []
    for (suite, inside, pool), found in measured.items():
        extra = [watts for _, watts in found if watts is not None]
        speeds.append(
            Speed(
                suite=suite,
                units_per_s=Estimate.within(
                    mean(best.rate.units_per_s for best, _ in found),
                    max(best.units_per_s.half_width or 0.0 for best, _ in found),
                ),
                extra_watts=mean(extra) if len(extra) == len(found) else None,
                memory_bytes=max(best.rate.memory_bytes or 0 for best, _ in found),
                device=inside,
                pool=pool,
            )
        )
    return Kind(
        name, tuple(speeds), pool_bytes=room, idle_watts=mean(idle_watts) if idle_watts else None, owned=len(copies)
    )


def _free_bytes(result: Result, device: Device) -> int | None:
    """The memory of a device: what was free when a mix was planned, or else all of it."""
    plans = [phase.placement for phase in result.phases if phase.placement]
    free = plans[-1].pool_bytes if plans else {}
    return free.get(device.memory_pool, device.memory_bytes)
