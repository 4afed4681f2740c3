"""The rules that a fast wrong output breaks: Evidence -> findings. What is invalid by them counts in no score.

They assume an adapter that wants to look fast. What none of them can see is said in docs/rules.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from mixmark.harness.contracts.device_ids import local
from mixmark.harness.contracts.schema import HOSTED, NO_GATE, NOT_ASKED, Finding, Record
from mixmark.harness.judge import hosts
from mixmark.harness.judge.evidence import Evidence, Measurement, is_cell
from mixmark.harness.judge.hosts import AT_REST_BYTES_PER_S
from mixmark.harness.judge.statistics.intervals import CONFIDENCE
from mixmark.harness.judge.statistics.timestamps import most_in_flight
from mixmark.harness.plan.presets import OUT_OF_CACHE

OVER_CEILING = (
    1.25  # times the best ceiling: the probe may miss it, and honest engines were seen at 1.13 of its bandwidth
)
LARGEST_CACHE_BYTES = 256 << 20  # that any chip has, and so that of one which does not say: MI300X's
SLACK_NS = 250_000_000  # between the worker's stamps and the parent's: a pipe and a busy machine's scheduler
SLACK_SHARE = 0.01  # … and of the window
IDLE_BLOCKS = 3  # in which a GPU must have shown nothing: a driver's sample is shorter than a block
TELLING = 0.5  # a bound of the share of wrong feeds above this is not worth stating
BETWEEN = 0.1  # of a window may pass between feeds
GAP_SLOWER = 4  # times what a gap takes where nothing else runs: on a busy machine with cold caches it takes longer
GAP_NS = 250_000  # for the loop itself, which honest engines were seen to spend on two cores that others used too
GAP_SHARE = 0.05  # of the window, for what is no part of each gap: looks at the interval, outputs that are dropped
GAP_SLACK_NS = 50_000_000  # of any window, for a thread that the scheduler lets wait
HARNESS = "so the harness, and not the device, may set the rate"
MAKING = 0.8  # of a device's time may go into making its feeds, where that is done while the device works


def audited(evidence: Evidence) -> Iterator[Finding]:
    """Every audited feed of every record keeps its gate, and what that tells. A record that was not audited although
    the plan asks for it proves nothing, so it is invalid."""
    asked = {
        share.key: share.limits.audits > 0
        for phase in evidence.result.phases
        for task in phase.tasks
        for share in task.shares
    }
    for each in (each for each in evidence.measured if not each.record.screening):
        record, audit = each.record, each.record.audit
        if audit is None or (not audit.values and not audit.problem):
            alone = record.route.hosted and record.scenario != "mixed"
            excused = record.unaudited == NO_GATE or (record.unaudited == NOT_ASKED and not asked.get(each.key))
            severity = "note" if excused or (alone and record.unaudited == HOSTED) else "invalid"
            message = f"not audited: {record.unaudited or 'the run ended before'}"
        elif audit.problem:
            severity, message = "invalid", f"wrong outputs: {audit.problem}"
        elif not audit.passed:
            wrong = sum(value > audit.gate.at_most for value in audit.values)
            severity = "invalid"
            message = (
                f"wrong outputs: {wrong} of {len(audit.values)} audited feeds fail; {audit.gate.metric} "
                f"{max(audit.values):.3g}, at most {audit.gate.at_most:.3g} is allowed"
            )
        else:
            count = len(audit.values)
            feeds = "1 feed was audited and passed" if count == 1 else f"{count} feeds were audited and all passed"
            bound = excluded(count)
            proves = f"with 95 % confidence at most {bound * 100:.2g} % of all feeds are wrong"
            severity, message = "note", f"{feeds}: {proves if bound <= TELLING else 'too few to bound the error rate'}"
        yield Finding.model_validate({"rule": "audited", "severity": severity, "about": record.key, "message": message})


def excluded(feeds: int, confidence: float = CONFIDENCE) -> float:
    """The largest part of all feeds that may be wrong although `feeds` of them, drawn by chance, are right.

    It is 1 − (1 − confidence)^(1/n), which for large n is the rule of three, 3/n.
    """
    return float(-np.expm1(np.log1p(-confidence) / feeds))


def no_orphans(evidence: Evidence) -> Iterator[Finding]:
    """Nothing of a worker lived on when it had ended: it could reach what is measured and audited later."""
    for each in evidence.measured:
        left, helpers = each.record.left_behind, each.record.helpers
        for names, severity, what in (
            (left, "invalid", "lived on after the workers of the phase, and had to be killed"),
            (helpers, "note", "worked for the adapter outside of its worker, and lived on"),
        ):
            if names:
                processes = "1 process" if len(names) == 1 else f"{len(names)} processes"
                message = f"{processes} {what}: {', '.join(sorted(set(names)))}"
                yield Finding.model_validate(
                    {"rule": "no_orphans", "severity": severity, "about": each.key, "message": message}
                )


def units_counted(evidence: Evidence) -> Iterator[Finding]:
    """Every feed has its units, in as many yields as its suite's cost model has."""
    for each in evidence.measured:
        record, done, expected = each.record, each.completions, each.record.feed_units
        if expected is None or record.screening:
            continue
        counted = np.add.reduceat(done.units, done.starts)
        yields = sum(cost.yields for cost in record.costs)
        if (counted != expected).any():
            message = f"{counted.min()} to {counted.max()} units were counted for feeds of {expected}"
        elif yields and ((done.ends - done.starts) != yields).any():
            message = f"feeds of {yields} yields came in {(done.ends - done.starts).min()} at the least"
        else:
            continue
        yield Finding(rule="units_counted", severity="invalid", about=record.key, message=message)


