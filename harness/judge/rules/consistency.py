"""Whether a folder's facts can all be true of one run. A folder that contradicts itself is not shown.

It finds what was left out, doubled or relabelled in one place and not in the others. What was changed everywhere alike
cannot be seen here; docs/method.md says what that leaves to a forger. Whatever a run can write passes: what a worker
tells of itself is judged by the rules of `honest`, and only what the harness itself wrote is a contradiction here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import (
    MIXES,
    Conditions,
    Cost,
    Device,
    Gate,
    LatencyLimits,
    Metering,
    Phase,
    Record,
    Result,
    Share,
)
from mixmark.harness.judge.energy.coverage import hosts as hosts_of
from mixmark.harness.judge.hosts import clock_bound_ns

NS_PER_S = 1_000_000_000
AROUND_NS = 10 * NS_PER_S  # that the watch may last longer than the window: a loop begins, and stamps are read
AROUND_SHARE = 0.1  # … and of the window
AROUND_MIX_NS = 3 * NS_PER_S  # … a mixed phase, whose feeds come from the process that watches
SAME_GAPS = 16  # different times between marks that two records cannot have alike by chance
ABSURD = 1e15  # joules or watts, beyond which a meter is given up while it is read
LONGEST_READ_NS = 2 * NS_PER_S  # after which a meter is given up while it is read
LARGEST_DRIFT = 0.1  # of a clock against another: 0.0005 is real, and the line through few messages may be steeper


@dataclass(frozen=True)
class Promise:
    """What a suite's own code says of a record."""

    unit: str
    feed_units: int | None
    """None: the record has no batch."""
    costs: tuple[Cost, ...]
    gate: Gate | None
    latency_limits: LatencyLimits | None


def contradictions(result: Result, promised: Mapping[str, Promise]) -> Iterator[str]:
    """One sentence for each contradiction. promised: by a record's key, as far as the code of its suite is at hand."""
    yield from _names(result)
    yield from _hosts(result)
    tiers = {each.route.tier for each in result.records} | ({result.mix.tier} if result.mix else set())
    for tier in sorted(tiers - {result.tier}):
        yield f"a run of the {result.tier} tier holds something of the {tier} tier"
    devices, domains = {each.id: each for each in result.devices}, {each.id for each in result.domains}
    for metering in result.meterings:
        for id in sorted((metering.samples.keys() | metering.lost.keys() | metering.late_ns.keys()) - domains):
            yield f"in {metering.phase} a meter read {id}, which is not among the domains"
    for record in result.records:
        if record.route.device not in devices:
            yield f"{record.key} ran on {record.route.device}, which is not among the devices"
        yield from _lacking(record)
        yield from _audit(record)
        yield from _offered(record, devices)
        if record.key in promised:
            yield from _broken(record, promised[record.key])
    yield from _shares(result)
    yield from _routes(result)
    yield from _plan(result)
    yield from _times(result)
    yield from _copies(result)
    for metering in result.meterings:
        yield from _samples(metering, LONGEST_READ_NS + clock_bound_ns(result, metering.phase))


def _names(result: Result) -> Iterator[str]:
    lists: dict[str, Sequence[str]] = {
        "devices": [each.id for each in result.devices],
        "domains": [each.id for each in result.domains],
        "phases": [each.name for each in result.phases],
        "meterings": [each.phase for each in result.meterings],
        "planned shares": [share.key for phase in result.phases for share in phase.shares],
        "hosts": [name for each in result.hosts for name in each.names],
        "connections": [f"{each.phase} {each.host}" for each in result.connections],
    }
    for what, names in lists.items():
        if len(set(names)) != len(names):
            yield f"two of the {what} have the same name"


