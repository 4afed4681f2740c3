"""The checks of an adapter, in the order of docs/vendors/conformance.md: Trials -> evidence.

A check returns its evidence in a few words. It raises Failed if the adapter breaks the contract, and NotChecked if the
trials do not show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from mixmark.harness.contracts.schema import Finding, Record
from mixmark.harness.discover.devices import unusable
from mixmark.harness.judge.rules import integrity
from mixmark.harness.judge.statistics.intervals import within_limits
from mixmark.harness.judge.statistics.timestamps import most_in_flight
from mixmark.harness.measure.conformance.report import Check, Failed, NotChecked, fail_if
from mixmark.harness.measure.conformance.trials import LOAD, Discovery, Sessions, Trials
from mixmark.harness.plan.phases import Target
from mixmark.harness.worker.failures import WorkerFailed

ARRAY = "numpy.ndarray"
DISCOVERS_WITHIN_S = 20.0  # the import of a vendor's framework included
CONVERTING = 0.1  # of a feed's time may go into converting its yields to host arrays
CONVERTING_NS = 2_000_000  # of any feed, for arrays that are only copied
CLOSES_WITHIN_S = 5.0  # a feed that was broken off
GROWTH = 0.5  # of the weights' size may a session leave behind
GROWTH_BYTES = 8 << 20  # of any suite, for allocators that keep what they had
IDLE_CORES = 0.05  # of a CPU may a worker use that is not called
LOG_BYTES = 2000  # that may be printed for each feed
LOG_BYTES_ONCE = 256 << 10  # for warnings at the start, in all workers together


def discovery_is_quick(tried: Trials) -> str:
    """`discover` returns within 20 s in a fresh process, the import of the vendor's libraries included."""
    took_s = min(each.took_s for each in tried.discoveries)  # the first one may read from a cold disk
    fail_if(took_s > DISCOVERS_WITHIN_S, f"it took {took_s:.0f} s, and may take {DISCOVERS_WITHIN_S:g} s")
    return f"{took_s:.1f} s from the start of a process"


def discovery_is_repeatable(tried: Trials) -> str:
    """Two fresh processes discover the same devices, in every field, and disclose the same versions."""
    first, second = _discoveries(tried)
    for one, other in zip(first.devices, second.devices, strict=False):
        names = [name for name in type(one).model_fields if getattr(one, name) != getattr(other, name)]
        fail_if(names, f"{one.id}: another {' and another '.join(names)} the second time")
    fail_if(len(first.devices) != len(second.devices), "the second time it found another number of devices")
    fail_if(first.environment != second.environment, "the second time it disclosed other versions")
    return f"twice the same: {', '.join(each.id for each in first.devices) or 'no device'}"


def discovery_leaves_nothing(tried: Trials) -> str:
    """`discover` starts no process that goes on, waits on no port, writes no file and claims no accelerator."""
    left: list[str] = []
    for each in _discoveries(tried):
        left += [f"{name} went on" for name in each.children]
        left += [f"it listens on port {port}" for port in each.listening]
        left += [f"it left {name}" for name in each.files[:5]]
        left += [f"it computes on {id}, whose memory it thus claims" for id in each.holds]
    fail_if(left, "; ".join(left))
    return "no process, no port, no file, no accelerator"


def devices_are_told_apart(tried: Trials) -> str:
    """Every device has an id of its own, offers a precision, and is no other kind of silicon than its id says."""
    targets = [Target(each, tried.adapter.name, {}) for each in tried.devices]
    for number, target in enumerate(targets):
        others = [each for each in targets[:number] if each.device.id == target.device.id]
        if problem := unusable(target, others):
            raise Failed(f"{target.device.id}: {problem}")
    return ", ".join(f"{target.device.id} ({', '.join(target.device.precisions)})" for target in targets)