def on_schedule(evidence: Evidence) -> Iterator[Finding]:
    """The feeds of a server were due when the window's seed says, and all of them were run."""
    shares = [share for phase in evidence.result.phases for task in phase.tasks for share in task.shares]
    least_ns = {share.key: share.limits.min_ns for share in shares}
    for each in evidence.measured:
        record, schedule_ns = each.record, each.schedule_ns
        if record.scenario != "server":
            continue
        if schedule_ns is None:
            message = "its window has no seed or no possible rate, so that nobody can tell when its feeds were due"
        elif np.ptp(np.sort(each.completions.due_ns) - schedule_ns[:-1]):
            message = "the feeds were not due when the window's seed says"
        elif schedule_ns[-1] < least_ns.get(record.key, 0):
            message = (
                f"it left the feed out that was due after {schedule_ns[-1] / 1e9:.2f} s, and all later ones, of a "
                f"window of {least_ns[record.key] / 1e9:.2f} s"
            )
        else:
            continue
        yield Finding(rule="on_schedule", severity="invalid", about=record.key, message=message)


def window_bracketed(evidence: Evidence) -> Iterator[Finding]:
    """The worker's window lies inside the parent's, and is as long: else its clock was touched, or work was done after
    the last stamp and before it was handed over."""
    for each in evidence.measured:
        record, done, bracket = each.record, each.completions, each.record.bracket_ns
        if bracket is None:
            continue
        begin_ns, end_ns = each.window_ns
        if each.schedule_ns is not None:
            begin_ns = int(done.due_ns.min() - each.schedule_ns[0])  # the window is open before the first feed arrives
        seen_ns = bracket[1] - bracket[0]
        if record.scenario == "mixed":
            slack_ns = SLACK_NS + hosts.clock_bound_ns(evidence.result, record.phase, each.host)
            late = int((done.issued_ns > bracket[1] + slack_ns).sum())  # what was queued when it stopped still runs
            if record.skew_ns is not None and record.skew_ns > SLACK_NS:
                message = f"a stamp lies {record.skew_ns / 1e9:.2f} s outside of the time that its feed took here"
            elif begin_ns < bracket[0] - slack_ns or late > record.concurrency + 1:
                message = "feeds were issued when the phase was not on"
            else:
                continue
            yield Finding(rule="window_bracketed", severity="invalid", about=record.key, message=message)
            continue
        slack = SLACK_NS + SLACK_SHARE * seen_ns
        outside_ns = max(bracket[0] - begin_ns, end_ns - bracket[1])
        missing_ns = seen_ns - (end_ns - begin_ns)
        if outside_ns > slack or missing_ns > slack:
            told_s, took_s = (end_ns - begin_ns) / 1e9, seen_ns / 1e9
            message = f"the worker's clock tells {told_s:.2f} s of a window that took {took_s:.2f} s"
            yield Finding(rule="window_bracketed", severity="invalid", about=record.key, message=message)


