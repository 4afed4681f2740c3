"""Rules about integrity, which a cheat breaks: what is invalid by them counts in no score.

They assume an adapter that wants to look fast. docs/method.md says what none of them can see.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from mixmark.harness.contracts.device_ids import kind_of
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Finding, Record, Route, Share
from mixmark.harness.judge.evidence import Evidence, Measurement
from mixmark.harness.judge.findings import found, invalid, note, pending, warning
from mixmark.harness.judge.mixed_run import AT_REST_BYTES_PER_S
from mixmark.harness.judge.roofline import PeakRates
from mixmark.harness.judge.rules.registered import Room
from mixmark.harness.judge.statistics.intervals import CONFIDENCE
from mixmark.harness.judge.statistics.timestamps import most_in_flight
from mixmark.harness.plan.presets import OUT_OF_CACHE

room = Room(800, sees="facts")
OVER_CEILING = 1.25  # times the best ceiling: a probe may miss it, and honest engines reached 1.13 of its bandwidth
LARGEST_CACHE_BYTES = 256 << 20  # of any chip, and so of a chip that reports none: MI300X's
SLACK_NS, SLACK_FRACTION = 250_000_000, 0.01
"""The worker's window may be shorter than the parent's by this time and by this fraction of it: messages between the
two are slow on a busy machine."""
IDLE_BLOCKS = 3
"""An idle GPU showed no work in this many blocks: a driver's sample is shorter than a block."""
TELLING = 0.5
"""A larger bound of the fraction of wrong feeds is not worth stating."""
REFERENCE = "torch"
"""The engine of the references of Mixmark's own suites. What torch runs is compared with another precision of it."""
BETWEEN = 0.1
"""The largest fraction of a closed loop's window without a feed in flight."""


@room.rule(
    problem=invalid("wrong outputs: {problem}"),
    wrong=invalid(
        "wrong outputs: {wrong} of {audited} audited feeds fail; {metric} {worst:.3g}, at most {at_most:.3g} is allowed"
    ),
    pending=pending("not audited yet"),
    missing=invalid("not audited: {why:exempt}"),
    unasked=note("not audited: {why:exempt}"),
    few=note("{audited:counted audited feed} passed: too few to bound the error rate"),
    passed=note(
        "{audited:counted audited feed} passed: with 95 % confidence at most {wrong_pct:.2g} % of all feeds are wrong"
    ),
    unmeasured=note(
        "its gate is unmeasured, as all gates of the server tier and of checkpoints: it may pass work that was skipped"
    ),
    same=note("the audit is not independent: {engine} made the reference, too"),
)
def audited(evidence: Evidence) -> Iterator[Finding]:
    """Every audited feed of every record keeps its gate. A record that was not audited although the plan asks for it
    proves nothing, so it is invalid, or pending if the run can go on. What a passed audit proves is a note."""
    for measured in evidence.measured:
        record, audit = measured.record, measured.record.audit
        if record.cut_off:
            continue
        if audit is not None and audit.problem:
            yield found("audited.problem", record.key, problem=audit.problem)
        elif audit is None or not audit.values:
            why = (record.exempt == "no gate" and _without_gate(record.route)) or record.exempt or record.unaudited
            if not why and not evidence.result.finished:
                yield found("audited.pending", record.key)
            else:
                code = "audited.unasked" if _is_exempt(evidence, record) else "audited.missing"
                yield found(code, record.key, why=why or "the run ended before")
        elif not audit.passed:
            yield found(
                "audited.wrong",
                record.key,
                wrong=sum(value > audit.gate.at_most for value in audit.values),
                audited=len(audit.values),
                metric=audit.gate.metric,
                worst=max(audit.values),
                at_most=audit.gate.at_most,
            )
        elif (wrong_fraction := excluded(len(audit.values))) > TELLING:
            yield found("audited.few", record.key, audited=len(audit.values))
        else:
            yield found("audited.passed", record.key, audited=len(audit.values), wrong_pct=wrong_fraction * 100)
        if audit is not None and audit.passed and record.scenario != "probe" and _gate_is_unmeasured(record):
            yield found("audited.unmeasured", record.key)
        if audit is not None and record.route.adapter in audit.software.keys() - {REFERENCE}:
            yield found("audited.same", record.key, engine=record.route.adapter)