def options_are_refused(tried: Trials) -> str:
    """An option that the adapter does not know is refused with UsageError, before anything else is done."""
    refused = tried.unknown_option
    fail_if(refused is None, "it took an unknown option: begin the constructor with refuse_options")
    assert refused is not None
    kind = type(refused).__name__
    fail_if(kind != "Misused", f"it raised something else than UsageError: {refused}")
    return f"{refused}"


def claims_run(tried: Trials) -> str:
    """Every suite runs in every precision that the device offers to it, or raises Unsupported."""
    broken = [
        f"{record.route.label}: {record.error.kind}: {record.error.message}"
        for record in tried.claimed
        if record.error and record.error.attempted and record.error.kind != "wrong output"
    ]
    fail_if(broken, "; ".join(broken))
    ran = [record for record in tried.claimed if record.completions is not None]
    lacking = [record.route for record in tried.claimed if record.error and not record.error.attempted]
    fail_if(not ran, "it runs no suite in any precision that it offers")
    told = f"{_counted(len(ran), 'route')} ran"
    unsupported = ", ".join(f"{each.suite} in {each.precision}" for each in lacking)
    return f"{told}; unsupported: {unsupported}" if lacking else told


def yields_fit_the_table(tried: Trials) -> str:
    """A feed's yields have the units, shapes and dtypes of the table in the docs."""
    broken = [
        f"{record.route.label}: {record.error.message}"
        for record in tried.claimed
        if record.error and record.error.kind == "wrong output"
    ]
    broken += [
        f"{record.route.label}: {record.audit.problem}"
        for record in _claimed(tried)
        if record.audit and record.audit.problem
    ]
    broken += _told(tried.found([integrity.units_counted], _claimed(tried)))
    fail_if(broken, "; ".join(broken))
    _ran(_claimed(tried))
    return "units, shapes and dtypes are those of the table"


def outputs_pass_their_gates(tried: Trials) -> str:
    """Every route passes the audit of its suite at the precision that it was opened in."""
    records = [record for record in _claimed(tried) if not (record.audit and record.audit.problem)]
    _passed(records)
    return f"{_counted(len(records), 'route')} passed"


def unclaimed_is_unsupported(tried: Trials) -> str:
    """A precision that the device does not offer raises Unsupported, and does not run as another one."""
    told = []
    for device, seen in _sessions(tried).items():
        if seen.unclaimed is None:
            continue
        refusal, asked = seen.refusal, f"{seen.share.route.suite} on {device} in {seen.unclaimed}"
        fail_if(refusal is None, f"{asked} ran, and is not offered")
        assert refusal is not None
        fail_if(refusal.kind != "unsupported", f"{asked}: {refusal.kind}: {refusal.message}")
        told.append(f"{asked}: {refusal.message}")
    if not told:
        raise NotChecked("it offers every precision that there is")
    return "; ".join(told)


def sessions_follow_each_other(tried: Trials) -> str:
    """A suite that was closed opens again in the same worker, and runs."""
    rounds = [f"{len(seen.memory_bytes)} of {seen.share.route.label}" for seen in tried.sessions.values()]
    return f"in a row: {'; '.join(rounds)}"


def outputs_are_plain(tried: Trials) -> str:
    """A yield is a numpy array on the host, whose values are not overwritten afterwards."""
    broken: list[str] = []
    for device, seen in _sessions(tried).items():
        each = seen.examined
        broken += [f"{device}: it yields {kind}, and not a numpy array" for kind in each.types if kind != ARRAY]
        if each.converting_ns > max(CONVERTING_NS, CONVERTING * each.feed_ns):
            waited = f"{each.converting_ns / 1e6:.0f} of {each.feed_ns / 1e6:.0f} ms"
            broken.append(f"{waited} went into waiting for what had been yielded")
        if each.overwritten:
            broken.append(f"{each.overwritten} of {each.yields} arrays were written over later")
    fail_if(broken, "; ".join(broken))
    return "numpy arrays, which keep their values"


