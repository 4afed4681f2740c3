"""The checks of an adapter, in the order of docs/capabilities/kit/conformance.md: trials -> evidence.

A check returns its evidence in a few words. It raises CheckFailed if the adapter breaks the contract, and NotChecked if
the trials do not show it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from mixmark.harness.capabilities.kit.adapter_trials import AdapterTrials
from mixmark.harness.capabilities.kit.report import Check, NotChecked, Report, checked, fail_for, fail_if
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Device, Record, Result
from mixmark.harness.judge.rules import integrity, quality
from mixmark.harness.judge.statistics.timestamps import most_in_flight
from mixmark.harness.machine import config as configuration
from mixmark.harness.machine import setup
from mixmark.harness.machine.devices import unusable
from mixmark.harness.plan.phases import Target
from mixmark.harness.worker.failures import Misused, NotStarted, WorkerFailed

DISCOVERS_WITHIN_S = 20.0  # the import of a vendor's framework included
CLOSES_WITHIN_S = 5.0  # a feed that was broken off
GROWTH = 0.5  # of the weights' size may a session leave behind
GROWTH_BYTES = 8 << 20  # of any suite, for allocators that keep freed memory
IDLE_CORES = 0.05  # of a CPU may a worker use that runs no feed


def discovery_is_quick(trials: AdapterTrials) -> str:
    """`discover` returns within 20 s in a fresh process, the import of the vendor's libraries included."""
    took_s = min(discovery.took_s for discovery in trials.discoveries)  # the first one may read from a cold disk
    fail_if(took_s > DISCOVERS_WITHIN_S, f"it took {took_s:.0f} s, and may take {DISCOVERS_WITHIN_S:g} s")
    return f"{took_s:.1f} s from the start of a process"


def discovery_is_repeatable(trials: AdapterTrials) -> str:
    """Two fresh processes discover the same devices, in every field, and disclose the same versions."""
    first, second = trials.discoveries
    for before, after in zip(first.devices, second.devices, strict=False):
        names = [name for name in Device.model_fields if getattr(before, name) != getattr(after, name)]
        fail_if(names, f"{before.id}: another {' and another '.join(names)} the second time")
    fail_if(len(first.devices) != len(second.devices), "the second time it found another number of devices")
    fail_if(first.environment != second.environment, "the second time it disclosed other versions")
    return f"twice the same: {', '.join(device.id for device in first.devices) or 'no device'}"


def devices_are_told_apart(trials: AdapterTrials) -> str:
    """Every device has an id of its own, offers a precision, and is no other kind of silicon than its id says."""
    targets = [Target(device, trials.adapter.name, {}) for device in trials.devices]
    for number, target in enumerate(targets):
        problem = unusable(target, [other for other in targets[:number] if other.device.id == target.device.id])
        fail_if(problem, f"{target.device.id}: {problem}")
    return ", ".join(f"{target.device.id} ({', '.join(target.device.precisions)})" for target in targets)


def options_are_refused(trials: AdapterTrials) -> str:
    """An option that the adapter does not know is refused with UsageError, before anything else is done."""
    refused = trials.unknown_option
    fail_if(refused is None, "it took an unknown option: begin the constructor with refuse_options")
    fail_if(not isinstance(refused, Misused), f"it raised something else than UsageError: {refused}")
    return f"{refused}"


def claims_run(trials: AdapterTrials) -> str:
    """Every suite runs in every precision that the device offers to it, or raises Unsupported."""
    failed = [record for record in trials.claimed if record.error and record.error.kind != "wrong output"]
    fail_for(trials.findings([quality.finished], failed))
    ran = sum(record.completions is not None for record in trials.claimed)
    fail_if(not ran, "it runs no suite in any precision that it offers")
    unsupported = ", ".join(f"{record.route.suite} in {record.route.precision}" for record in failed)
    return f"{counted(ran, 'route')} ran" + (f"; unsupported: {unsupported}" if unsupported else "")


