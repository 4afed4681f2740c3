"""Rules about interference: other load on the machine, clock frequencies, memory pressure, heat.

Fractions of CPU time are of the record's whole host over its window unless a rule says otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.numbers import change, counted, percent
from mixmark.harness.contracts.schema import PROTECTIVE, ClockReason
from mixmark.harness.judge.evidence import Evidence, Measurement
from mixmark.harness.judge.roofline import CeilingKey, ceilings, passes
from mixmark.harness.judge.rules.rule import Rule, Severity, record_rule, rule

DRIFT = 0.10  # a probe that moves further than this between its records: the machine changed speed

STOLEN = 0.005  # a quarter of the 2 % that a comparison has to resolve; 1 to 3 % is usual in a VM, and only warned of
STOLEN_IN_BLOCK = 0.02
FOREIGN = 0.01
FOREIGN_CORES = 0.25  # on many cores 1 % is several: a parallel loop waits for its slowest thread
MEMORY_STALL = 0.001  # of the window: a stop this long is below what any interval here resolves
FAULTS_PER_S = 1.0  # a disk takes some 10 ms for a page, so one a second is 1 % of the time
CLOCK_DROP = 0.03
CANARY_DRIFT = 0.02
CLOCK_STEP_NS = 100_000_000  # NTP slews by 0.5 ms a second at most; the rest is room for a late thread


@rule
def speed_stable(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The figures of a probe before and after the suites lie within 10 % of each other, or within the scatter of its
    passes."""
    for (device, adapter, precision), unit, drift, scatter in speed_drifts(evidence):
        if drift > max(DRIFT, scatter):
            message = (
                f"the machine's speed drifted during the run: the probe by {adapter} in {precision} "
                f"moved by {change(drift)} in {unit}"
            )
            yield "warning", device, message


def speed_drifts(evidence: Evidence) -> Iterator[tuple[CeilingKey, str, float, float]]:
    """(probe, unit of its figure, drift, scatter) of the kernels that set the ceilings.

    The drift is how far the highest median of a probe's passes lies above the lowest one, as a fraction. The fastest
    pass, which is the ceiling, is a matter of luck on a shared machine: once it moved by 35 % between two probes whose
    medians differ by 11 %. The scatter is the largest one of a single probe's passes: a smaller drift means nothing.
    """
    probed: dict[tuple[CeilingKey, str], list[tuple[float, ...]]] = defaultdict(list)
    for record in evidence.result.records:
        of_kernel = {kernel: (flops, moved) for kernel, flops, moved, _ in passes(record)}
        for key, ceiling in ceilings([record]).items():
            if ceiling.flops_kernel in of_kernel:
                probed[key, "flop/s"].append(tuple(of_kernel[ceiling.flops_kernel][0].tolist()))
            if ceiling.bytes_kernel in of_kernel:  # a probe of few bits has the bytes of another one
                probed[key, "byte/s"].append(tuple(of_kernel[ceiling.bytes_kernel][1].tolist()))
    for (key, unit), probes in probed.items():
        medians = [median(rates) for rates in probes]
        yield key, unit, max(medians) / min(medians) - 1, max(_scatter(rates) for rates in probes)


def _host_rule(check: Callable[[Measurement], Iterator[str]]) -> Rule:
    """A warning about the record's host, with the name of the host where the run has several."""

    def named(measured: Measurement) -> Iterator[str]:
        prefix = f"{measured.host}: " if measured.host else ""
        return (prefix + message for message in check(measured))

    named.__name__, named.__doc__ = check.__name__, check.__doc__
    return record_rule("warning")(named)


@_host_rule
def no_steal_time(measured: Measurement) -> Iterator[str]:
    """The hypervisor gave at most 0.5 % of the CPUs' time to others, and at most 2 % in any block."""
    mean, worst = measured.stolen or (0.0, 0.0)
    if mean > STOLEN or worst > STOLEN_IN_BLOCK:
        yield (
            f"the hypervisor took {percent(mean)} of the CPUs' time (limit {percent(STOLEN)}), "
            f"{percent(worst)} in the worst block (limit {percent(STOLEN_IN_BLOCK)})"
        )


@_host_rule
def no_quota_throttling(measured: Measurement) -> Iterator[str]:
    """No CPU quota ran out."""
    if periods := measured.total("throttled_periods"):
        time_ns = measured.total("throttled_ns")
        lost = "" if time_ns is None else f", for {time_ns / 1e9:.2f} s in all"
        yield f"the cgroup's CPU quota ran out in {periods} periods{lost} (limit 0)"


@_host_rule
def no_foreign_load(measured: Measurement) -> Iterator[str]:
    """Other programs used at most 1 % of the machine's CPU time, and at most a quarter of a core."""
    cores, cpus = measured.foreign_cores or (0.0, 1)
    limit = min(FOREIGN * cpus, FOREIGN_CORES)
    if cores > limit:
        yield (
            f"other programs kept {cores:.2f} of {counted(cpus, 'CPU')} busy, {percent(cores / cpus)} of the machine "
            f"(limit {percent(limit / cpus)})"
        )


@_host_rule
def no_memory_pressure(measured: Measurement) -> Iterator[str]:
    """Tasks waited for memory for at most 0.1 % of the time."""
    stalled = measured.per_s("memory_stall_ns") / 1e9
    if stalled > MEMORY_STALL:
        yield f"tasks waited for memory during {percent(stalled)} of the time (limit {percent(MEMORY_STALL)})"


PAGING = (
    ("major_faults", "the workers waited for {:.1f} pages a second from disk"),
    ("swapped_in_pages", "{:.1f} pages a second were swapped in"),
    ("swapped_out_pages", "{:.1f} pages a second were swapped out"),
)