def feeds_can_be_broken_off(tried: Trials) -> str:
    """An iterator that is closed before its end ends at once, and the next feed runs."""
    longest_s = max(each.examined.closing_ns for each in _sessions(tried).values()) / 1e9
    fail_if(longest_s > CLOSES_WITHIN_S, f"closing a feed behind its first yield took {longest_s:.0f} s")
    return f"closed within {longest_s * 1000:.0f} ms"


def a_killed_worker_leaves_nothing(tried: Trials) -> str:
    """A worker that is killed in the middle of a feed leaves no process behind, and the next one runs."""
    for device, seen in tried.killed.items():
        fail_if(
            seen.surviving_processes,
            f"{device}: {', '.join(seen.surviving_processes)} lived on when the worker was killed",
        )
        fail_if(seen.after, f"{device}: the next worker failed: {seen.after and seen.after.message}")
    alone = _told(tried.found([integrity.no_orphans], tried.claimed))
    fail_if(alone, "; ".join(alone))
    return "no process lived on, and the next worker ran"


def memory_returns(tried: Trials) -> str:
    """Each of several sessions in a row in one worker leaves less memory behind than a part of the weights."""
    told = []
    for device, seen in _sessions(tried).items():
        growth = min(after - before for before, after in pairwise(seen.memory_bytes))  # allocators keep some at times
        limit = max(GROWTH_BYTES, GROWTH * seen.weights_bytes)
        message = f"{device}: {growth / 2**20:+.1f} MiB a session, with weights of {seen.weights_bytes / 2**20:.1f} MiB"
        fail_if(growth > limit, f"{message}: leave what `open` made behind its yield")
        told.append(message)
    return "; ".join((*told, "host memory only: no watcher tells that of accelerators"))


def idle_burns_nothing(tried: Trials) -> str:
    """A worker with an open suite that runs no feed uses no CPU time."""
    cores = {device: seen.idle_cores for device, seen in _sessions(tried).items()}
    for device, each in cores.items():
        fail_if(each > IDLE_CORES, f"{device}: it used {each:.2f} CPUs while nobody called it")
    return f"{max(cores.values()):.3f} CPUs"


def concurrency_is_honoured(tried: Trials) -> str:
    """The runner takes as many feeds at once as it has slots, and outputs each of them rightly."""
    records = [record for record in tried.audited if record.key not in tried.claims]
    broken = [f"{each.route.label}: {each.error.kind}: {each.error.message}" for each in records if each.error]
    fail_if(broken, "; ".join(broken))
    _passed(records)
    most = max(most_in_flight(record.completions) for record in records if record.completions)
    return f"{max(record.concurrency for record in records)} slots, {most} feeds were in flight at once"


def server_keeps_its_latency(tried: Trials) -> str:
    """A server at half the rate of a closed loop keeps the suite's latency limits."""
    told = []
    for record in tried.served:
        fail_if(record.error, f"{record.route.label}: {record.error and record.error.message}")
        latency, done = record.latency_limits, record.completions
        assert latency is not None and done is not None  # it was chosen for its limits
        at = f"{record.route.label} at {record.rate_per_s:.3g} feeds a second, {LOAD:.0%} of a closed loop"
        kept = within_limits(done, latency)
        fail_if(kept is False, f"{at}: the limits at p{latency.percentile * 100:g} are not kept")
        told.append(at if kept else f"{at}: too few feeds to tell")
        if kept is None:
            raise NotChecked(told[-1])
    if not told:
        raise NotChecked("no suite with latency limits ran")
    return "; ".join(told)


def devices_work_at_once(tried: Trials) -> str:
    """Two devices run at the same time, each in a worker of its own."""
    records = tried.paired
    broken = [f"{each.route.label}: {each.error.kind}: {each.error.message}" for each in records if each.error]
    fail_if(broken, "; ".join(broken))
    return " and ".join(record.route.device for record in records)


