"""The evidence that rules look at: the facts of a result and the figures that follow from them, each computed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.device_ids import host_of, named, part_of
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.judge import mixed_run, roofline
from mixmark.harness.judge.diagnosis import Diagnosis
from mixmark.harness.judge.energy import coverage, total
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.mixed_run import ScoredRun
from mixmark.harness.judge.roofline import Achieved, Ceiling, CeilingKey, PeakRates
from mixmark.harness.judge.score import Score, counted
from mixmark.harness.judge.statistics import intervals, timestamps
from mixmark.harness.judge.statistics.intervals import Window
from mixmark.harness.plan.equals import equals

MUCH_FOREIGN = 0.05  # of the machine's CPU time: others moved the figures by more than an official score may be wide
MUCH_STOLEN = 0.05  # the same, taken by the hypervisor


@dataclass(frozen=True, eq=False)
class Measurement:
    """A record with timestamps. Its figures are computed when they are first needed, and kept."""

    record: schema.Record
    completions: schema.Completions
    result: schema.Result = field(repr=False)
    """The facts of its machine alone."""

    @property
    def key(self) -> str:
        return self.record.key

    @property
    def system(self) -> schema.System:
        """The system of the host that it ran on."""
        return self.result.system_of(self.record.route.host)

    @property
    def machine(self) -> str:
        """The name of the host that it ran on, in a sentence."""
        return named(self.record.route.host)

    @property
    def clock_bound_ns(self) -> int:
        """The largest error of its timestamps."""
        own = (each for each in self.result.connections if each.host == self.record.route.host)
        return mixed_run.clock_bounds_ns(own)[self.record.phase]

    @property
    def traffic(self) -> mixed_run.Traffic:
        """What its host sent and received in the blocks that touch the window."""
        return mixed_run.carried(self.result, self.record.phase, self.record.route.host, self.touching)

    @property
    def is_solo(self) -> bool:
        """Whether it measures a suite alone on a device: see `is_solo`."""
        return is_solo(self.record)

    @property
    def concurrency(self) -> int:
        """How many feeds its runner may have had in flight at once."""
        return 1 if self.record.scenario == "single-stream" else self.record.concurrency

    @cached_property
    def window_ns(self) -> tuple[int, int]:
        """The first issue and the last mark."""
        return timestamps.window_ns(self.completions)

    @cached_property
    def bracket_ns(self) -> tuple[int, int]:
        """The window over which the throughput counts: of a closed loop as the parent timed it."""
        return timestamps.bracket_ns(self.record) or self.window_ns

    @cached_property
    def worked_ns(self) -> int:
        """The sum of the times of all feeds."""
        done = self.completions
        return int((done.yielded_ns[done.ends - 1] - done.issued_ns).sum())

    @property
    def mean_in_flight(self) -> float:
        """The mean number of feeds in flight while there was any."""
        return self.worked_ns / self.in_flight_ns if self.in_flight_ns else 1.0

    @property
    def between_feeds(self) -> float:
        """The fraction of a closed loop's window without a feed in flight, for each feed that the runner takes at once.
        The harness then makes the next feed and keeps the output before it."""
        begin_ns, end_ns = self.bracket_ns
        return 1 - self.worked_ns / (self.concurrency * (end_ns - begin_ns)) if end_ns > begin_ns else 0.0

    @cached_property
    def in_flight_ns(self) -> int:
        return timestamps.in_flight_ns(self.completions)

    @cached_property
    def throughput_per_s(self) -> float | None:
        """Units per second over the whole window. None if the clock did not tick."""
        return timestamps.rate_per_s(self.record)

    @cached_property
    def window(self) -> Window | None:
        """The window in blocks. All of them count. None if the clock did not tick, or in a mix, where suites take
        turns."""
        if self.record.scenario == "mixed":
            return None
        return intervals.window(self.completions, self.bracket_ns)

    @cached_property
    def interval(self) -> Estimate | None:
        """The interval of a closed loop's throughput. None if the window is not steady or has too few blocks, if the
        interval is not known, and for a server."""
        return None if self.record.scenario == "server" or self.window is None else self.window.interval

    @cached_property
    def schedule_ns(self) -> schema.Int64s | None:
        """When a server's feeds were due: see `timestamps.schedule_ns`."""
        return timestamps.schedule_ns(self.record)

    @cached_property
    def energy(self) -> MachineEnergy | None:
        """The machine's energy in the window. None if nothing is metered, or other records share the phase."""
        return total.of_record(self.result, self.record) if self.result.domains else None

    @cached_property
    def touching(self) -> tuple[schema.Conditions, ...]:
        """The blocks of the watch that touch the window."""
        return mixed_run.touching(self.record.conditions, *self.window_ns)

    @cached_property
    def watched(self) -> tuple[schema.Conditions, ...]:
        """The blocks that lie inside the window. A window that is too short for one has those that touch it."""
        begin_ns, end_ns = self.window_ns
        inside = (block for block in self.touching if begin_ns <= block.begin_ns and block.end_ns <= end_ns)
        return tuple(inside) or self.touching

    def total(self, counter: str) -> int | None:
        """The sum of a counter of `Conditions` over the watched blocks that know it. None if no block does."""
        known: list[int] = [value for block in self.watched if (value := getattr(block, counter)) is not None]
        return sum(known) if known else None

    def per_s(self, counter: str) -> float:
        """A counter per second of the watched blocks that know it. 0: no block does."""
        blocks = [block for block in self.watched if getattr(block, counter) is not None]
        elapsed_ns = sum(block.end_ns - block.begin_ns for block in blocks)
        return (self.total(counter) or 0) / (elapsed_ns / 1e9) if blocks else 0.0

    @cached_property
    def foreign_cores(self) -> tuple[float, int] | None:
        """(the mean number of CPUs that other programs kept busy, the number of CPUs). None if the machine does not
        say. Counters tick every 10 ms."""
        blocks = [
            (block.foreign_ns, block.end_ns - block.begin_ns, block.cpus)
            for block in self.watched
            if block.foreign_ns is not None and block.cpus
        ]
        if not blocks:
            return None
        cores = sum(foreign for foreign, _, _ in blocks) / sum(elapsed for _, elapsed, _ in blocks)
        return cores, max(cpus for _, _, cpus in blocks)

    @cached_property
    def stolen(self) -> tuple[float, float] | None:
        """(the fraction of the CPUs' time that the hypervisor gave to others, the same fraction in the worst block).
        None if the machine does not say."""
        blocks = [
            (block.stolen_ns, (block.end_ns - block.begin_ns) * block.cpus)
            for block in self.watched
            if block.stolen_ns is not None and block.cpus
        ]
        if not blocks:
            return None
        mean = sum(stolen for stolen, _ in blocks) / sum(whole for _, whole in blocks)
        return mean, max(stolen / whole for stolen, whole in blocks)

    @property
    def foreign_fraction(self) -> float:
        """The fraction of the CPUs' time of its host that other programs used. 0 if the machine does not say."""
        cores, cpus = self.foreign_cores or (0.0, 1)
        return cores / cpus

    @property
    def stolen_fraction(self) -> float:
        """The fraction of that time that the hypervisor gave to others. 0 if the machine does not say."""
        return self.stolen[0] if self.stolen else 0.0

    @property
    def throttled_fraction(self) -> float:
        """The fraction of that time that an exhausted CPU quota kept from the run. 0 if the machine does not say."""
        cpus = max((block.cpus for block in self.watched if block.cpus), default=1)
        return self.per_s("throttled_ns") / 1e9 / cpus

    @property
    def disturbed(self) -> bool:
        """Whether other programs or the hypervisor took much of the CPUs' time."""
        return self.foreign_fraction > MUCH_FOREIGN or self.stolen_fraction > MUCH_STOLEN

    @cached_property
    def silicon(self) -> frozenset[str]:
        """The ids of the record's device and of its parts, or of the device that it is a slice of."""
        known = (map(part_of, each.silicon) for each in self.result.devices if each.id == self.record.route.device)
        return frozenset({self.record.route.device}).union(*known)

    @cached_property
    def accelerators(self) -> Mapping[str, list[schema.AcceleratorConditions]]:
        """The states of each accelerator that the record ran on in the watched blocks, by the accelerator's id."""
        states: dict[str, list[schema.AcceleratorConditions]] = {}
        for state in (state for block in self.watched for state in block.accelerators if state.id in self.silicon):
            states.setdefault(state.id, []).append(state)
        return states