def _without_gate(route: Route) -> str:
    """Why a suite that measures its gates before a run has none. Empty if it does not say."""
    bits = "fp32" if route.precision == "fp32" else "16 bits"
    return route.suite_options.get("no gate") or route.suite_options.get(f"no gate for {bits}", "")


def _gate_is_unmeasured(record: Record) -> bool:
    """Whether no row of docs/separation.md compares the gate with honest rounding and with cheats."""
    return record.route.tier == "server" or record.route.weights != "synthetic"


def _is_exempt(evidence: Evidence, record: Record) -> bool:
    """Whether the suite has no gate, the plan asks for no audit, or a hosted service ran alone."""
    limits = evidence.limits.get(record.key)
    unasked = limits is None or not limits.audits
    hosted_alone = record.route.hosted and record.scenario != "mixed"
    excused = {"no gate": True, "not asked for": unasked, "hosted": hosted_alone}
    return record.exempt is not None and excused[record.exempt]


def excluded(feeds: int, confidence: float = CONFIDENCE) -> float:
    """The largest fraction of all feeds that may be wrong although `feeds` of them, drawn by chance, are right.

    It is 1 − (1 − confidence)^(1/n), which for large n is the rule of three, 3/n.
    """
    return float(-np.expm1(np.log1p(-confidence) / feeds))


@room.rule(
    survived=invalid(
        "{processes:counted process} lived on after the workers of the phase, and had to be killed: {names}"
    ),
    helped=note(
        "the load of {processes:counted process} that the runner named, and that no worker started, counts as the "
        "run's own: {names}"
    ),
)
def no_orphans(evidence: Evidence) -> Iterator[Finding]:
    """No process of a worker outlived it: such a process could reach what is measured and audited later. The load of a
    process that a runner names as its helper is not foreign, so a note says which ones no worker started."""
    for measured in evidence.measured:
        if names := measured.record.surviving_processes:
            unique = tuple(sorted(set(names)))
            yield found("no_orphans.survived", measured.key, processes=len(names), names=unique)
        if names := measured.record.helper_processes:
            unique = tuple(sorted(set(names)))
            yield found("no_orphans.helped", measured.key, processes=len(names), names=unique)


@room.record_rule(
    units=invalid("{least} to {most} units were counted for feeds of {expected}"),
    yields=invalid("feeds of {expected} yields came in {least} at the least"),
)
def units_counted(measured: Measurement) -> Iterator[Finding]:
    """Every feed has its units, in as many yields as its suite's cost model has."""
    record, done, expected = measured.record, measured.completions, measured.record.feed_units
    if expected is None or record.cut_off:
        return
    units = np.add.reduceat(done.units, done.starts)
    yields, needed = done.ends - done.starts, sum(cost.yields for cost in record.costs)
    if (units != expected).any():
        least, most = int(units.min()), int(units.max())
        yield found("units_counted.units", measured.key, least=least, most=most, expected=expected)
    elif needed and (yields != needed).any():
        yield found("units_counted.yields", measured.key, expected=needed, least=int(yields.min()))


@room.record_rule(
    outside=invalid("a timestamp lies {outside_ns:duration} outside of the window that the parent timed"),
    short=invalid("the worker's timestamps cover {covered_s:.2f} s of a window of {window_s:.2f} s"),
)
def window_bracketed(measured: Measurement) -> Iterator[Finding]:
    """All timestamps lie in the window as the parent timed it, which is no longer than the worker's. Otherwise the
    worker's clock was changed, or it worked before the first timestamp or after the last one. In a mixed run the parent
    takes the times, and feeds that are under way at the end of the window end after it."""
    parent_window_ns = measured.record.parent_window_ns
    if parent_window_ns is None or measured.record.scenario == "mixed":
        return
    begin_ns, end_ns = measured.window_ns
    if measured.schedule_ns is not None:  # a server's window is open before its first feed is due
        begin_ns = int(measured.completions.due_ns.min() - measured.schedule_ns[0])
    parent_ns = parent_window_ns[1] - parent_window_ns[0]
    bound_ns = measured.clock_bound_ns
    outside_ns = max(parent_window_ns[0] - begin_ns, end_ns - parent_window_ns[1])
    if outside_ns > bound_ns:
        yield found("window_bracketed.outside", measured.key, outside_ns=outside_ns)
    elif parent_ns - (end_ns - begin_ns) > SLACK_NS + SLACK_FRACTION * parent_ns:
        covered_s = (end_ns - begin_ns) / 1e9
        yield found("window_bracketed.short", measured.key, covered_s=covered_s, window_s=parent_ns / 1e9)


