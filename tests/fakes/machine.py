"""A simulated machine: devices of known rates on a fake clock, kept busy by the dispatcher; and the result of a run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from pydantic import BaseModel

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.device_ids import host_of, local, on
from mixmark.harness.measure import mixed
from mixmark.harness.measure.dispatch import Dispatcher, Handed, Loaded, Pair, Source
from mixmark.harness.plan.placement import Planner, Power, place
from tests.golden.sample import but, domain
from tests.golden.sample import result as bare

SECOND = 1_000_000_000
Rates = Mapping[Pair, float]


def device(id: str) -> schema.Device:
    kind = local(id).partition(":")[0]
    pool = on(host_of(id), "host") if kind == "cpu" else id
    return schema.Device.model_validate({"id": id, "kind": kind, "memory_pool": pool})


def slug(id: str) -> str:
    """A device's id as it stands in keys."""
    return id.replace(":", "-").replace("/", "-")


def solo(rates: Rates, watts: Mapping[Pair, float] | None = None) -> list[schema.Rate]:
    return [
        schema.Rate(
            suite=suite,
            device=device,
            adapter="acme",
            precision="bf16",
            batch=1,
            units_per_s=rate,
            watts=watts[suite, device] if watts else None,
        )
        for (suite, device), rate in rates.items()
    ]