def concurrency_kept(evidence: Evidence) -> Iterator[Finding]:
    """No device has more feeds in flight than its runner takes at a time, whatever they are of."""
    together: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for each in evidence.measured:
        together[each.record.phase, each.record.route.device].append(each)
    for (_, device), several in together.items():
        most = most_in_flight(*(each.completions for each in several))
        concurrency = max(each.lanes for each in several)
        if most > concurrency:
            message = f"{most} feeds were in flight at once on {device}, which takes {concurrency}"
            yield Finding(rule="concurrency_kept", severity="invalid", about=several[0].key, message=message)


def low_feed_overhead(evidence: Evidence) -> Iterator[Finding]:
    """What passes between feeds is in no throughput, so there must be little of it, and no more than it takes to make
    the feeds and to keep the outputs."""
    for each in evidence.cells:
        if each.record.scenario == "server" or len(each.completions) < 2:
            continue
        span_ns = each.window_ns[1] - each.window_ns[0]
        between_ns = span_ns - each.in_flight_ns
        between = between_ns / span_ns if span_ns else 0.0
        feed_overhead_ns = each.record.feed_overhead_ns
        takes_ns = len(each.completions) * (feed_overhead_ns or 0)
        most_ns = GAP_SLOWER * (takes_ns + len(each.completions) * GAP_NS) + GAP_SHARE * span_ns + GAP_SLACK_NS
        if feed_overhead_ns is not None and between_ns > most_ns:
            message = (
                f"{between_ns / 1e9:.2f} s of the window lie between feeds, where nothing is timed; "
                f"making the feeds takes {takes_ns / 1e9:.2f} s"
            )
            yield Finding(rule="low_feed_overhead", severity="invalid", about=each.key, message=message)
        elif between > BETWEEN:
            message = f"{between * 100:.0f} % of the window lies between feeds, where nothing is timed"
            yield Finding(rule="low_feed_overhead", severity="warning", about=each.key, message=message)


def fastest_measured(evidence: Evidence) -> Iterator[Finding]:
    """The route whose screening run was the fastest of a suite on a device was measured in full: a screening run is not
    audited, so a
    record that is called one would hide wrong outputs."""
    if not evidence.result.finished:
        return
    whole = {record.route.key for record in evidence.result.records if is_cell(record)}
    screenings = [each for each in evidence.measured if each.record.screening and each.throughput_per_s]
    fastest: dict[tuple[str, str], Measurement] = {}
    for each in sorted(screenings, key=lambda each: (each.throughput_per_s, each.record.route.key in whole)):
        fastest[each.record.route.suite, each.record.route.device] = each
    for (suite, device), each in fastest.items():
        if each.record.route.key not in whole:
            message = (
                f"its screening run was the fastest of {suite} on {device}, and the route was not measured in full"
            )
            yield Finding(rule="fastest_measured", severity="invalid", about=each.key, message=message)


def not_starved(evidence: Evidence) -> Iterator[Finding]:
    """The device, and not the harness, sets the rate: the slots of a runner hardly stand without a feed, and the feeds
    of a mixed run take little of the device's time to make. A processor's are made between its feeds, those of other
    devices meanwhile."""
    for each in evidence.cells:
        begin_ns, end_ns = each.completions.issued_ns.min(), each.completions.issued_ns.max()  # all lanes are at work
        if each.record.scenario == "server" or each.lanes == 1 or begin_ns == end_ns:
            continue
        done_ns = each.completions.marks_ns[each.completions.ends - 1].clip(max=end_ns)
        stood = 1 - (done_ns - each.completions.issued_ns).sum() / (each.lanes * (end_ns - begin_ns))
        if stood > BETWEEN:
            message = f"its slots stood without a feed for {stood * 100:.0f} % of their time, {HARNESS}"
            yield Finding(rule="not_starved", severity="warning", about=each.key, message=message)
    making_ns = {_target(each.record): each.record.feed_overhead_ns or 0 for each in evidence.cells}
    together: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for each in evidence.measured:
        if each.record.scenario == "mixed":
            together[each.record.phase, each.record.route.device].append(each)
    for (_, device), several in together.items():
        took_ns = sum(len(each.completions) * making_ns.get(_target(each.record), 0) for each in several)
        begins_ns, ends_ns = zip(*(each.window_ns for each in several), strict=True)
        made = took_ns / max(1, max(ends_ns) - min(begins_ns))
        if made > (BETWEEN if local(device).startswith("cpu:") else MAKING):
            message = f"making the feeds of {device} takes {made * 100:.0f} % of its time, {HARNESS}"
            yield Finding(rule="not_starved", severity="warning", about=several[0].key, message=message)


