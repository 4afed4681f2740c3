"""A simulated run over several hosts: the machine of `machine` several times, each with a wall meter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from mixmark.harness.contracts.device_ids import host_of, local, on
from mixmark.harness.contracts.schema import (
    Clock,
    Conditions,
    Connection,
    Domain,
    Environment,
    Hosts,
    Metering,
    Record,
    Result,
    Samples,
)
from mixmark.harness.measure.dispatch import Pair
from mixmark.harness.plan.placement import Power, place
from tests.fakes.machine import (
    AT_WORK,
    EDGE,
    GPU_AND_CPU,
    MIX,
    OUTSIDE,
    QUANTA,
    SECOND,
    Machine,
    Rates,
    device,
    recorded,
    result,
)
from tests.golden.sample import but, domain, system

NAMES = ("host1", "host2")
WATTS = 600.0
"""What each host draws at its wall."""
BOUND_NS = 200_000


def rates(names: Sequence[str] = NAMES) -> dict[Pair, float]:
    return {(suite, on(host, id)): rate for host in names for (suite, id), rate in GPU_AND_CPU.items()}


def wall(host: str) -> Domain:
    return domain(on(host, "plug"), tuple(on(host, each) for each in ("gpu:0", "cpu:0", "node")), **OUTSIDE)


def watched(begin_ns: int, end_ns: int, **changed: object) -> tuple[Conditions, ...]:
    """Three blocks around the window, of a host at rest but for us; what is changed is so in each."""
    third = (end_ns - begin_ns) // 3 + 1
    quiet = {"cpus": 2, "busy_ns": third, "own_ns": third, "received_bytes": 0, "sent_bytes": 0}
    return tuple(
        Conditions.model_validate({"begin_ns": at, "end_ns": at + third} | quiet | changed)
        for at in range(begin_ns, begin_ns + 3 * third, third)
    )


def connection(phase: str, host: str, bound_ns: int = BOUND_NS, **changed: int) -> Connection:
    clock = Clock(at_ns=0, offset_ns=7_000_000_000, drift=1e-6, bound_ns=bound_ns, pings=600)
    return Connection.model_validate(
        {"phase": phase, "host": host, "clock": clock, "sent_bytes": 30_000, "received_bytes": 20_000} | changed
    )


def metering(phase: str, domains: Sequence[Domain], watts: float, begin_ns: int, end_ns: int) -> Metering:
    """One metering, with the samples of all hosts. No two meters flicker alike."""
    at = np.arange(begin_ns - 2 * SECOND, end_ns + 2 * SECOND, SECOND // 2)
    rng = np.random.default_rng(len(phase))
    samples = {each.id: Samples(at, at, watts + 1e-3 * rng.random(len(at))) for each in domains}
    return Metering(phase=phase, begin_ns=int(at[0]), end_ns=int(at[-1]), cpu_ns=0, samples=samples)


def timed(record: Record) -> Record:
    begin_ns, end_ns = record.parent_window_ns or (0, SECOND)
    return but(record, conditions=watched(begin_ns, end_ns))


def busy(known: Rates, seconds: float) -> Machine:
    """The devices of these rates while they do the mix, as fast as alone."""
    ids = tuple(dict.fromkeys(id for _, id in known))
    at_work = {(suite, id): AT_WORK[suite, local(id)] for suite, id in known}
    idle = {id: 60.0 if local(id) == "gpu:0" else 50.0 for id in ids}
    power = Power(idle, 120.0 * len({host_of(id) for id in ids}))
    planner = partial(place, devices=[device(id) for id in ids], power=power)
    quanta = {(suite, id): QUANTA[suite, local(id)] for suite, id in known}
    machine = Machine(MIX, known, quanta, plan=planner, watts=at_work)
    machine.run(seconds)
    return machine


def cluster(names: Sequence[str] = NAMES, runs: int = 1, speeds: Rates | None = None, seconds: float = 600) -> Result:
    """A run over these hosts, each with a GPU, a processor and a wall meter, all of them kept busy for 10 minutes."""
    known = dict(speeds or rates(names))
    machine = busy(known, seconds)
    runs_made = [recorded(machine, f"mixed.{number}") for number in range(1, runs + 1)]
    ids = tuple(dict.fromkeys(id for _, id in known))
    whole = result(runs_made, EDGE, None, machine.now_ns, ids)
    records = list(map(timed, whole.records))
    of_phase: dict[str, dict[str, Domain]] = {}
    for each in records:
        of_phase.setdefault(each.phase, {})[each.route.host] = wall(each.route.host)
    spans = {each.phase: each.parent_window_ns or (0, SECOND) for each in records}
    return but(
        whole,
        records=tuple(records),
        domains=tuple(map(wall, names)),
        hosts=(Hosts(names=tuple(names), system=system()),),
        meterings=tuple(metering(name, [*of_phase[name].values()], WATTS, *span) for name, span in spans.items()),
        connections=tuple(connection(name, host) for name in spans for host in of_phase[name]),
    )


def environment_of(python: str) -> Environment:
    return Environment(origin="built in", spec="a:A", python=python, mixmark="0.1.0")
