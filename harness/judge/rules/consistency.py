"""Checks that the facts of a result folder can all be true of one run; a folder that contradicts itself counts nowhere.

The checks find facts that were left out, doubled or relabelled in one place and not in the others. A change that was
made everywhere alike passes; docs/method.md lists what that leaves to a forger. Everything that a run can write passes
too: the statements of a worker are judged by the rules of `integrity`, and only facts that the harness itself wrote can
be a contradiction here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise

import numpy as np
from pydantic import ValidationError

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.protocols import ABSURD, PATIENCE_S
from mixmark.harness.judge.findings import found, invalid
from mixmark.harness.judge.mixed_run import clock_bounds_ns
from mixmark.harness.judge.rules.registered import Room
from mixmark.harness.judge.statistics.timestamps import copies, fingerprint
from mixmark.harness.plugins import experiments

MOST_FINDINGS = 20
"""A folder that contradicts itself everywhere would have more."""
NS_PER_S = 1_000_000_000
AROUND_NS, AROUND_SHARE = 10 * NS_PER_S, 0.1
"""The watch may last longer than the window by this time and by this fraction of the window: set-up and read-back."""
AROUND_MIX_NS = 3 * NS_PER_S
"""The same for a mixed phase, whose feeds come from the process that watches."""
LONGEST_READ_NS = int(PATIENCE_S * NS_PER_S)
SCENARIO_OF: dict[schema.Purpose, str] = {"probe": "probe", **dict.fromkeys(schema.MIXES, "mixed")}
"""The scenario of the shares of a phase; a phase of another purpose has shares of the scenarios that a user chooses."""


@dataclass(frozen=True)
class SuiteClaim:
    """The facts of a record that the code of its suite determines."""

    unit: str
    feed_units: int | None
    """None if the record has no batch."""
    costs: tuple[schema.Cost, ...]
    gate: schema.Gate | None
    latency_limits: schema.LatencyLimits | None


@dataclass(frozen=True)
class SuiteClaims:
    """What the installed suites say of the records of a result."""

    claims: Mapping[str, SuiteClaim] = field(default_factory=dict)
    """The claim about each record, by the record's key."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why there is no claim about the other records, by their keys."""


room = Room(850, sees="folder")


@room.rule(invalid("{contradiction}"))
def consistency(result: schema.Result, claims: SuiteClaims) -> Iterator[schema.Finding]:
    """The facts of a result folder agree with each other and with its suites. Otherwise the folder shows no figure."""
    for contradiction in islice(contradictions(result, claims), MOST_FINDINGS):
        yield found("consistency", contradiction=contradiction)


def contradictions(result: schema.Result, claims: SuiteClaims) -> Iterator[str]:
    """One sentence for each contradiction."""
    yield from _names(result)
    yield from _hosts(result)
    yield from _tiers(result)
    devices = {device.id: device for device in result.devices}
    experiments_of = {phase.name: phase.experiment for phase in result.phases}
    for record in result.records:
        yield from _on_device(record, devices.get(record.route.device))
        yield from _lacking(record, experiments_of.get(record.phase, ""))
        yield from _audit(record)
        if record.key in claims.claims:
            yield from _against_suite(record, claims.claims[record.key])
    for phase in result.phases:
        yield from _shape(phase)
    yield from _planned(result)
    yield from _complete(result)
    yield from _weight_class(result)
    yield from _mixes(result)
    yield from _experiments(result)
    yield from _times(result)
    yield from _copies(result)
    yield from _meterings(result)


def _names(result: schema.Result) -> Iterator[str]:
    """Everything that has a name has one of its own."""
    lists = {
        "devices": [device.id for device in result.devices],
        "domains": [domain.id for domain in result.domains],
        "phases": [phase.name for phase in result.phases],
        "meterings": [metering.phase for metering in result.meterings],
        "planned shares": [share.key for phase in result.phases for share in phase.shares],
        "hosts": [name for hosts in result.hosts for name in hosts.names],
        "connections": [f"{connection.phase} {connection.host}" for connection in result.connections],
    }
    for what, names in lists.items():
        if len(set(names)) != len(names):
            yield f"two of the {what} have the same name"