class Machine:
    """Devices that work through their queues, each feed as long as the rate at its start says."""

    def __init__(
        self,
        mix_units: Mapping[str, float],
        rates: Rates,
        quanta: Mapping[Pair, int],
        actual: Callable[[Pair, float], float] | None = None,
        plan: Planner | None = None,
        watts: Mapping[Pair, float] | None = None,
        counts: Callable[[Pair], bool] = lambda pair: True,
        concurrency: int = 1,
        marks: Mapping[str, int] | None = None,
        may_wait: bool = False,
        source: Source | None = None,
    ) -> None:
        """marks: the number of equal steps that a suite's feed has, 1 for a suite that is not named.
        may_wait: whether all devices may wait at once, as the devices of a host without credit do. source: makes what
        hands out the feeds; None: a dispatcher by the plan."""
        devices = [device(id) for id in dict.fromkeys(id for _, id in rates)]
        self.plan: Planner = plan or partial(place, devices=devices)
        self.actual = actual or (lambda pair, at_s: rates[pair])
        self.mix_units, self.quanta, self.concurrency, self.counts = mix_units, quanta, concurrency, counts
        self.queues: dict[str, list[Handed]] = {each.id: [] for each in devices}
        self.number = {id: at for at, id in enumerate(self.queues)}
        self.not_full = set(self.queues)
        """The devices that may hold another feed: only these are asked, since a cluster has thousands."""
        self.running: dict[str, int] = dict.fromkeys(self.queues, 0)
        self.yields = marks or {}
        self.now_ns, self.may_wait = 0, may_wait
        self.ends: list[tuple[int, int, str, Handed, int]] = []
        self.begun = 0
        self.busy_ns = dict.fromkeys(self.queues, 0)
        self.done: dict[Pair, list[tuple[int, int]]] = {pair: [] for pair in rates}
        """Begin and end of every feed that finished."""
        self.due_ns: dict[Pair, list[int]] = {}
        """When the request of every feed was due that finished."""
        self.responses_ns: dict[tuple[str, int], list[int]] = {}
        """The response times of the feeds of every request that arrived by time."""
        placement = self.plan(mix_units, solo(rates, watts))
        # A host's part of a mix may lack suites that it can run, and gets later.
        self.placement = placement = but(placement, rates=tuple(solo(rates, watts)))
        source = source or partial(Dispatcher, plan=self.plan)
        loaded = Loaded(mix_units, placement, quanta, dict.fromkeys(quanta, concurrency))
        self.dispatcher: Any = source(loaded)
        self.next_arrival_ns = getattr(self.dispatcher, "next_arrival_ns", lambda: None)
        self.dispatcher.begin(0)

    def lose(self, id: str) -> None:
        del self.queues[id]
        self.not_full.discard(id)
        self.ends = [end for end in self.ends if end[2] != id]
        heapq.heapify(self.ends)
        self.dispatcher.lost(id, self.now_ns)

    def run(self, until_s: float) -> float:
        """Mixes per second from now to then."""
        begin_ns, before = self.now_ns, self.dispatcher.mixes
        while self.step(until_s):
            pass
        return float((self.dispatcher.mixes - before) / max(1, self.now_ns - begin_ns) * SECOND)

    def step(self, until_s: float) -> bool:
        """Goes on to the next feed that finishes by then. False: there is none."""
        self.hand_out()
        arrival_ns = self.next_arrival_ns()
        while arrival_ns is not None and arrival_ns <= until_s * SECOND:
            if self.ends and self.ends[0][0] < arrival_ns:
                break
            self.now_ns = arrival_ns
            self.not_full = set(self.queues)  # a full one takes up the request too
            self.hand_out()
            arrival_ns = self.next_arrival_ns()
        if not self.ends and not self.may_wait:
            raise AssertionError("every device waits")
        if not self.ends or self.ends[0][0] > until_s * SECOND:
            return False
        self.now_ns, _, id, handed, since_ns = heapq.heappop(self.ends)
        suite = handed.suite
        self.running[id] -= 1
        self.not_full.add(id)
        self.busy_ns[id] += self.now_ns - since_ns
        self.done[suite, id].append((since_ns, self.now_ns))
        if handed.due_ns is not None:
            self.due_ns.setdefault((suite, id), []).append(handed.due_ns)
            self.responses_ns.setdefault((suite, handed.request), []).append(self.now_ns - handed.due_ns)
        units = self.quanta[suite, id] if self.counts((suite, id)) else 0
        self.dispatcher.finished(id, handed, since_ns, self.now_ns, units)
        return True

    def window(self, limits: schema.Limits) -> float:
        """Mixes per second of a mixed phase with these limits, which begins now and ends as `mixed` ends it."""
        while self.step(limits.max_ns / SECOND):
            if mixed.is_over(self.now_ns, self.dispatcher.surplus(self.now_ns), limits):
                break
        else:
            self.now_ns = limits.max_ns
        return min(map(self.stamped, self.mix_units)) / self.now_ns * SECOND

    def steps(self, pair: Pair, begin_ns: int, end_ns: int) -> tuple[list[int], list[int]]:
        """When which units of a feed came."""
        count = self.yields.get(pair[0], 1)
        stamps_ns = [begin_ns + (end_ns - begin_ns) * step // count for step in range(1, count + 1)]
        return stamps_ns, [self.quanta[pair] // count] * count

    def stamped(self, suite: str) -> float:
        """The mixes of a suite with a timestamp before now, of feeds under way too."""
        spans = [(pair, *span) for pair, done in self.done.items() for span in done]
        spans += [((handed.suite, id), since_ns, end_ns) for end_ns, _, id, handed, since_ns in self.ends]
        units = 0
        for pair, since_ns, end_ns in spans:
            steps = self.steps(pair, since_ns, end_ns) if pair[0] == suite else ([], [])
            units += sum(count for at_ns, count in zip(*steps, strict=True) if at_ns <= self.now_ns)
        return units / self.mix_units[suite]

    def hand_out(self) -> None:
        given = True
        while given:
            given = False
            for id in sorted(self.not_full, key=self.number.__getitem__):
                queue = self.queues[id]
                if handed := self.dispatcher.next(id, self.now_ns):
                    queue.append(handed)
                    given = True
                while queue and self.running[id] < self.concurrency:
                    self._start(id, queue.pop(0))
                if len(queue) + self.running[id] > self.concurrency:
                    self.not_full.remove(id)

    def _start(self, id: str, handed: Handed) -> None:
        self.running[id] += 1
        self.begun += 1
        pair = handed.suite, id
        took_s = self.concurrency * self.quanta[pair] / self.actual(pair, self.now_ns / SECOND)
        heapq.heappush(self.ends, (self.now_ns + max(1, round(took_s * SECOND)), self.begun, id, handed, self.now_ns))


MIX = {"llm": 200.0, "diffusion": 1.0, "dlrm": 40_000.0, "resnet50": 1000.0}
EDGE = schema.Mix(name="edge-9", tier="edge", units=MIX)
"""A test that ranks it publishes it: `monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})`."""
GPU_AND_CPU: Rates = {
    ("llm", "gpu:0"): 100,
    ("llm", "cpu:0"): 10,
    ("diffusion", "gpu:0"): 0.5,
    ("diffusion", "cpu:0"): 0.01,
    ("dlrm", "gpu:0"): 20_000,
    ("dlrm", "cpu:0"): 30_000,
    ("resnet50", "gpu:0"): 2000,
    ("resnet50", "cpu:0"): 100,
}
QUANTA = {pair: {"llm": 20, "diffusion": 1, "dlrm": 2048, "resnet50": 32}[pair[0]] for pair in GPU_AND_CPU}

AT_WORK = dict(zip(GPU_AND_CPU, (280, 170, 350, 180, 150, 190, 320, 180), strict=True))
"""The watts of each device while it works on a suite."""


def completions(
    spans_ns: list[tuple[int, int]], units: int, marks: int = 1, due_ns: list[int] | None = None
) -> schema.Completions:
    """One feed for each span, in the order of their begins, its units in so many equal steps. due_ns: when the request
    of each feed was due; if None, when it began."""
    order = np.argsort([begin for begin, _ in spans_ns], kind="stable")
    begins, ends = np.array(spans_ns)[order].T
    due = begins if due_ns is None else np.array(due_ns)[order]
    marks_ns = begins[:, None] + (ends - begins)[:, None] * np.arange(1, marks + 1) // marks
    count = np.full(marks_ns.size, units // marks)
    return schema.Completions(due, begins, np.arange(1, len(begins) + 1) * marks, marks_ns.ravel(), count)


def record(
    phase: str, pair: Pair, done: schema.Completions, parent_window_ns: tuple[int, int], audits: int = 40
) -> schema.Record:
    suite, device = pair
    route = schema.Route(suite=suite, tier="edge", suite_version="1", device=device, adapter="acme", precision="bf16")
    audit = schema.Audit(
        gate=schema.Gate(metric="regret", at_most=1),
        finished=len(done),
        feeds=tuple(range(audits)),
        values=(0.1,) * audits,
    )
    key = f"{phase}.{suite}.{slug(device)}"
    return schema.Record(
        key=key,
        phase=phase,
        route=route,
        scenario="mixed",
        unit="unit",
        completions=done,
        feed_units=int(done.units[: done.ends[0]].sum()),
        parent_window_ns=parent_window_ns,
        stamped=True,
        audit=audit if audits else None,
    )


def solo_record(rate: schema.Rate) -> schema.Record:
    """A solo record of 1,000 s of this rate."""
    units = round(1000 * rate.units_per_s) or 1
    done = completions([(0, round(units / rate.units_per_s * SECOND))], units)
    pair = rate.suite, rate.device
    name = f"solo.{rate.suite}.{slug(rate.device)}"
    made = record(name, pair, done, (0, int(done.yielded_ns[-1])), 1)
    route = but(made.route, adapter=rate.adapter, precision=rate.precision)
    return but(made, key=name, scenario="offline", batch=rate.batch, route=route)


def phase(records: list[schema.Record], placement: schema.Placement) -> schema.Phase:
    limits = schema.Limits(warmup_ns=0, search_ns=0, min_ns=0, max_ns=1, min_feeds=1)
    tasks = []
    for device in dict.fromkeys(each.route.device for each in records):
        shares = [
            schema.Share(key=each.key, route=each.route, scenario="mixed", run=each.run, limits=limits)
            for each in records
            if each.route.device == device
        ]
        tasks.append(schema.Task(device=device, shares=tuple(shares)))
    return schema.Phase(name=records[0].phase, purpose="mixed", tasks=tuple(tasks), placement=placement)


def metering(name: str, domain: schema.Domain, watts: float, end_ns: int) -> schema.Metering:
    """A wall analyzer that reads the same power twice a second, all through the phase and 2 s around it."""
    at = np.arange(-2 * SECOND, end_ns + 2 * SECOND, SECOND // 2)
    values = np.full(len(at), watts) + 1e-3 * np.resize((0, 1), len(at))  # one that never moves is taken for broken
    samples = {domain.id: schema.Samples(at, at, values)}
    return schema.Metering(phase=name, begin_ns=int(at[0]), end_ns=int(at[-1]), cpu_ns=0, samples=samples)


OUTSIDE = {"meter": "external", "boundary": "wall", "quantity": "power", "method": "external", "source": "a story"}
WALL = domain("wall", ("gpu:0", "cpu:0"), **OUTSIDE)


def probe(
    on: str, *costs: schema.Cost, took_ns: int = SECOND, precision: schema.Precision = "bf16", audits: int = 1
) -> schema.Record:
    """A probe of a device, each of whose kernels took so long."""
    edges = [took_ns * index for index in range(len(costs) + 1)]
    done = schema.Completions(*map(np.array, ([0], [0], [len(costs)], edges[1:], [1] * len(costs))))
    made = record(f"probe.{slug(on)}.{precision}", ("probe", on), done, (0, edges[-1]), audits)
    route = but(made.route, precision=precision)
    return but(made, key=made.phase, scenario="probe", costs=costs, route=route)


GEMM = schema.Cost(name="gemm", flops=1e15, bytes=0)
READ = schema.Cost(name="read", flops=0, bytes=1e13, streamed_bytes=1e13)


def result(
    runs: list[tuple[list[schema.Record], schema.Placement]],
    mix: schema.Mix,
    watts: float | None,
    end_ns: int,
    ids: tuple[str, ...],
    probes: tuple[schema.Record, ...] | None = None,
) -> schema.Result:
    """watts: at the wall; None: no meter. probes: if None, probes of devices that are faster than anything here."""
    runs = [
        ([but(each, run=number) for each in records], placement) for number, (records, placement) in enumerate(runs, 1)
    ]
    phases = tuple(phase(records, placement) for records, placement in runs)
    solos = [solo_record(rate) for rate in runs[0][1].rates]
    targets = {(each.route.device, each.route.precision) for each in solos}
    targets |= {(each.route.device, each.route.precision) for records, _ in runs for each in records}
    if probes is None:
        probes = tuple(probe(on, GEMM, READ, precision=precision) for on, precision in sorted(targets))
    meterings = (
        ()
        if watts is None
        else tuple(
            metering(name, WALL, watts, length_ns)
            for name, length_ns in (
                *((each.name, end_ns) for each in phases),
                *((each.phase, 1000 * SECOND) for each in solos),
            )
        )
    )
    return but(
        bare(*(record for records, _ in runs for record in records), *solos, *probes),
        devices=tuple(device(id) for id in ids),
        phases=phases,
        mix=mix,
        domains=(WALL,) if watts is not None else (),
        meterings=meterings,
    )


def recorded(
    machine: Machine, name: str = "mixed.1", marks: Mapping[str, int] = {"llm": 20}, end_ns: int = 0
) -> tuple[list[schema.Record], schema.Placement]:
    """The records of the feeds that the machine has finished, and its plan. The phase lasts at least until end_ns."""
    bracket = (0, max(machine.now_ns, end_ns))
    return [
        record(
            name,
            pair,
            completions(spans, machine.quanta[pair], marks.get(pair[0], 1), machine.due_ns.get(pair)),
            bracket,
        )
        for pair, spans in machine.done.items()
        if spans
    ], machine.placement


Turn = tuple[schema.Phase, list[schema.Record]]
"""A phase of an experiment, and its records."""


def of_experiment(experiment: str, facts: BaseModel | Mapping[str, Any], planned: schema.Phase) -> schema.Phase:
    """The phase as one of an experiment, which keeps these facts of it."""
    kept = facts.model_dump(mode="json") if isinstance(facts, BaseModel) else facts
    return but(planned, purpose="experiment", experiment=experiment, facts=kept)


def turn(
    experiment: str, facts: BaseModel | Mapping[str, Any], records: list[schema.Record], placement: schema.Placement
) -> Turn:
    """The records of a mix with their phase, which is one of an experiment."""
    return of_experiment(experiment, facts, phase(records, placement)), records


def with_turns(base: schema.Result, asked: Mapping[str, Any], *turns: Turn, **changed: object) -> schema.Result:
    """The result of a run that was asked for these experiments, with their phases."""
    update = {
        "experiments": asked,
        "phases": (*base.phases, *(each for each, _ in turns)),
        "records": (*base.records, *(record for _, records in turns for record in records)),
    }
    return base.model_copy(update=update | changed)


WATTS_AT_THE_WALL = 600.0


def example(pace: float = 1.0, until_s: float = 600, **more: Any) -> Machine:
    """The GPU and the CPU of the method's worked example, kept busy at a part of their pace. more: of `Machine`."""
    machine = Machine(MIX, GPU_AND_CPU, QUANTA, lambda pair, _: pace * GPU_AND_CPU[pair], **more)
    machine.run(until_s)
    return machine


@cache  # facts are frozen
def one_run(watts: float | None, runs: int = 1) -> schema.Result:
    """The GPU and the CPU of the method's worked example, kept busy for 10 minutes; again for each run; the second
    is 1 % faster and the third 1 % slower."""
    ids = ("gpu:0", "cpu:0")

    power = None if watts is None else Power({"gpu:0": 60, "cpu:0": 50}, 120)
    planner = partial(place, devices=[device(id) for id in ids], power=power)
    drawn: dict[str, Any] = {"plan": planner, "watts": AT_WORK if power else None}
    paces = [(1.0, 1.01, 0.99)[number % 3] for number in range(runs)]
    runs_made = [recorded(example(pace, **drawn), f"mixed.{number}") for number, pace in enumerate(paces, 1)]
    return result(runs_made, EDGE, watts, 600 * SECOND, ids)