def _hosts(result: Result) -> Iterator[str]:
    """What belongs to a host belongs to one of the run, and each host was reached while it measured."""
    known = {name for each in result.hosts for name in each.names} or {""}
    for device in result.devices:
        if strange := {device.host, *map(host_of, device.silicon), host_of(device.memory_pool)} - {device.host}:
            yield f"{device.id} has parts or memory of {', '.join(sorted(each or 'no host' for each in strange))}"
    of: list[tuple[str, str]] = [(each.id, each.host) for each in result.devices]
    of += [(each.id, host) for each in result.domains for host in sorted(hosts_of(each))]
    of += [(f"the environment {name}", host_of(name) or sorted(known)[0]) for name in result.environments]
    of += [(f"a connection in {each.phase}", each.host) for each in result.connections]
    for what, host in of:
        if host not in known:
            yield f"{what} is of {host or 'no host'}, which is not among the hosts"
    phases = {each.name for each in result.phases}
    for each in result.connections:
        if each.phase not in phases:
            yield f"{each.host} was reached in {each.phase}, which was not planned"
        if not abs(each.clock.drift) <= LARGEST_DRIFT:
            yield f"the clock of {each.host} drifts by {each.clock.drift:g} in {each.phase}, as no clock does"
    reached = {(each.phase, each.host) for each in result.connections}
    for record in result.records:
        host = host_of(record.route.device)
        if result.hosts and record.completions is not None and (record.phase, host) not in reached:
            yield f"{record.key} was measured on {host}, and nothing tells how far its clock is known"


def _lacking(record: Record) -> Iterator[str]:
    """The facts that every record with stamps has: without them the rules would find nothing."""
    if record.completions is None:
        return
    told = {"bracket_ns": record.bracket_ns, "feed_units": record.feed_units}
    if record.scenario == "mixed":
        told["skew_ns"] = record.skew_ns
    for name in (name for name, value in told.items() if value is None):
        yield f"{record.key} has stamps and no {name}"


def _audit(record: Record) -> Iterator[str]:
    """Each audited feed was finished, and is audited once. Nothing of a hosted service is."""
    audit, done = record.audit, len(record.completions) if record.completions is not None else 0
    if audit is None:
        return
    if record.route.hosted:
        yield f"{record.key} is of a hosted service, which nobody can audit, and has an audit"
    if audit.values and len(audit.values) != len(audit.feeds):
        yield f"{record.key} has {len(audit.values)} values of {len(audit.feeds)} audited feeds"
    if len(set(audit.feeds)) != len(audit.feeds) or len(audit.feeds) > audit.finished:
        yield f"{record.key} cannot have had the feeds {audit.feeds} drawn from {audit.finished}"
    if max((audit.finished, *(feed + 1 for feed in audit.feeds))) > done or min(audit.feeds, default=0) < 0:
        yield f"{record.key} finished {done} feeds, and others are said to be audited"


def _offered(record: Record, devices: Mapping[str, Device]) -> Iterator[str]:
    """Every precision is one that the device offers to the suite, and the weights of a hosted service are its own."""
    device = devices.get(record.route.device)
    if device is None:
        return
    if record.route.precision not in device.offers(record.route.suite):
        yield f"{record.key} ran in {record.route.precision}, which {device.id} does not offer"
    if record.route.hosted != bool(device.hosted):
        hosted = "is hosted" if device.hosted else "is not"
        yield f"{record.key} has the weights {record.route.weights}, and {device.id} {hosted}"


def _broken(record: Record, promise: Promise) -> Iterator[str]:
    """What a record says otherwise than its suite's own code."""
    if record.unit != promise.unit:
        yield f"{record.key} counts {record.unit!a}, and its suite counts {promise.unit}"
    limited = record.latency_limits is not None or (record.completions is not None and record.scenario == "server")
    if limited and record.latency_limits != promise.latency_limits:
        yield f"{record.key} has other latency limits than its suite"
    if record.audit is not None and record.audit.gate != promise.gate:
        yield f"{record.key} has another gate than its suite"
    if record.completions is None:
        return
    if record.feed_units != promise.feed_units:
        yield f"{record.key} has feeds of {record.feed_units} units, and its suite makes feeds of {promise.feed_units}"
    if len(record.costs) != len(promise.costs) or not all(map(_same_cost, record.costs, promise.costs)):
        yield f"{record.key} has other costs than its suite"