def _hosts(result: schema.Result) -> Iterator[str]:
    """Everything that belongs to a host belongs to one of the run."""
    for device in result.devices:
        if {*map(host_of, device.silicon), host_of(device.memory_pool)} != {device.host}:
            yield f"{device.id} has parts or memory of another host"
    known = result.systems.keys()
    strays = [device.id for device in result.devices if device.host not in known]
    strays += [domain.id for domain in result.domains if not domain.hosts <= known]
    strays += [f"the environment {name}" for name in result.environments if host_of(name) not in {*known, ""}]
    strays += [f"{each.host} in {each.phase}" for each in result.connections if each.host not in known]
    yield from (f"{stray} belongs to no host of the run" for stray in strays)


def _tiers(result: schema.Result) -> Iterator[str]:
    """A run has one tier."""
    tiers = {record.route.tier for record in result.records} | ({result.mix.tier} if result.mix else set())
    for tier in sorted(tiers - {result.tier}):
        yield f"a run of the {result.tier} tier holds something of the {tier} tier"


def _on_device(record: schema.Record, device: schema.Device | None) -> Iterator[str]:
    """The device of a record is known and offers its precision, and the weights of a hosted service are its own."""
    route = record.route
    if device is None:
        yield f"{record.key} ran on {route.device}, which is not among the devices"
        return
    if route.precision not in device.offers(route.suite_options.get("plugin", route.suite)):
        yield f"{record.key} ran in {route.precision}, which {device.id} does not offer"
    if route.hosted != bool(device.hosted):
        hosted = "is hosted" if device.hosted else "is not"
        yield f"{record.key} has the weights {route.weights}, and {device.id} {hosted}"


def _lacking(record: schema.Record, experiment: str) -> Iterator[str]:
    """Every record with timestamps has the facts without which the rules of `integrity` would find nothing. An
    experiment may time its feeds inside of the workers."""
    needed = {"parent_window_ns": record.parent_window_ns, "feed_units": record.feed_units}
    if record.scenario == "mixed" and not experiment:
        needed["times of the parent"] = record.stamped or None
    for name, value in needed.items():
        if record.completions is not None and value is None:
            yield f"{record.key} has timestamps and no {name}"


def _audit(record: schema.Record) -> Iterator[str]:
    """Each audited feed was finished and is audited once. Hosted services are not audited."""
    audit, done = record.audit, len(record.completions) if record.completions is not None else 0
    if audit is None:
        return
    if record.route.hosted:
        yield f"{record.key} is of a hosted service, which cannot be audited, and has an audit"
    if audit.values and not audit.problem and len(audit.values) != len(audit.feeds):
        yield f"{record.key} has {counted(len(audit.values), 'value')} of {counted(len(audit.feeds), 'audited feed')}"
    if len(set(audit.feeds)) != len(audit.feeds):
        yield f"{record.key} has a feed that was audited twice"
    numbered = done + 2 * record.concurrency  # feeds that were made ahead when the window ended have numbers too
    if not audit.problem and (audit.finished != done or not all(0 <= feed < numbered for feed in audit.feeds)):
        yield f"{record.key} finished {counted(done, 'feed')}, and its audit was drawn from {audit.finished}"


def _against_suite(record: schema.Record, claim: SuiteClaim) -> Iterator[str]:
    """A record agrees with the code of its suite."""
    if record.unit != claim.unit:
        yield f"{record.key} counts {record.unit!a}, and its suite counts {claim.unit}"
    limited = record.latency_limits is not None or (record.completions is not None and record.scenario == "server")
    if limited and record.latency_limits != claim.latency_limits:
        yield f"{record.key} has other latency limits than its suite"
    if record.audit is not None and record.audit.gate != claim.gate:
        yield f"{record.key} has another gate than its suite"
    if record.completions is None:
        return
    if record.feed_units != claim.feed_units:
        yield f"{record.key} has feeds of {record.feed_units} units, and its suite makes feeds of {claim.feed_units}"
    if len(record.costs) != len(claim.costs) or not all(map(_same_cost, record.costs, claim.costs)):
        yield f"{record.key} has other costs than its suite"