def _target(record: Record) -> tuple[str, str, str, str, int | None]:
    """How the feeds of a record are made and run."""
    route = record.route
    return route.suite, route.device, route.adapter, route.precision, record.batch


def threads_pinned(evidence: Evidence) -> Iterator[Finding]:
    """The threads of a worker that is pinned to a slice of the processor stay there."""
    for each in evidence.measured:
        if strayed := max((block.strayed_threads or 0 for block in each.touching), default=0):
            threads = "1 thread" if strayed == 1 else f"{strayed} threads"
            message = f"{threads} of the phase's workers could run on cores outside of their slice"
            yield Finding(rule="threads_pinned", severity="invalid", about=each.key, message=message)


def never_suspended(evidence: Evidence) -> Iterator[Finding]:
    """No process of the workers was stopped in the window, so that another one had its share of the machine."""
    for each in evidence.measured:
        blocks = [block for block in each.touching if block.stopped_processes]
        if blocks:
            message = f"a process of the phase's workers was stopped by a signal, in {len(blocks)} blocks of the window"
            yield Finding(rule="never_suspended", severity="invalid", about=each.key, message=message)


def network_quiet(evidence: Evidence) -> Iterator[Finding]:
    """The network carried no more in the window than that of a machine at rest, beside what an agent and the leading
    host tell each other: work that is done elsewhere costs no joule here. The kernel does not tell whose traffic it
    was, so it is a warning."""
    for each in evidence.measured:
        seen = hosts.carried(evidence.result, each.record.phase, each.host, each.touching)
        if seen.self_contained is False:
            whose = f"{each.host}'s network" if each.host else "the machine's network"
            beside = f" beside the stream of its agent ({seen.agent_bytes / 1000:,.0f} kB)" if each.host else ""
            message = (
                f"{whose} carried {seen.outside_per_s / 1000:,.0f} kB a second in the window{beside}, for this "
                f"run or for others (at rest: {AT_REST_BYTES_PER_S // 1000} kB)"
            )
            yield Finding(rule="network_quiet", severity="warning", about=each.key, message=message)


def on_device(evidence: Evidence) -> Iterator[Finding]:
    """All of the work ran on the record's device; a GPU computed, and for us, as far as its driver tells."""
    for each in evidence.measured:
        record = each.record
        if elsewhere := record.facts.get("elsewhere"):
            message = f"not all of it ran on {record.route.device}: {elsewhere}"
            yield Finding(rule="on_device", severity="invalid", about=record.key, message=message)
        for id in sorted(each.silicon):
            states = [state for block in each.touching for state in block.accelerators if state.id == id]
            used = [state.utilization_pct for state in states if state.utilization_pct is not None]
            listed = [state.own_listed for state in states if state.own_listed is not None]
            for idle, message in (
                (len(used) >= IDLE_BLOCKS and not any(used), f"{id} was idle in all {len(used)} blocks of the window"),
                (listed and not any(listed), f"the driver of {id} lists processes, and none of them is ours"),
            ):
                if idle:
                    yield Finding(rule="on_device", severity="warning", about=record.key, message=message)