def _same_cost(one: Cost, other: Cost) -> bool:
    """Whether two costs are the same up to the last digits, in which processors may differ."""

    def close(name: str) -> bool:
        mine, yours = getattr(one, name), getattr(other, name)
        return mine == yours or (None not in (mine, yours) and math.isclose(mine, yours, rel_tol=1e-9))

    return (one.name, one.yields) == (other.name, other.yields) and all(
        close(name) for name in Cost.model_fields if name not in ("name", "yields")
    )


def _shares(result: Result) -> Iterator[str]:
    """Each record is of a planned share, as it was planned; each share of a phase of one share has its record, and the
    phases were measured in their order. Of a mixed phase, a share that never got a turn has none."""
    planned = {(phase.name, share.key): (at, share) for at, phase in enumerate(result.phases) for share in phase.shares}
    for phase in result.phases:
        yield from _shape(phase)
    last = 0
    for record in result.records:
        at, share = planned.get((record.phase, record.key), (0, None))
        if share is None or not _as_planned(record, share):
            yield f"{record.key} was not planned so in {record.phase}"
        if at < last:
            yield f"{record.key} was measured before its turn"
        last = max(last, at)
    measured = {record.phase for record in result.records}
    alone = [phase for phase in result.phases if phase.purpose not in MIXES]
    gone = [phase.name for phase in alone if phase.name not in measured]
    if gone and result.finished:
        yield f"{gone[0]} was planned, and has neither stamps nor an error"
    reached = [phase.name in measured for phase in alone]
    if not result.finished and reached != sorted(reached, reverse=True):
        yield f"{gone[0]} was left out"


def _routes(result: Result) -> Iterator[str]:
    """No route has fewer bits than the run's weight class. Where screening runs decided, each candidate had a screening
    run or was
    measured, and nothing else was."""
    for phase in (*result.phases, *result.candidates):
        for route in (share.route for share in phase.shares):
            if result.bits is not None and route.weight_class < result.bits:
                yield f"{phase.name} computes in {route.precision}, and the run is of {result.bits} bits"
    for record in result.records:
        if record.screening and record.audit is not None:
            yield f"{record.key} is a screening run, of which no output is kept, and has an audit"
    tried = {
        share.route.key: phase.name
        for phase in result.phases
        if phase.purpose in ("screening", "solo")
        for share in phase.shares
    }
    asked = {
        share.route.key: phase.name for phase in result.candidates if phase.purpose == "solo" for share in phase.shares
    }
    if asked or any(phase.purpose == "screening" for phase in result.phases):
        for key in tried.keys() - asked.keys():
            yield f"{tried[key]} is of a route that was no candidate"
        for key in asked.keys() - tried.keys() if result.finished else ():
            yield f"{asked[key]} was a candidate, and has neither a screening run nor a measurement"


def _shape(phase: Phase) -> Iterator[str]:
    """A phase has shares of the scenarios that its purpose has, each on the device of its task."""
    if phase.purpose not in MIXES and len(phase.shares) != 1:
        yield f"{phase.name} is no mixed phase, and has {len(phase.shares)} shares"
    purpose = (
        "solo"
        if phase.purpose in ("confirmation", "screening")
        else "mixed"
        if phase.purpose in MIXES
        else phase.purpose
    )
    for task in phase.tasks:
        for share in task.shares:
            ours = share.scenario if share.scenario in ("mixed", "probe") else "solo"
            if ours != purpose:
                yield f"{share.key} is {share.scenario} in a phase that is {phase.purpose}"
            if share.limits.screening != (phase.purpose == "screening"):
                no = "" if share.limits.screening else "no "
                yield f"{share.key} is {no}screening run in a phase that is {phase.purpose}"
            if share.route.device != task.device:
                yield f"{share.key} is on {share.route.device} in the task of {task.device}"


def _as_planned(record: Record, share: Share) -> bool:
    """Whether a record is what its share asked for. None in a share was left to the search."""
    same = (share.route, share.scenario, share.run) == (record.route, record.scenario, record.run)
    same &= record.screening == share.limits.screening
    return same and share.batch in (None, record.batch) and share.rate_per_s in (None, record.rate_per_s)