def _same_cost(first: schema.Cost, second: schema.Cost) -> bool:
    """Whether two costs are the same up to the last digits. Processors may differ there."""

    def same(name: str) -> bool:
        a, b = getattr(first, name), getattr(second, name)
        return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9))

    return all(map(same, schema.Cost.model_fields))


def _shape(phase: schema.Phase) -> Iterator[str]:
    """A phase has shares of the scenarios that its purpose has, each on the device of its task."""
    if phase.purpose not in schema.MIXES and len(phase.shares) != 1:
        yield f"{phase.name} is no mixed phase, and has {len(phase.shares)} shares"
    for task in phase.tasks:
        for share in task.shares:
            scenario = share.scenario if share.scenario in ("mixed", "probe") else None
            if scenario != SCENARIO_OF.get(phase.purpose):
                yield f"{share.key} is {share.scenario} in a phase that is {phase.purpose}"
            if share.limits.screening != (phase.purpose == "screening"):
                no = "" if share.limits.screening else "no "
                yield f"{share.key} is {no}screening run in a phase that is {phase.purpose}"
            if share.route.device != task.device:
                yield f"{share.key} is on {share.route.device} in the task of {task.device}"


def _planned(result: schema.Result) -> Iterator[str]:
    """Each record is what its share asked for, and each host measured its phases in their order."""
    planned = {(phase.name, share.key): (at, share) for at, phase in enumerate(result.phases) for share in phase.shares}
    last: dict[str, int] = {}
    for record in result.records:
        at, share = planned.get((record.phase, record.key), (0, None))
        if share is None or not _as_planned(record, share):
            yield f"{record.key} was not planned so in {record.phase}"
        if at < last.get(record.route.host, 0):
            yield f"{record.key} was measured before its turn"
        last[record.route.host] = max(last.get(record.route.host, 0), at)


def _as_planned(record: schema.Record, share: schema.Share) -> bool:
    """Whether a record is what its share asked for. None in a share was left to the search."""
    same = (share.route, share.scenario, share.run) == (record.route, record.scenario, record.run)
    same &= record.screening == share.limits.screening and not (share.limits.cut_off and record.audit is not None)
    return same and share.batch in (None, record.batch) and share.rate_per_s in (None, record.rate_per_s)


def _complete(result: schema.Result) -> Iterator[str]:
    """Each phase of one share has its record. A share of a mixed phase that never got a turn has none."""
    measured = {record.phase for record in result.records}
    single = [phase.name for phase in result.phases if phase.purpose not in schema.MIXES]
    missing = [name for name in single if name not in measured]
    reached = [name in measured for name in single]
    if missing and result.finished:
        yield f"{missing[0]} was planned, and has neither timestamps nor an error"
    elif reached != sorted(reached, reverse=True):
        yield f"{missing[0]} was left out"
    runs = [max(share.run for share in phase.shares) for phase in result.phases if phase.purpose == "mixed"]
    if runs != list(range(1, len(runs) + 1)):
        yield f"the mixed runs are numbered {', '.join(map(str, runs))}: some were left out"


def _weight_class(result: schema.Result) -> Iterator[str]:
    """No route has fewer bits than the run's weight class."""
    for phase in (*result.phases, *result.candidates):
        for route in (share.route for share in phase.shares):
            if result.bits is not None and route.weight_class < result.bits:
                yield f"{phase.name} computes in {route.precision}, and the run is of {result.bits} bits"