def yields_fit_the_table(trials: AdapterTrials) -> str:
    """A feed's yields have the units, shapes and dtypes of the table in the docs."""
    claimed = _claimed(trials)
    wrong = [record for record in trials.claimed if record.error and record.error.kind == "wrong output"]
    broken = trials.findings([quality.finished], wrong)
    broken += trials.findings([integrity.audited], [record for record in claimed if _problem(record)])
    fail_for([*broken, *trials.findings([integrity.units_counted], claimed)])
    _ran(claimed)
    return "units, shapes and dtypes fit the table"


def outputs_pass_their_gates(trials: AdapterTrials) -> str:
    """Every route passes the audit of its suite at the precision that it was opened in."""
    claimed = [record for record in _claimed(trials) if not _problem(record)]
    _passed(trials, claimed)
    return f"{counted(len(claimed), 'route')} passed"


def placement_is_truthful(trials: AdapterTrials) -> str:
    """The facts name the place of all work; all of it ran on the device, as far as its driver and the facts tell."""
    claimed = _claimed(trials)
    _ran(claimed)
    for record in claimed:
        fail_if(not record.facts, f"the facts of {record.route.label} are empty")
    strayed = trials.findings([integrity.on_device], claimed)
    for record in claimed:
        own = {part for device in trials.devices if device.id == record.route.device for part in device.silicon}
        used = {state.id for block in record.conditions for state in block.accelerators if state.own_processes_listed}
        strayed += [f"{record.route.label}: it computed on {id}" for id in sorted(used - own)]
    fail_for(strayed)
    return ", ".join(f"{name}: {value}" for name, value in list(claimed[0].facts.items())[:3])


def sessions_follow_each_other(trials: AdapterTrials) -> str:
    """A suite that was closed opens again in the same worker, and runs."""
    rows = [f"{len(sessions.memory_bytes)} of {sessions.share.route.label}" for sessions in trials.sessions.values()]
    return f"in a row: {'; '.join(rows)}"


def feeds_can_be_broken_off(trials: AdapterTrials) -> str:
    """An iterator that is closed before its end ends at once, and the next feed runs."""
    longest_s = max(sessions.closing_ns for sessions in trials.sessions.values()) / 1e9
    fail_if(longest_s > CLOSES_WITHIN_S, f"closing a feed after its first yield took {longest_s:.0f} s")
    return f"closed within {longest_s * 1000:.0f} ms"


def memory_returns(trials: AdapterTrials) -> str:
    """Each of several sessions in a row in one worker leaves less memory behind than a part of the weights."""
    messages = []
    for device, sessions in trials.sessions.items():
        growth = min(after - before for before, after in pairwise(sessions.memory_bytes))  # allocators keep some
        weights = f"with weights of {sessions.weights_bytes / 2**20:.1f} MiB"
        messages.append(f"{device}: {growth / 2**20:+.1f} MiB a session, {weights}")
        limit = max(GROWTH_BYTES, GROWTH * sessions.weights_bytes)
        fail_if(growth > limit, f"{messages[-1]}: free what `open` made after its yield")
    return "; ".join((*messages, "host memory only: no watcher reports the memory of accelerators"))


def idle_burns_nothing(trials: AdapterTrials) -> str:
    """A worker with an open suite that runs no feed uses no CPU time."""
    cores = {device: sessions.idle_cores for device, sessions in trials.sessions.items()}
    for device, used in cores.items():
        fail_if(used > IDLE_CORES, f"{device}: it used {used:.2f} CPUs while it ran no feed")
    return f"{max(cores.values()):.3f} CPUs"


def a_killed_worker_leaves_nothing(trials: AdapterTrials) -> str:
    """A worker that is killed in the middle of a feed leaves no process behind, and the next one runs."""
    for device, (killed, after) in trials.killed.items():
        names = ", ".join(killed.surviving_processes)
        fail_if(names, f"{device}: {names} lived on when the worker was killed")
        fail_for(trials.findings([quality.finished], [after]))
    fail_for(trials.findings([integrity.no_orphans], trials.claimed))
    return "no process lived on, and the next worker ran"