def below_ceiling(evidence: Evidence) -> Iterator[Finding]:
    """No more FLOPs a second, nor bytes that come from memory, than 1.25 times what the probe of the device reached:
    that of the built-in adapters where one ran, else the best one whose audit passed."""
    peaks = evidence.peaks
    for each in evidence.measured:
        record, route, done = each.record, each.record.route, each.completions
        if record.scenario == "probe" or record.screening or not each.in_flight_ns:
            continue
        cache_bytes = last_level_bytes(hosts.system(evidence.result, each.host).caches)
        flops_per_s = peaks.flops_per_s.get((route.device, route.precision), 0)
        bytes_per_s = peaks.bytes_per_s.get(route.device, 0)
        cache = cache_bytes if local(route.device).startswith("cpu:") and cache_bytes else LARGEST_CACHE_BYTES
        cache *= len(each.silicon - {route.device}) or 1  # each part of a group has a cache of its own
        rate = len(done) * 1e9 / each.in_flight_ns
        flops = least_flops(record) * rate
        streamed = streamed_bytes(record, OUT_OF_CACHE * cache) * rate / each.lanes  # one pass over them may serve all
        for what, achieved, ceiling in (("FLOP/s", flops, flops_per_s), ("byte/s", streamed, bytes_per_s)):
            if ceiling and achieved > OVER_CEILING * ceiling:
                message = (
                    f"{achieved / ceiling:.2f} × the {what} that the probe of {route.device} reached: "
                    "it cannot be ranked until that is explained"
                )
                yield Finding(rule="below_ceiling", severity="warning", about=record.key, message=message)


def probed(evidence: Evidence) -> Iterator[Finding]:
    """A probe that passed its audit tells the FLOPs a second of the device in the precision, and its bytes a second:
    else nothing tells what would be too fast."""
    peaks = evidence.peaks
    for each in evidence.measured:
        route = each.record.route
        known = (route.device, route.precision) in peaks.flops_per_s and route.device in peaks.bytes_per_s
        if each.record.scenario != "probe" and not each.record.screening and not known:
            message = f"no probe of {route.device} in {route.precision} passed its audit, so a score has no rank"
            yield Finding(rule="probed", severity="note", about=each.key, message=message)


def least_flops(record: Record) -> float:
    """The FLOPs of one feed by the cleverest algorithm."""
    return sum((cost.flops if cost.least_flops is None else cost.least_flops) * cost.yields for cost in record.costs)


def streamed_bytes(record: Record, at_least: float) -> float:
    """The bytes that one feed streams in yields of more than `at_least` bytes, of which no cache holds much."""
    return sum(cost.streamed_bytes * cost.yields for cost in record.costs if cost.streamed_bytes > at_least)


def last_level_bytes(caches: Mapping[str, str]) -> int | None:
    """The size of the last cache. caches: sizes by level as the kernel tells them, e.g. L3: 33792K."""
    units = {"K": 10, "M": 20, "G": 30}
    for level in sorted(caches, reverse=True):
        if found := re.fullmatch(r"(\d+)([KMG])", caches[level]):
            return int(found[1]) << units[found[2]]
    return None


def seed_random(evidence: Evidence) -> Iterator[Finding]:
    """The feeds could not be known before the run began."""
    if evidence.result.seed_given:
        message = "the seed was given, so that all feeds, and their outputs, could be known beforehand"
        yield Finding(rule="seed_random", severity="warning", about="run", message=message)


def suites_verified(evidence: Evidence) -> Iterator[Finding]:
    """What a record says of its suite is what the code of that suite says."""
    for key, why in evidence.unknown_suites.items():
        message = (
            f"its units, costs and gate are those that the folder tells, and were not compared with its suite: {why}"
        )
        yield Finding(rule="suites_verified", severity="warning", about=key, message=message)


RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    audited,
    no_orphans,
    units_counted,
    window_bracketed,
    on_schedule,
    concurrency_kept,
    threads_pinned,
    never_suspended,
    network_quiet,
    on_device,
    below_ceiling,
    probed,
    low_feed_overhead,
    fastest_measured,
    not_starved,
    seed_random,
    suites_verified,
)


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    return tuple(finding for rule in RULES for finding in rule(evidence))


def invalid(findings: Iterable[Finding]) -> frozenset[str]:
    """The keys of the records, and whatever else, that are invalid by these findings."""
    return frozenset(each.about for each in findings if each.severity == "invalid")