@dataclass(frozen=True, eq=False)
class Evidence:
    """A result and all figures that rules look at. No rule computes them again."""

    result: schema.Result
    measured: tuple[Measurement, ...]
    """The records with timestamps, in the order of the run."""
    ceilings: Mapping[CeilingKey, Ceiling]
    peaks: PeakRates
    """The rates that no honest record exceeds, by the probes of built-in adapters."""
    typical: PeakRates
    """The median passes of the kernels that reached them."""
    equals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes of devices of which one may stand for all: see `plan.equals`."""
    mixed_runs: tuple[ScoredRun, ...] = ()
    """The mixed runs that went to their end. Empty while the integrity rules, on which they depend, look."""
    score: Score | None = None
    """None if there is no mixed run, or it is not computed yet."""
    unknown_suites: Mapping[str, str] = field(default_factory=dict)
    """Why records could not be compared with the code of their suite, by their keys."""
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    """What explains each mixed run, by its phase."""

    @property
    def solo(self) -> Iterator[Measurement]:
        """The solo measurements."""
        return (measured for measured in self.measured if measured.is_solo)

    @property
    def runs(self) -> tuple[ScoredRun, ...]:
        """The mixed runs that the score counts."""
        return counted(self.mixed_runs)

    @cached_property
    def counted(self) -> tuple[Measurement, ...]:
        """The records with timestamps that a figure counts: no screening run, and no mixed run that the score leaves
        out."""
        left_out = {run.phase for run in self.mixed_runs} - {run.phase for run in self.runs}
        return tuple(each for each in self.measured if each.record.phase not in left_out and not each.record.screening)

    @cached_property
    def figured(self) -> tuple[Measurement, ...]:
        """The records that the figure shown is of: those of the mixed runs of a score, else all suites alone."""
        runs = {run.phase for run in self.runs} if self.score and self.score.mixes_per_hour else ()
        return tuple(
            each for each in self.counted if (each.record.phase in runs if runs else each.record.scenario != "probe")
        )

    @cached_property
    def limits(self) -> Mapping[str, schema.Limits]:
        """What the plan asks of each record, by its key."""
        phases = self.result.phases
        return {share.key: share.limits for phase in phases for task in phase.tasks for share in task.shares}

    def achieved(self, measured: Measurement) -> Achieved:
        """The fraction of the roofline that a record reached."""
        return roofline.achieved(measured.record, self.peaks, self.typical)


def gather(result: schema.Result, unknown_suites: Mapping[str, str] = MappingProxyType({})) -> Evidence:
    """The evidence of a result. A probe that was disturbed sets no ceiling: what it found is too low, and an honest
    record would exceed it."""
    machines = by_machine(result)
    measured = tuple(
        Measurement(record, record.completions, machines.get(record.route.host, result))
        for record in result.records
        if record.completions is not None
    )
    probes = [each.record for each in measured if each.record.scenario == "probe" and not each.disturbed]
    witnesses = [record for record in probes if result.ran_built_in(record.route)]
    equal = equals(result)
    peaks, typical = (each.for_equals(equal) for each in roofline.peak_rates(witnesses, result.devices))
    return Evidence(
        result=result,
        measured=measured,
        ceilings=roofline.ceilings(probes, result.devices, {record.key for record in witnesses}),
        peaks=peaks,
        typical=typical,
        equals=equal,
        unknown_suites=unknown_suites,
    )


def by_machine(result: schema.Result) -> Mapping[str, schema.Result]:
    """What was measured on each machine, by the names of its hosts: of a run on one machine, the whole result. Phases
    of other machines may have gone on at the same time, so a solo measurement has the energy of its own machine."""
    if len(result.systems) == 1:
        return dict.fromkeys(result.systems, result)
    first_of = {host: host for host in result.systems}
    for group in coverage.by_machine(result.domains):
        hosts = sorted(first_of.keys() & frozenset().union(*(each.hosts for each in group)))
        first_of |= dict.fromkeys(hosts, hosts[0] if hosts else "")
    of_phase: dict[str, set[str]] = defaultdict(set)
    for record in result.records:
        of_phase[record.phase].add(record.route.host)
    kept: dict[str, dict[str, list[schema.Fact]]] = {first: defaultdict(list) for first in first_of.values()}

    def keep(name: str, facts: Iterable[schema.Fact], hosts_of: Callable[[Any], Iterable[str]]) -> None:
        for fact in facts:
            for machine in {first_of[host] for host in hosts_of(fact) if host in first_of}:
                kept[machine][name].append(fact)

    keep("devices", result.devices, lambda device: [device.host])
    keep("domains", result.domains, lambda domain: domain.hosts)
    keep("absent", result.absent, lambda absence: map(host_of, (absence.name, *absence.covers)))
    keep("records", result.records, lambda record: [record.route.host])
    keep("connections", result.connections, lambda connection: [connection.host])
    keep("phases", result.phases, lambda phase: of_phase[phase.name])
    of_domain = {domain.id: domain.hosts for domain in result.domains}
    keep(
        "meterings",
        result.meterings,
        lambda metering: of_phase[metering.phase].union(*(of_domain.get(id, ()) for id in metering.samples)),
    )
    alone = [schema.Hosts(names=(host,), system=system) for host, system in result.systems.items()]
    keep("hosts", alone, lambda hosts: hosts.names)
    names = ("devices", "domains", "absent", "records", "connections", "phases", "meterings", "hosts")
    found = {first: result.model_copy(update={name: tuple(own[name]) for name in names}) for first, own in kept.items()}
    return {host: found[first] for host, first in first_of.items()}


def is_solo(record: schema.Record) -> bool:
    """Whether a record is a solo measurement of a suite on a device: no probe, no screening run, no part of a mix."""
    return not record.screening and record.scenario not in ("probe", "mixed")