def _mixes(result: schema.Result) -> Iterator[str]:
    """In a mixed phase each suite runs once on a device, else its units would count twice. All records of a host have
    the same bracket, and those of all hosts together are as long as it was planned."""
    limits = {share.key: share.limits for phase in result.phases for share in phase.shares}
    brackets: dict[tuple[str, str], tuple[int, int] | None] = {}
    spans: dict[str, _Span] = {}
    bounds_ns = clock_bounds_ns(result.connections)
    needed_ns: dict[str, int] = {}
    ran = set[tuple[str, str, str]]()
    for record in result.records:
        if record.scenario != "mixed":
            continue
        route, parent_window_ns = record.route, record.parent_window_ns
        part = record.phase, route.suite, route.device
        if part in ran:
            yield f"{route.suite} ran twice at once on {route.device} in {record.phase}"
        ran.add(part)
        if record.completions is None or parent_window_ns is None:
            continue
        if brackets.setdefault((record.phase, route.host), parent_window_ns) != parent_window_ns:
            yield f"{record.key} did not begin and end with {record.phase}"
        spans.setdefault(record.phase, _Span(0, bounds_ns[record.phase])).add(*parent_window_ns)
        if record.cut_short is None and record.key in limits:
            needed_ns[record.phase] = limits[record.key].min_ns
    for phase, min_ns in needed_ns.items():
        lasted_ns = spans[phase].end_ns - spans[phase].begin_ns
        if lasted_ns + 2 * spans[phase].slack_ns < min_ns:
            yield f"{phase} lasted {lasted_ns / 1e9:.1f} s, which is shorter than planned"