def _plan(result: Result) -> Iterator[str]:
    """Each record of a mixed phase was planned, and is there once: else its units would count twice."""
    planned = {
        (phase.name, share.key): share
        for phase in result.phases
        if phase.placement is not None
        for task in phase.tasks
        for share in task.shares
    }
    brackets: dict[tuple[str, str], tuple[int, int] | None] = {}
    played = set[tuple[str, str, str]]()
    for record in result.records:
        if record.scenario != "mixed":
            continue
        share, part = planned.get((record.phase, record.key)), (record.phase, record.route.suite, record.route.device)
        if share is None or (share.route, share.scenario, share.batch) != (record.route, "mixed", record.batch):
            yield f"{record.key} was not planned in {record.phase}"
        elif part in played:
            yield f"{record.route.suite} ran twice at once on {record.route.device} in {record.phase}"
        played.add(part)
        at, bracket_ns = (record.phase, host_of(record.route.device)), record.bracket_ns
        if record.completions is not None and brackets.setdefault(at, bracket_ns) != bracket_ns:
            yield f"{record.key} did not begin and end with {record.phase}"
    runs = [max(share.run for share in each.shares) for each in result.phases if each.purpose == "mixed"]
    if runs != list(range(1, len(runs) + 1)):
        yield f"the mixed runs are numbered {', '.join(map(str, runs))}: some were left out"


@dataclass
class _Span:
    """What the harness's own clock tells of a phase."""

    session: int
    slack_ns: int
    """How far the stamps of its hosts may be off."""
    begin_ns: float = math.inf
    end_ns: float = -math.inf
    conditions: dict[str, tuple[Conditions, ...]] = field(default_factory=dict)
    """What was watched on each host."""

    def add(self, begin_ns: int, end_ns: int) -> None:
        self.begin_ns, self.end_ns = min(self.begin_ns, begin_ns), max(self.end_ns, end_ns)


def _times(result: Result) -> Iterator[str]:
    """Phases follow each other; what was watched and metered of a phase lies around its windows, and no further."""
    if list(result.resumed) != sorted(result.resumed) or not all(
        0 <= count <= len(result.records) for count in result.resumed
    ):
        yield "it was resumed after more records than there are"
        return
    troubled = {each.phase for each in result.records if each.error or each.cut_short}
    last_ns: dict[str, int] = {}
    for each in result.records:
        if each.completions is not None:
            last_ns[each.phase] = max(last_ns.get(each.phase, 0), int(each.completions.marks_ns.max()))
    spans: dict[str, _Span] = {}
    for at, record in enumerate(result.records):
        if record.phase not in spans:
            session = sum(count <= at for count in result.resumed)
            spans[record.phase] = _Span(session, slack_ns=clock_bound_ns(result, record.phase))
        span = spans[record.phase]
        yield from _watched(record, last_ns.get(record.phase, 0), record.phase in troubled, span.slack_ns)
        for block in record.conditions:
            span.add(block.begin_ns, block.end_ns)
        if record.bracket_ns is not None:
            span.add(*record.bracket_ns)
        if span.conditions.setdefault(host_of(record.route.device), record.conditions) != record.conditions:
            yield f"the records of {record.phase} were watched differently"
    for (one, before), (other, after) in pairwise(spans.items()):
        if before.session == after.session and after.begin_ns + after.slack_ns < before.end_ns - before.slack_ns:
            yield f"{other} began before {one} was over"
    limits = {share.key: share.limits for phase in result.phases for share in phase.shares}
    for record in result.records:
        if record.scenario == "mixed" and record.completions is not None and record.cut_short is None:
            begin_ns, end_ns = record.bracket_ns or (0, 0)
            if record.key in limits and end_ns - begin_ns < limits[record.key].min_ns:
                yield f"{record.phase} lasted {(end_ns - begin_ns) / 1e9:.1f} s, which is shorter than planned"
    planned = {phase.name for phase in result.phases}
    for metering in result.meterings:
        if metering.phase not in planned:
            yield f"{metering.phase} was metered and not planned"
        elif (around := spans.get(metering.phase)) is not None:
            yield from _metered(metering, around)


