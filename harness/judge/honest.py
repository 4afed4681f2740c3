"""The rules that a fast wrong answer breaks: each Result -> findings. What is invalid by them counts in no score.

They assume an adapter that wants to look fast. What none of them can see is said in docs/rules.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from harness.judge import stats
from harness.schema import Conditions, Finding, Record, Result

LIGHT = 1.25  # times the best ceiling: the probe may miss it, and honest engines were seen at 1.13 of its bandwidth
OUT_OF_CACHE = 4  # times the last-level cache: with less, a good part of what is streamed may come from it
LARGEST_CACHE_BYTES = 256 << 20  # that any chip has, and so that of one which does not say: MI300X's
SLACK_NS = 250_000_000  # between the worker's stamps and the parent's: a pipe and a busy machine's scheduler
SLACK_SHARE = 0.01  # … and of the window
IDLE_BLOCKS = 3  # in which a GPU must have shown nothing: a driver's sample is shorter than a block
BETWEEN = 0.1  # of a window may pass between feeds


def audited(result: Result) -> Iterator[Finding]:
    """Every audited feed of every record keeps its gate, and what that tells; what was not audited is said."""
    for record in result.records:
        audit = record.audit
        if record.completions is None or record.scenario == "probe":
            continue
        if audit is None or (not audit.values and not audit.problem):
            severity, message = "warning", f"not audited: {record.unaudited or 'the run ended before'}"
        elif audit.problem:
            severity, message = "invalid", f"wrong answers: {audit.problem}"
        elif not audit.passed:
            wrong = sum(value > audit.gate.at_most for value in audit.values)
            severity = "invalid"
            message = (
                f"wrong answers: {wrong} of {len(audit.values)} audited feeds fail; {audit.gate.metric} "
                f"{max(audit.values):.3g}, at most {audit.gate.at_most:.3g} is allowed"
            )
        else:
            count = len(audit.values)
            feeds = "the audited feed passes" if count == 1 else f"all of {count} audited feeds pass"
            severity, message = "note", f"{feeds}: at 95 %, at most {excluded(count) * 100:.2g} % of all are wrong"
        yield Finding.model_validate({"rule": "audited", "severity": severity, "about": record.key, "message": message})


def excluded(feeds: int, confidence: float = stats.CONFIDENCE) -> float:
    """The part of the feeds that may be wrong while so many drawn by chance are all right: 1 − (1 − confidence)^(1/n),
    which for large n is the rule of three, 3/n."""
    return float(-np.expm1(np.log1p(-confidence) / feeds))


def units_counted(result: Result) -> Iterator[Finding]:
    """Every feed has its units, in as many yields as its suite's cost model has."""
    for record in result.records:
        done, expected = record.completions, record.feed_units
        if done is None or expected is None:
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


def clock_bracketed(result: Result) -> Iterator[Finding]:
    """The worker's window lies inside the parent's, and is as long: else its clock was touched, or work was done after
    the last stamp and before it was handed over."""
    for record in result.records:
        done, bracket = record.completions, record.bracket_ns
        if done is None or bracket is None:
            continue
        begin_ns, end_ns = int(done.issued_ns.min()), int(done.marks_ns.max())
        seen_ns = bracket[1] - bracket[0]
        if record.scenario == "mixed":
            late = int((done.issued_ns > bracket[1] + SLACK_NS).sum())  # what was queued when it stopped still runs
            if record.skew_ns is not None and record.skew_ns > SLACK_NS:
                message = f"a stamp lies {record.skew_ns / 1e9:.2f} s outside of the time that its feed took here"
            elif begin_ns < bracket[0] - SLACK_NS or late > record.slots + 1:
                message = "feeds were issued when the phase was not on"
            else:
                continue
            yield Finding(rule="clock_bracketed", severity="invalid", about=record.key, message=message)
            continue
        slack_ns = SLACK_NS + SLACK_SHARE * seen_ns
        outside_ns = max(bracket[0] - begin_ns, end_ns - bracket[1])
        missing_ns = seen_ns - (end_ns - begin_ns) if record.scenario != "server" else 0
        if outside_ns > slack_ns or missing_ns > slack_ns:
            told_s, took_s = (end_ns - begin_ns) / 1e9, seen_ns / 1e9
            message = f"the worker's clock tells {told_s:.2f} s of a window that took {took_s:.2f} s"
            yield Finding(rule="clock_bracketed", severity="invalid", about=record.key, message=message)


def in_turn(result: Result) -> Iterator[Finding]:
    """No device has more feeds in flight than its runner takes at a time, whatever they are of."""
    together: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in result.records:
        if record.completions is not None:
            together[record.phase, record.route.device].append(record)
    for (_, device), records in together.items():
        most = stats.most_in_flight([each.completions for each in records if each.completions is not None])
        slots = max(1 if each.scenario == "single-stream" else each.slots for each in records)
        if most > slots:
            message = f"{most} feeds were in flight at once on {device}, which takes {slots}"
            yield Finding(rule="in_turn", severity="invalid", about=records[0].key, message=message)