@room.rule(
    unknown=invalid("its window has no seed or no possible rate, so when its feeds were due is unknown"),
    other=invalid("the feeds were not due when the window's seed says"),
    left_out=invalid(
        "it left the feed out that was due after {due_s:.2f} s, and all later ones, of a window of {window_s:.2f} s"
    ),
)
def on_schedule(evidence: Evidence) -> Iterator[Finding]:
    """The feeds of a server were due when the window's seed says, and all of them were run."""
    for measured in evidence.measured:
        if measured.record.scenario != "server":
            continue
        limits, schedule_ns = evidence.limits.get(measured.key), measured.schedule_ns
        least_ns = limits.min_ns if limits else 0
        if schedule_ns is None:
            yield found("on_schedule.unknown", measured.key)
        elif np.ptp(np.sort(measured.completions.due_ns) - schedule_ns[:-1]):
            yield found("on_schedule.other", measured.key)
        elif (due_ns := int(schedule_ns[-1])) < least_ns:
            yield found("on_schedule.left_out", measured.key, due_s=due_ns / 1e9, window_s=least_ns / 1e9)


@room.rule(
    window=note("the latencies of {suites} are self-reported by the worker: the parent timed only the window"),
    inside=note(
        "the times between the first yield of a feed and its last are self-reported by the worker: the parent timed "
        "these two"
    ),
)
def latencies_bounded(evidence: Evidence) -> Iterator[Finding]:
    """The parent took the times of each feed whose latencies are shown. Other latencies are self-reported by
    the worker: those of feeds that were too brief to be reported singly, whose sum only the window bounds, and the
    times between the first yield of a feed and its last."""
    suites = sorted({each.record.route.suite for each in evidence.solo if not each.record.stamped})
    if suites:
        yield found("latencies_bounded.window", suites=tuple(suites))
    inside = (each.completions for each in evidence.solo if each.record.stamped)
    if any(len(done.yielded_ns) > 2 * len(done) for done in inside):
        yield found("latencies_bounded.inside")


@room.rule(invalid("{most} feeds were in flight at once on {device}, which takes {concurrency}"))
def concurrency_kept(evidence: Evidence) -> Iterator[Finding]:
    """No device has more feeds in flight than its runner takes at a time, of all suites together."""
    for (_, device), sharing in _by_phase_and_device(evidence.measured).items():
        most = most_in_flight(*(measured.completions for measured in sharing))
        concurrency = max(measured.concurrency for measured in sharing)
        if most > concurrency:
            yield found("concurrency_kept", sharing[0].key, most=most, device=device, concurrency=concurrency)


def _by_phase_and_device(measured: Iterable[Measurement]) -> Mapping[tuple[str, str], list[Measurement]]:
    sharing: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for measurement in measured:
        sharing[measurement.record.phase, measurement.record.route.device].append(measurement)
    return sharing


@room.record_rule(invalid("{threads:counted thread} of the phase's workers could run on cores outside of their slice"))
def threads_pinned(measured: Measurement) -> Iterator[Finding]:
    """The threads of a worker that is pinned to a slice of the processor stay there."""
    if strayed := max((block.strayed_threads or 0 for block in measured.touching), default=0):
        yield found("threads_pinned", measured.key, threads=strayed)


@room.rule(
    warning("{phase} was begun {times:counted time}, and at most one of them has a record"),
    unranked=warning("{phase} was begun {times:counted time} and recorded once at most"),
    noticed=warning("a window was begun more often than it was recorded", "let a run go to its end"),
)
def begun_once(evidence: Evidence) -> Iterator[Finding]:
    """Each window was begun once. One that began and left no record may have been ended because of what it showed."""
    result = evidence.result
    recorded = {record.phase for record in result.records}
    for phase in result.phases:
        times = result.begun.count(phase.name)
        if times > (phase.name in recorded):
            yield found("begun_once", phase=phase.name, times=times)