def placement_is_truthful(tried: Trials) -> str:
    """The facts tell what ran where; all of it ran on the device, as far as its driver and the facts tell."""
    records = _claimed(tried)
    _ran(records)
    silent = [record.route.label for record in records if not record.facts]
    fail_if(silent, f"the facts of {silent[0] if silent else ''} are empty")
    strayed = _told(tried.found([integrity.on_device], records))
    for record in records:
        own = {part for device in tried.devices if device.id == record.route.device for part in device.silicon}
        seen = {each.id for block in record.conditions for each in block.accelerators if each.own_processes_listed}
        strayed += [f"{record.route.label}: it computed on {id}" for id in sorted(seen - own)]
    fail_if(strayed, "; ".join(strayed))
    shown = next(iter(records)).facts
    return ", ".join(f"{name}: {value}" for name, value in list(shown.items())[:3])


def noise_is_harmless(tried: Trials) -> str:
    """What is printed goes to a log, and is little for each feed: a long run must not fill a disk."""
    feeds = sum(len(record.completions) for record in tried.claimed if record.completions)
    printed = tried.log_bytes
    limit = LOG_BYTES_ONCE + LOG_BYTES * feeds
    fail_if(printed > limit, f"{printed / 1000:.0f} kB were printed in {feeds} feeds")
    return f"{printed / 1000:.1f} kB in {feeds} feeds"


CHECKS: tuple[Check[Trials], ...] = (
    discovery_is_quick,
    discovery_is_repeatable,
    discovery_leaves_nothing,
    devices_are_told_apart,
    options_are_refused,
    claims_run,
    yields_fit_the_table,
    outputs_pass_their_gates,
    placement_is_truthful,
    unclaimed_is_unsupported,
    sessions_follow_each_other,
    outputs_are_plain,
    feeds_can_be_broken_off,
    memory_returns,
    idle_burns_nothing,
    a_killed_worker_leaves_nothing,
    concurrency_is_honoured,
    server_keeps_its_latency,
    devices_work_at_once,
    noise_is_harmless,
)
"""Every check, in the order in which they are made."""


def _discoveries(tried: Trials) -> Sequence[Discovery]:
    """The discoveries. Raises NotChecked where they failed, of which the first check tells."""
    try:
        return tried.discoveries
    except WorkerFailed as failed:
        raise NotChecked(f"no device was discovered: {failed}") from failed


def _sessions(tried: Trials) -> Mapping[str, Sessions]:
    """The sessions in a row. Raises NotChecked where they failed, which is a check of its own."""
    try:
        return tried.sessions
    except WorkerFailed as failed:
        raise NotChecked(f"no sessions followed each other: {failed}") from failed


def _claimed(tried: Trials) -> list[Record]:
    """The claims that came to their end, with their audits."""
    return [record for record in tried.audited if record.key in tried.claims and record.completions is not None]


def _passed(records: Sequence[Record]) -> None:
    """Raises Failed where a record fails its audit, and NotChecked where one was not audited."""
    _ran(records)
    audits = [(record.route.label, record.audit) for record in records if record.audit]
    broken = [f"{label}: {audit.problem}" for label, audit in audits if audit.problem]
    broken += [
        f"{label}: {audit.gate.metric} {max(audit.values):.3g}, at most {audit.gate.at_most:.3g} is allowed"
        for label, audit in audits
        if audit.values and not audit.problem and not audit.passed
    ]
    fail_if(broken, "; ".join(broken))
    for record in records:
        if record.audit is None or not record.audit.values:
            raise NotChecked(f"{record.route.label} was not audited: {record.unaudited}")


def _ran(records: Iterable[Record]) -> None:
    """Raises NotChecked where none of the records came to its end."""
    if not any(record.completions is not None for record in records):
        raise NotChecked("nothing ran")


def _told(findings: Iterable[Finding]) -> list[str]:
    return [f"{each.about}: {each.message}" for each in findings]


def _counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