def little_between(result: Result) -> Iterator[Finding]:
    """What passes between feeds is in no throughput, so there must be little of it."""
    for record in result.records:
        done = record.completions
        if done is None or record.scenario in ("server", "mixed", "probe") or len(done) < 2:
            continue
        span_ns = int(done.marks_ns.max() - done.issued_ns.min())
        between = 1 - stats.in_flight_ns(done) / span_ns if span_ns else 0.0
        if between > BETWEEN:
            message = f"{between * 100:.0f} % of the window lies between feeds, where nothing is timed"
            yield Finding(rule="little_between", severity="warning", about=record.key, message=message)


def on_device(result: Result) -> Iterator[Finding]:
    """All of the work ran on the record's device; a GPU computed, and for us, as far as its driver tells."""
    for record in result.records:
        if record.completions is None:
            continue
        if elsewhere := record.facts.get("elsewhere"):
            message = f"not all of it ran on {record.route.device}: {elsewhere}"
            yield Finding(rule="on_device", severity="invalid", about=record.key, message=message)
        device = next((each for each in result.devices if each.id == record.route.device), None)
        silicon = device.silicon if device else {record.route.device}
        for id in sorted(silicon):
            states = [each for block in _during(record) for each in block.accelerators if each.id == id]
            used = [each.utilization_pct for each in states if each.utilization_pct is not None]
            listed = [each.own_listed for each in states if each.own_listed is not None]
            for idle, message in (
                (len(used) >= IDLE_BLOCKS and not any(used), f"{id} was idle in all {len(used)} blocks of the window"),
                (listed and not any(listed), f"the driver of {id} lists processes, and none of them is ours"),
            ):
                if idle:
                    yield Finding(rule="on_device", severity="warning", about=record.key, message=message)


def _during(record: Record) -> list[Conditions]:
    """The blocks that touch the record's window."""
    done = record.completions
    assert done is not None  # the caller has seen it
    begin_ns, end_ns = int(done.issued_ns.min()), int(done.marks_ns.max())
    return [block for block in record.conditions if block.begin_ns < end_ns and begin_ns < block.end_ns]


def slower_than_light(result: Result) -> Iterator[Finding]:
    """No more FLOPs a second, nor bytes that come from memory, than the best probe of the device reached, by any
    adapter, times 1.25."""
    known = stats.ceilings(result.records)
    cache_bytes = last_level_bytes(result.system.caches)
    for record in result.records:
        route, done = record.route, record.completions
        if done is None or record.scenario == "probe" or not (in_flight_ns := stats.in_flight_ns(done)):
            continue
        flops_per_s = max(
            (
                top.flops_per_s or 0
                for (device, _, precision), top in known.items()
                if device == route.device and precision == route.precision
            ),
            default=0,
        )
        bytes_per_s = max(
            (top.bytes_per_s or 0 for (device, _, _), top in known.items() if device == route.device), default=0
        )
        cache = cache_bytes if route.device.startswith("cpu:") and cache_bytes else LARGEST_CACHE_BYTES
        rate = len(done) * 1e9 / in_flight_ns
        together = 1 if record.scenario == "single-stream" else record.slots  # one pass over the weights may serve all
        flops, streamed = least_flops(record) * rate, streamed_bytes(record, OUT_OF_CACHE * cache) * rate / together
        for what, achieved, ceiling in (("FLOP/s", flops, flops_per_s), ("byte/s", streamed, bytes_per_s)):
            if ceiling and achieved > LIGHT * ceiling:
                message = (
                    f"{achieved / ceiling:.2f} × the best {what} that a probe of {route.device} reached: "
                    "it cannot be ranked until that is explained"
                )
                yield Finding(rule="slower_than_light", severity="warning", about=record.key, message=message)


def least_flops(record: Record) -> float:
    """Of one feed, by the cleverest algorithm."""
    return sum((cost.flops if cost.least_flops is None else cost.least_flops) * cost.yields for cost in record.costs)


def streamed_bytes(record: Record, at_least: float) -> float:
    """Of one feed, in those yields that stream more than a cache could hold a good part of."""
    return sum(cost.streamed_bytes * cost.yields for cost in record.costs if cost.streamed_bytes > at_least)


def last_level_bytes(caches: Mapping[str, str]) -> int | None:
    """Of the sizes by level that the kernel tells, e.g. L3: 33792K."""
    units = {"K": 10, "M": 20, "G": 30}
    for level in sorted(caches, reverse=True):
        if found := re.fullmatch(r"(\d+)([KMG])", caches[level]):
            return int(found[1]) << units[found[2]]
    return None


def seed_drawn(result: Result) -> Iterator[Finding]:
    """Nobody knows the feeds before the run begins."""
    if result.seed_given:
        message = "the seed was given, so that all feeds, and their answers, could be known beforehand"
        yield Finding(rule="seed_drawn", severity="warning", about="run", message=message)


RULES: tuple[Callable[[Result], Iterator[Finding]], ...] = (
    audited,
    units_counted,
    clock_bracketed,
    in_turn,
    on_device,
    slower_than_light,
    little_between,
    seed_drawn,
)


def findings(result: Result) -> tuple[Finding, ...]:
    return tuple(finding for rule in RULES for finding in rule(result))