@room.rule(
    warning("it was resumed {times:counted time} after its first solo window"),
    unranked=warning("it was resumed {times:counted time} after its first solo window"),
    noticed=warning("the run was resumed", "let a run go to its end"),
)
def run_at_once(evidence: Evidence) -> Iterator[Finding]:
    """The run was not resumed after its first solo window. Its folder may be changed while no run goes on, so what a
    resumed run began before is not known."""
    records = evidence.result.records
    solo = [not record.screening and record.scenario != "probe" for record in records]
    if times := sum(any(solo[:count]) for count in evidence.result.resumed):
        yield found("run_at_once", times=times)


@room.rule(
    warning("the seed was given, so that all feeds, and their outputs, could be known beforehand"),
    unranked=warning("its seed was given"),
    noticed=warning("the inputs were known beforehand, by --seed", "leave --seed away"),
)
def seed_random(evidence: Evidence) -> Iterator[Finding]:
    """The seed was drawn by the run, so the feeds could not be known before it began."""
    if evidence.result.seed_given:
        yield found("seed_random")


@room.rule(
    warning("{times:.2f} × the {unit} that the probe of {device} reached: it cannot be ranked until that is explained"),
    noticed=warning("a figure exceeds the ceilings that the probe measured{share:share}"),
    unranked=warning("faster than the ceiling of its probe without an explanation: {parts}"),
)
def below_ceiling(evidence: Evidence) -> Iterator[Finding]:
    """No more FLOPs or bytes per second than 1.25 times what undisturbed probes of built-in adapters reached on the
    device. A device that none of them probed has no ceiling but its own. The bytes count once for all feeds that are in
    flight together."""
    for measured in evidence.measured:
        record, device = measured.record, measured.record.route.device
        if record.scenario == "probe" or record.screening or not measured.in_flight_ns:
            continue
        feeds_per_s = len(measured.completions) * 1e9 / measured.in_flight_ns
        streamed = streamed_bytes(measured) * feeds_per_s
        streamed /= measured.mean_in_flight  # one pass over the weights may serve all feeds in flight
        for unit, achieved, ceiling in (
            ("FLOP/s", min_flops(record) * feeds_per_s, evidence.peaks.flops_of(record.route)),
            ("byte/s", streamed, evidence.peaks.bytes_per_s.get(device, 0)),
        ):
            if ceiling and achieved > OVER_CEILING * ceiling:
                yield found("below_ceiling", record.key, times=achieved / ceiling, unit=unit, device=device)


def most_per_s(measured: Measurement, share: Share, peaks: PeakRates) -> float:
    """The most units per second of another route of the suite on the device that `below_ceiling` allows. Infinite if
    no ceiling is known. measured: what a route of as many bits or fewer did."""
    record, units = measured.record, measured.record.feed_units
    wider = BITS_PER_WEIGHT[share.route.precision] / BITS_PER_WEIGHT[record.route.precision]
    if not units or wider < 1:
        return math.inf
    needs = [(min_flops(record), peaks.flops_of(share.route))]
    if record.batch == share.batch == record.concurrency == 1:  # else a pass over the weights may serve more feeds
        needs.append((wider * streamed_bytes(measured), peaks.bytes_per_s.get(share.route.device, 0)))
    return min((OVER_CEILING * peak * units / need for need, peak in needs if need and peak), default=math.inf)


@room.rule(
    warning("its units, costs and gate are the folder's, and were not compared with its suite: {why}"),
    noticed=warning("a suite is not here in the version that ran, so its code could not be compared{share:share}"),
    unranked=warning("the suites {suites} were not compared with their code"),
)
def suites_verified(evidence: Evidence) -> Iterator[Finding]:
    """The units, costs, gate and latency limits of a record equal what its suite's code says. A suite that is not
    installed here, or in another version, says nothing."""
    for key, why in evidence.unknown_suites.items():
        yield found("suites_verified", key, why=why)


@room.rule(
    elsewhere=invalid("not all of it ran on {device}: {elsewhere}"),
    idle=warning("{device} was idle in all {blocks} blocks of the window"),
    not_ours=warning("the driver of {device} lists processes, and none of them is ours"),
    noticed=warning("the driver saw hardly any work on an accelerator{share:share}"),
)
def on_device(evidence: Evidence) -> Iterator[Finding]:
    """All of the work ran on the record's device. A GPU computed, and for this run, as far as its driver reports in at
    least 3 blocks."""
    for measured in evidence.measured:
        record = measured.record
        if elsewhere := record.facts.get("elsewhere"):
            yield found("on_device.elsewhere", record.key, device=record.route.device, elsewhere=elsewhere)
        for id in sorted(measured.silicon):
            states = [state for block in measured.touching for state in block.accelerators if state.id == id]
            used = [state.utilization_pct for state in states if state.utilization_pct is not None]
            listed = [state.own_processes_listed for state in states if state.own_processes_listed is not None]
            if len(used) >= IDLE_BLOCKS and not any(used):
                yield found("on_device.idle", record.key, device=id, blocks=len(used))
            if listed and not any(listed):
                yield found("on_device.not_ours", record.key, device=id)