def _watched(record: Record, last_ns: int, troubled: bool, slack_ns: int) -> Iterator[str]:
    """The blocks of a record follow each other. Those of the watch cover its window and little more; the canaries ran
    before and after.

    last_ns: the last mark of the phase, whose other parts may have ended later. troubled: whether a worker of the phase
    failed, for which the others may have waited. slack_ns: how far the stamps of several hosts may be off.
    """
    blocks = record.conditions
    if any(after.begin_ns < before.end_ns for before, after in pairwise(blocks)):
        yield f"the blocks of {record.key} do not follow each other"
    bracket = record.bracket_ns
    if record.completions is None or bracket is None:
        return
    if bracket[1] < bracket[0]:
        yield f"the window of {record.key} ends before it begins"
    first_ns, end_of_all_ns = bracket[0] + slack_ns, bracket[1] - slack_ns
    if any(each.canary_ns and each.begin_ns < end_of_all_ns and first_ns < each.end_ns for each in blocks):
        yield f"a canary ran inside the window of {record.key}"
    if watch := [each for each in blocks if not each.canary_ns]:
        begin_ns, end_ns = watch[0].begin_ns, watch[-1].end_ns
        over_ns = max(bracket[1], last_ns)
        around_ns = max(0, bracket[0] - begin_ns) + max(0, end_ns - over_ns)
        if begin_ns > first_ns or end_ns < end_of_all_ns:
            yield f"{record.key} was watched at another time than it was measured"
        most_ns = AROUND_NS + AROUND_SHARE * (bracket[1] - bracket[0])
        if record.scenario == "mixed":
            most_ns = AROUND_MIX_NS
        if around_ns > most_ns + 2 * slack_ns and not troubled:
            yield f"{record.key} was watched for {around_ns / 1e9:.1f} s longer than it was measured"


def _metered(metering: Metering, span: _Span) -> Iterator[str]:
    """A metering is around all of its phase, and the machine was at rest before and after it."""
    if span.begin_ns + span.slack_ns < metering.begin_ns or span.end_ns - span.slack_ns > metering.end_ns:
        yield f"{metering.phase} was metered at another time than it was measured"
    for begin_ns, end_ns in metering.idle_ns:
        inside = metering.begin_ns <= begin_ns <= end_ns <= metering.end_ns
        at_work = begin_ns < span.end_ns - span.slack_ns and span.begin_ns + span.slack_ns < end_ns
        if not inside or at_work:
            yield f"the machine was not at rest when {metering.phase} says so"


def _samples(metering: Metering, around_ns: int) -> Iterator[str]:
    """Samples are such as a meter is given while it is read: else it is given up."""
    for id, samples in metering.samples.items():
        took_ns = samples.after_ns - samples.before_ns
        if (np.abs(samples.values) >= ABSURD).any() or (took_ns > LONGEST_READ_NS).any():
            yield f"in {metering.phase} the readings of {id} are none that a meter can have been given"
        own = took_ns > 0  # stamped here; what a source stamps itself may be late
        outside = (samples.before_ns < metering.begin_ns - around_ns) | (samples.after_ns > metering.end_ns + around_ns)
        if (own & outside).any():
            yield f"in {metering.phase} {id} was read at another time than it was metered"


def _copies(result: Result) -> Iterator[str]:
    """No two records have the same stamps but for a shift in time."""
    seen: dict[bytes, str] = {}
    told = [(each.key, each.completions.marks_ns) for each in result.records if each.completions is not None]
    for key, stamps_ns in told:
        gaps = np.diff(stamps_ns)
        if len(np.unique(gaps[: 64 * SAME_GAPS])) < SAME_GAPS:
            continue
        if (other := seen.setdefault(gaps.tobytes(), key)) != key:
            yield f"{key} has the stamps of {other}"