def concurrency_is_honoured(trials: AdapterTrials) -> str:
    """The runner takes as many feeds at once as its concurrency says, and the output of each is right."""
    concurrent = [record for record in trials.audited if record.key not in trials.claims]
    fail_for(trials.findings([quality.finished], concurrent))
    _passed(trials, concurrent)
    most = max(most_in_flight(record.completions) for record in concurrent if record.completions)
    concurrency = max(record.concurrency for record in concurrent)
    return f"concurrency {concurrency}, at most {counted(most, 'feed')} in flight at once"


def devices_work_at_once(trials: AdapterTrials) -> str:
    """Two devices run at the same time, each in a worker of its own."""
    fail_for(trials.findings([quality.finished], trials.paired))
    return " and ".join(record.route.device for record in trials.paired)


CHECKS: tuple[Check[AdapterTrials], ...] = (
    discovery_is_quick,
    discovery_is_repeatable,
    devices_are_told_apart,
    options_are_refused,
    claims_run,
    yields_fit_the_table,
    outputs_pass_their_gates,
    placement_is_truthful,
    sessions_follow_each_other,
    feeds_can_be_broken_off,
    memory_returns,
    idle_burns_nothing,
    a_killed_worker_leaves_nothing,
    concurrency_is_honoured,
    devices_work_at_once,
)
"""Every check, in the order of the report."""


def report(
    adapter: str,
    config: Path | None,
    timeout_s: float,
    on_check: Callable[[str], None],
    device: str = "",
    keep: Callable[[Report, Result | None], None] = lambda report, result: None,
) -> Report:
    """See `kit.check_adapter`. device: the id of the only one to check; empty: one of each kind. keep: gets the
    report, and the result of the claimed routes; None if no device was discovered."""
    configured = configuration.load(config)
    (plugin,) = setup.choose_adapters([adapter], configured).values()
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        suites = setup.load_suites(configured, "smoke")
        trials = AdapterTrials(plugin, configured, suites, Path(folder) / "kit", timeout_s, device)
        devices: Sequence[Device] = ()
        try:
            devices = trials.discoveries[0].devices
        except NotStarted as failed:
            raise UsageError(failed.failure.message, failed.failure.hint) from failed
        except WorkerFailed:
            pass  # the first check reports it
        choose_by_name("device", [device] if device else [], [each.id for each in devices])
        made = checked(plugin, configured.adapter(plugin.name).python, devices, CHECKS, trials, on_check)
        keep(made, trials.result(_kept(trials)) if devices else None)
        return made


def _kept(trials: AdapterTrials) -> Sequence[Record]:
    """The records of all claims, with their audits if the reference could be computed."""
    try:
        return trials.audited
    except Exception:  # no torch, or no worker for it: a check has reported it
        return trials.claimed


def _claimed(trials: AdapterTrials) -> list[Record]:
    """The claims that came to their end, with their audits."""
    return [record for record in trials.audited if record.key in trials.claims and record.completions is not None]


def _problem(record: Record) -> str:
    """Why an output could not be compared with the reference; empty: all were, or none was audited."""
    return record.audit.problem if record.audit else ""


def _passed(trials: AdapterTrials, audited: Sequence[Record]) -> None:
    """Raises CheckFailed if a record fails its audit, and NotChecked if one was not audited."""
    _ran(audited)
    fail_for(
        trials.findings([integrity.audited], [record for record in audited if record.audit and record.audit.values])
    )
    for record in audited:
        if record.audit is None or not record.audit.values:
            raise NotChecked(f"{record.route.label} was not audited: {record.exempt or record.unaudited}")


def _ran(measured: Iterable[Record]) -> None:
    """Raises NotChecked if none of the records came to its end."""
    if not any(record.completions is not None for record in measured):
        raise NotChecked("nothing ran")