@room.rule(
    note("no undisturbed probe of {device} in {precision} passed its audit, so a score has no rank"),
    unranked=warning(
        "no undisturbed probe of {device} in {precision} passed its audit, so nothing tells what is too fast"
    ),
)
def probed(evidence: Evidence) -> Iterator[Finding]:
    """An undisturbed probe that passed its audit shows the FLOPs and the bytes per second of the device in the
    precision. Of a device that no built-in adapter reaches it is its own adapter's probe. With the preset quick the
    probe of an equal device will do."""
    known = evidence.ceilings.values()
    multiplies = {(each.device, each.precision) for each in known if each.flops_per_s}
    streams = {each.device for each in known if each.bytes_per_s}
    for measured in evidence.measured:
        route, record = measured.record.route, measured.record
        by = evidence.equals.get(route.device, (route.device,))
        probed = any((id, route.precision) in multiplies and id in streams for id in by)
        if record.scenario != "probe" and not record.screening and not probed:
            yield found("probed", measured.key, device=route.device, precision=route.precision)


def min_flops(record: Record) -> float:
    """The FLOPs of one feed by the algorithm that needs fewest."""
    return sum(cost.least_flops * cost.yields for cost in record.costs)


def streamed_bytes(measured: Measurement) -> float:
    """The bytes that one feed streams in yields that are much larger than the last cache. No cache holds much of such a
    yield."""
    cache_bytes = last_level_bytes(measured.system.caches)
    cache = cache_bytes if kind_of(measured.record.route.device) == "cpu" and cache_bytes else LARGEST_CACHE_BYTES
    cache *= len(measured.silicon - {measured.record.route.device}) or 1  # each part of a group has a cache of its own
    costs = measured.record.costs
    return sum(cost.streamed_bytes * cost.yields for cost in costs if cost.streamed_bytes > OUT_OF_CACHE * cache)


def last_level_bytes(caches: Mapping[str, str]) -> int | None:
    """The size of the last cache. caches: sizes by level as the kernel writes them, e.g. L3: 33792K."""
    units = {"K": 10, "M": 20, "G": 30}
    for level in sorted(caches, reverse=True):
        if found := re.fullmatch(r"(\d+)([KMG])", caches[level]):
            return int(found[1]) << units[found[2]]
    return None


@room.record_rule(
    warning(
        "for {idle_pct:.0f} % of the window no feed was in flight, so the harness or other programs may set the rate, "
        "and latencies may leave out work"
    ),
    weight=540,
    noticed=warning("much time passed between the feeds{share:share}"),
)
def device_busy(measured: Measurement) -> Iterator[Finding]:
    """A feed is in flight for nine tenths of a closed loop's window, counted for each feed that the runner takes at
    once. The rest is in the throughput, but other programs held the harness up then, or it made feeds, or an engine
    worked where no latency shows it."""
    if not measured.is_solo or measured.record.scenario == "server" or measured.between_feeds <= BETWEEN:
        return
    yield found("device_busy", measured.key, idle_pct=measured.between_feeds * 100)


@room.record_rule(
    warning(
        "{machine}'s network carried {outside_kb_per_s:,.0f} kB a second in the window, for this run or for others "
        "(at rest: {limit_kb_per_s} kB)"
    ),
    weight=520,
    noticed=warning("the network carried traffic{share:share}"),
)
def network_quiet(measured: Measurement) -> Iterator[Finding]:
    """The network carried at most 64 kB a second in the window, besides the messages between hosts. A machine at rest
    carries as much; work that is done elsewhere costs no joule here. The kernel does not say which process sent what,
    so it is a warning."""
    seen = measured.traffic
    if seen.self_contained is False:
        kb = {"outside_kb_per_s": seen.outside_per_s / 1000, "limit_kb_per_s": AT_REST_BYTES_PER_S // 1000}
        yield found("network_quiet", measured.key, **kb, machine=measured.machine)