@dataclass
class _Span:
    """The time of a phase on the harness's own clock."""

    session: int
    """How often the run had been resumed before: the clock may begin anew with each session."""
    slack_ns: int
    """The largest error of the timestamps of its hosts."""
    begin_ns: float = math.inf
    end_ns: float = -math.inf

    def add(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns, self.end_ns = min(self.begin_ns, begin_ns), max(self.end_ns, end_ns)


def _experiments(result: schema.Result) -> Iterator[str]:
    """The facts of each installed experiment are its own, and agree with each other."""
    wrong = []
    owned = [(phase.name, phase.experiment) for phase in result.phases if phase.experiment]
    for name, owner in (*owned, *(("what was found", each.experiment) for each in result.found)):
        if owner not in result.experiments:
            wrong.append(f"{name} is of {owner}, which the run was not asked for")
    asked = [name for name in experiments.facts() if name in result.experiments]
    for name in asked:
        shapes = experiments.facts()[name]
        kept = [("the run", shapes.of_run, result.experiments[name])]
        kept += [(phase.name, shapes.of_phase, phase.facts) for phase in result.phases if phase.experiment == name]
        kept += [("what was found", shapes.of_found, each.facts) for each in result.found if each.experiment == name]
        for holder, shape, facts in kept:
            try:
                shape.model_validate(facts)
            except ValidationError:
                wrong.append(f"{holder} has other facts than {name} keeps")
    yield from wrong
    for name, of_facts in () if wrong else experiments.parts("contradictions").items():
        if name in asked or name not in experiments.facts():
            yield from of_facts(result)


def _times(result: schema.Result) -> Iterator[str]:
    """The phases of a host follow each other. The watch and the meters cover the window of a phase, and little more."""
    if list(result.resumed) != sorted(result.resumed) or not all(
        0 <= count <= len(result.records) for count in result.resumed
    ):
        yield "it was resumed after more records than there are"
        return
    failed = {record.phase for record in result.records if record.error or record.cut_short}
    last_ns: dict[str, int] = {}
    for record in result.records:
        if record.completions is not None:
            last_ns[record.phase] = max(last_ns.get(record.phase, 0), int(record.completions.yielded_ns.max()))
    spans: dict[str, _Span] = {}
    bounds_ns = clock_bounds_ns(result.connections)
    of_host: dict[str, dict[str, None]] = defaultdict(dict)
    for at, record in enumerate(result.records):
        if record.phase not in spans:
            session = sum(count <= at for count in result.resumed)
            spans[record.phase] = _Span(session, bounds_ns[record.phase])
        span = spans[record.phase]
        of_host[record.route.host][record.phase] = None
        yield from _watched(record, last_ns.get(record.phase, 0), record.phase in failed, span.slack_ns)
        for block in record.conditions:
            span.add(block.begin_ns, block.end_ns)
        if record.parent_window_ns is not None:
            span.add(*record.parent_window_ns)
    for earlier, later in dict.fromkeys(chain.from_iterable(map(pairwise, of_host.values()))):
        before, after = spans[earlier], spans[later]
        if before.session == after.session and after.begin_ns + after.slack_ns < before.end_ns - before.slack_ns:
            yield f"{later} began before {earlier} was over"
    for metering in result.meterings:
        if metering.phase in spans:
            yield from _metered(metering, spans[metering.phase])


def _watched(record: schema.Record, last_ns: int, failed: bool, slack_ns: int) -> Iterator[str]:
    """The blocks of a record follow each other. The watch's blocks cover the window and little more; the canaries ran
    before and after it.

    last_ns: the last timestamp of the phase, whose other parts may have ended later. failed: whether a worker of the
    phase failed, for which the others may have waited. slack_ns: the largest error of the timestamps of its hosts.
    """
    blocks, parent_window_ns = record.conditions, record.parent_window_ns
    if any(after.begin_ns < before.end_ns for before, after in pairwise(blocks)):
        yield f"the blocks of {record.key} do not follow each other"
    if record.completions is None or parent_window_ns is None:
        return
    first_ns, final_ns = parent_window_ns[0] + slack_ns, parent_window_ns[1] - slack_ns
    if not (watch := [block for block in blocks if not block.canary_ns]):
        return
    begin_ns, end_ns = watch[0].begin_ns, watch[-1].end_ns
    if begin_ns > first_ns or end_ns < final_ns:
        yield f"{record.key} was watched at another time than it was measured"
    around_ns = max(0, parent_window_ns[0] - begin_ns) + max(0, end_ns - max(parent_window_ns[1], last_ns))
    most_ns = AROUND_NS + AROUND_SHARE * (parent_window_ns[1] - parent_window_ns[0])
    if record.scenario == "mixed" and record.stamped:
        most_ns = AROUND_MIX_NS
    if around_ns > most_ns + 2 * slack_ns and not failed:
        yield f"{record.key} was watched for {around_ns / 1e9:.1f} s longer than it was measured"


def _metered(metering: schema.Metering, span: _Span) -> Iterator[str]:
    """A metering covers all of its phase, and the machine was at rest before and after it."""
    if span.begin_ns + span.slack_ns < metering.begin_ns or span.end_ns - span.slack_ns > metering.end_ns:
        yield f"{metering.phase} was metered at another time than it was measured"
    for begin_ns, end_ns in metering.idle_ns:
        inside = metering.begin_ns <= begin_ns <= end_ns <= metering.end_ns
        at_work = begin_ns < span.end_ns - span.slack_ns and span.begin_ns + span.slack_ns < end_ns
        if not inside or at_work:
            yield f"the machine was not at rest when {metering.phase} says so"


def _meterings(result: schema.Result) -> Iterator[str]:
    """Meterings are of listed domains. Readings that a meter would be given up for were not kept."""
    domains, bounds_ns = {domain.id for domain in result.domains}, clock_bounds_ns(result.connections)
    for metering in result.meterings:
        for id in sorted((metering.samples.keys() | metering.lost.keys() | metering.reading_age_ns.keys()) - domains):
            yield f"in {metering.phase} a meter read {id}, which is not among the domains"
        around_ns = LONGEST_READ_NS + bounds_ns[metering.phase]
        begin_ns, end_ns = metering.begin_ns - around_ns, metering.end_ns + around_ns
        for id, samples in metering.samples.items():
            took_ns = samples.after_ns - samples.before_ns
            if (np.abs(samples.values) >= ABSURD).any() or (took_ns > LONGEST_READ_NS).any():
                yield f"in {metering.phase} the readings of {id} are impossible: their meter would have been given up"
            own = took_ns > 0  # timestamps of this process; a source's own timestamps may be late
            if (own & ((samples.before_ns < begin_ns) | (samples.after_ns > end_ns))).any():
                yield f"in {metering.phase} {id} was read at another time than it was metered"


def _copies(result: schema.Result) -> Iterator[str]:
    """No two records have the same timestamps but for a shift in time."""
    done = ((record.key, record.completions) for record in result.records if record.completions is not None)
    marks = ((key, fingerprint(completions.yielded_ns)) for key, completions in done)
    for first, key in copies((key, steps) for key, steps in marks if steps is not None):
        yield f"{key} has the timestamps of {first}"