@_host_rule
def no_paging(measured: Measurement) -> Iterator[str]:
    """At most one page a second came from, or went to, a disk."""
    for counter, words in PAGING:
        rate_per_s = measured.per_s(counter)
        if rate_per_s > FAULTS_PER_S:
            yield f"{words.format(rate_per_s)} (limit {FAULTS_PER_S:g})"


@record_rule("warning")
def frequency_stable(measured: Measurement) -> Iterator[str]:
    """The clock of the busy CPUs and of the accelerators fell by at most 3 % from the first third of the window to the
    last."""
    cpus = f"the CPUs of {measured.host}" if measured.host else "the CPUs"
    series = {cpus: [block.clock_mean_mhz for block in measured.watched if block.clock_mean_mhz]}
    for id, states in measured.accelerators.items():
        series[id] = [float(state.clock_mhz) for state in states if state.clock_mhz]
    for name, clocks_mhz in series.items():
        if not (third := len(clocks_mhz) // 3):
            continue
        first, last = median(clocks_mhz[:third]), median(clocks_mhz[-third:])
        if last < first * (1 - CLOCK_DROP):
            yield (
                f"the clock of {name} fell by {percent(1 - last / first)}, from {first:.0f} to {last:.0f} MHz "
                f"(limit {percent(CLOCK_DROP)})"
            )


@_host_rule
def no_thermal_throttling(measured: Measurement) -> Iterator[str]:
    """No CPU lowered its clock for heat."""
    if events := measured.total("thermal_throttles"):
        temperatures = [block.temperature_c for block in measured.watched if block.temperature_c is not None]
        hottest = f" at up to {max(temperatures):.0f} °C" if temperatures else ""
        yield f"the CPUs' thermal throttle counters rose by {events}{hottest} (limit 0)"


@rule
def no_accelerator_throttling(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """No accelerator slowed down to protect itself from heat or a failing supply. A power cap is a note: it is a
    setting, and the same on every run."""
    reasons: tuple[ClockReason, ...] = (*PROTECTIVE, "power cap")
    for measured in evidence.measured:
        for id, states in measured.accelerators.items():
            known = [state for state in states if state.reasons is not None]
            for reason in reasons:
                if not (hit := [state for state in known if reason in (state.reasons or ())]):
                    continue
                in_blocks = f"in {len(hit)} of {len(known)} blocks"
                if reason in PROTECTIVE:
                    yield "warning", measured.key, f"{id} was held back by {reason} {in_blocks} (limit 0)"
                else:
                    caps_mw = [state.power_cap_mw for state in hit if state.power_cap_mw]
                    cap = f" of {max(caps_mw) / 1000:.0f} W" if caps_mw else ""
                    yield "note", measured.key, f"{id} was held back by {reason}{cap} {in_blocks}"


@record_rule("warning")
def accelerators_exclusive(measured: Measurement) -> Iterator[str]:
    """No other process computed on the accelerators of the record."""
    for id, states in measured.accelerators.items():
        if pids := sorted({pid for state in states for pid in state.foreign_pids or ()}):
            yield f"foreign processes on {id}: {len(pids)} ({', '.join(map(str, pids))}; limit 0)"


@rule
def accelerators_watched(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """No vendor's watcher failed during the run. One that failed before is among the absences of the run."""
    absent = {absence.label for absence in evidence.result.absent}
    records = reversed(evidence.result.records)
    first = {absence.label: (record.key, absence.reason) for record in records for absence in record.failed_watchers}
    for label, (key, reason) in first.items():
        if label not in absent:
            message = f"{label} failed, so whether its accelerators were disturbed is not known from here on: {reason}"
            yield "warning", key, message


@rule
def canary_stable(evidence: Evidence) -> Iterator[tuple[Severity, str, str]]:
    """The fixed loop took as long at its slowest as at its fastest, within 2 % or the scatter of its repetitions, on
    each host by itself.

    A time is the median of one run of the loop; the scatter is the largest distance between the quartiles of one run.
    """
    by_host: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for record in evidence.result.records:
        by_host[host_of(record.route.device)] += [block.canary_ns for block in record.conditions if block.canary_ns]
    for host, runs in by_host.items():
        if len(runs) < 2:
            continue
        medians = [median(times) for times in runs]
        drift = max(medians) / min(medians) - 1
        limit = max(CANARY_DRIFT, *(_scatter(times) for times in runs))
        if drift > limit:
            message = (
                f"a fixed loop{f' on {host}' if host else ''} took {min(medians) / 1e6:.2f} ms at its fastest and "
                f"{max(medians) / 1e6:.2f} ms at its slowest, {change(drift)} apart (limit {percent(limit)})"
            )
            yield "warning", "run", message


@_host_rule
def wall_clock_steady(measured: Measurement) -> Iterator[str]:
    """The wall clock ran with the monotonic clock: it was not set, and the machine did not sleep."""
    steps_ns = [block.clock_step_ns for block in measured.watched if block.clock_step_ns is not None]
    worst_ns = max(steps_ns, key=abs, default=0)
    if abs(worst_ns) > CLOCK_STEP_NS:
        yield (
            f"the wall clock stepped by {worst_ns / 1e9:+.2f} s (limit {CLOCK_STEP_NS / 1e9:g} s): "
            "it was set, or the machine slept"
        )


def _scatter(times: Sequence[float]) -> float:
    """The distance between the quartiles, as a fraction of the median."""
    ordered, quarter = sorted(times), len(times) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(times)
