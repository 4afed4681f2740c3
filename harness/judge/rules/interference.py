"""Rules about what disturbed a measurement: others on the machine, clocks, memory, heat.

Each rule is Evidence -> findings. Shares of CPU time are of the record's whole host over its window unless said
otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import PROTECTIVE, ClockReason, Finding
from mixmark.harness.judge.evidence import Evidence, Measurement
from mixmark.harness.judge.roofline import CeilingKey, ceilings, passes

DRIFT = 0.10  # a probe that moves further than this between its records: the machine changed speed

STOLEN = 0.005  # a quarter of the 2 % that a comparison has to resolve
STOLEN_IN_BLOCK = 0.02
FOREIGN = 0.01
FOREIGN_CORES = 0.25  # on many cores 1 % is several: a parallel loop waits for its slowest thread
MEMORY_STALL = 0.001  # of the window: a stop this long is below what any interval here resolves
FAULTS_PER_S = 1.0  # a disk takes some 10 ms for a page, so one a second is 1 % of the time
CLOCK_DROP = 0.03
CANARY_DRIFT = 0.02
CLOCK_STEP_NS = 100_000_000  # NTP slews by 0.5 ms a second at most; the rest is room for a late thread


def speed_stable(evidence: Evidence) -> Iterator[Finding]:
    """The figures of the same probe, before and after the suites, lie within 10 % of each other or the scatter of its
    passes."""
    for (device, adapter, precision), what, drift, scatter in speed_drifts(evidence):
        if drift > max(DRIFT, scatter):
            yield Finding(
                rule="speed_stable",
                severity="warning",
                about=device,
                message=f"the machine's speed drifted during the run: the probe by {adapter} in {precision} "
                f"moved by {drift * 100:.0f} % in {what}",
            )


def speed_drifts(evidence: Evidence) -> Iterator[tuple[CeilingKey, str, float, float]]:
    """(probe, unit of its figure, drift, scatter) of the kernels that set the ceilings.

    The drift is how far the highest median of a probe's passes lies above the lowest one, as a share. The fastest pass,
    which is the ceiling, is a matter of luck on a shared machine: on one it moved by 35 % between two probes whose
    medians differ by 11 %. The scatter is that of the passes of one probe, at most: a drift within it says nothing.
    """
    seen: dict[tuple[CeilingKey, str], list[tuple[float, ...]]] = defaultdict(list)
    for record in evidence.result.records:
        of_kernel = {kernel: (flops, moved) for kernel, flops, moved, _ in passes(record)}
        for key, ceiling in ceilings([record]).items():
            if ceiling.flops_kernel in of_kernel:
                seen[key, "flop/s"].append(tuple(of_kernel[ceiling.flops_kernel][0].tolist()))
            if ceiling.bytes_kernel in of_kernel:  # a probe of few bits has the bytes of another one
                seen[key, "byte/s"].append(tuple(of_kernel[ceiling.bytes_kernel][1].tolist()))
    for (key, what), probes in seen.items():
        medians = [median(rates) for rates in probes]
        yield key, what, max(medians) / min(medians) - 1, max(_scatter(rates) for rates in probes)


def no_steal_time(evidence: Evidence) -> Iterator[Finding]:
    """The hypervisor gave at most 0.5 % of the CPUs' time to others, and at most 2 % in any block."""
    for each in evidence.measured:
        if each.stolen is None:
            continue
        mean, worst = each.stolen
        if mean > STOLEN or worst > STOLEN_IN_BLOCK:
            yield _disturbed(
                no_steal_time,
                each,
                f"the hypervisor took {_percent(mean)} of the CPUs' time (limit {_percent(STOLEN)}), "
                f"{_percent(worst)} in the worst block (limit {_percent(STOLEN_IN_BLOCK)})",
            )


def no_quota_throttling(evidence: Evidence) -> Iterator[Finding]:
    """No CPU quota ran out."""
    for each in evidence.measured:
        if periods := _sum(each, "throttled_periods"):
            time_ns = _sum(each, "throttled_ns")
            lost = "" if time_ns is None else f", for {time_ns / 1e9:.2f} s in all"
            yield _disturbed(
                no_quota_throttling, each, f"the cgroup's CPU quota ran out in {periods} periods{lost} (limit 0)"
            )


def no_foreign_load(evidence: Evidence) -> Iterator[Finding]:
    """Others used at most 1 % of the machine's CPU time, and a quarter of a core."""
    for each in evidence.measured:
        if each.foreign_cores is None:
            continue
        cores, cpus = each.foreign_cores
        limit = min(FOREIGN * cpus, FOREIGN_CORES)
        if cores > limit:
            yield _disturbed(
                no_foreign_load,
                each,
                f"other processes kept {cores:.2f} of {cpus} CPUs busy, {_percent(cores / cpus)} of the machine "
                f"(limit {_percent(limit / cpus)})",
            )


def no_memory_pressure(evidence: Evidence) -> Iterator[Finding]:
    """No task waited for memory for more than 0.1 % of the time."""
    for each in evidence.measured:
        stalled_ns, whole_ns = _sum(each, "memory_stall_ns"), _elapsed_ns(each, "memory_stall_ns")
        if stalled_ns is not None and stalled_ns > MEMORY_STALL * whole_ns:
            yield _disturbed(
                no_memory_pressure,
                each,
                f"tasks waited for memory during {_percent(stalled_ns / whole_ns)} of the time "
                f"(limit {_percent(MEMORY_STALL)})",
            )


def no_paging(evidence: Evidence) -> Iterator[Finding]:
    """At most one page a second came from, or went to, a disk."""
    kinds = {
        "major_faults": "the workers waited for {:.1f} pages a second from disk",
        "swapped_in_pages": "{:.1f} pages a second were swapped in",
        "swapped_out_pages": "{:.1f} pages a second were swapped out",
    }
    for each in evidence.measured:
        for field, said in kinds.items():
            pages = _sum(each, field)
            if pages is not None and (rate := pages / (_elapsed_ns(each, field) / 1e9)) > FAULTS_PER_S:
                yield _disturbed(no_paging, each, f"{said.format(rate)} (limit {FAULTS_PER_S:g})")


def frequency_stable(evidence: Evidence) -> Iterator[Finding]:
    """The busy CPUs' clock and the accelerators' fell by at most 3 % from the first third of the window to the last."""
    for each in evidence.measured:
        series = {
            f"the CPUs{f' of {each.host}' if each.host else ''}": [
                block.clock_mean_mhz for block in each.watched if block.clock_mean_mhz
            ]
        }
        for id, states in each.accelerators.items():
            series[id] = [float(state.clock_mhz) for state in states if state.clock_mhz]
        for name, clocks in series.items():
            if not (third := len(clocks) // 3):
                continue
            first, last = median(clocks[:third]), median(clocks[-third:])
            if last < first * (1 - CLOCK_DROP):
                yield _disturbed(
                    frequency_stable,
                    each.key,
                    f"the clock of {name} fell by {_percent(1 - last / first)}, from {first:.0f} to {last:.0f} MHz "
                    f"(limit {_percent(CLOCK_DROP)})",
                )


def no_thermal_throttling(evidence: Evidence) -> Iterator[Finding]:
    """No CPU lowered its clock for heat."""
    for each in evidence.measured:
        if events := _sum(each, "thermal_throttles"):
            temperatures = [block.temperature_c for block in each.watched if block.temperature_c is not None]
            hottest = f" at up to {max(temperatures):.0f} °C" if temperatures else ""
            yield _disturbed(
                no_thermal_throttling, each, f"the CPUs' thermal throttle counters rose by {events}{hottest} (limit 0)"
            )


def no_accelerator_throttling(evidence: Evidence) -> Iterator[Finding]:
    """No accelerator slowed down to protect itself from heat or a failing supply. A power cap is a note: it is a
    setting, and the same on every run."""
    for each in evidence.measured:
        for id, states in each.accelerators.items():
            told = [state for state in states if state.reasons is not None]
            reasons: tuple[ClockReason, ...] = (*PROTECTIVE, "power cap")
            for reason in reasons:
                if hit := [state for state in told if reason in (state.reasons or ())]:
                    caps = [state.power_cap_mw for state in hit if state.power_cap_mw]
                    capped = f" of {max(caps) / 1000:.0f} W" if reason == "power cap" and caps else ""
                    limit = " (limit 0)" if reason in PROTECTIVE else ""
                    yield Finding(
                        rule=no_accelerator_throttling.__name__,
                        severity="warning" if reason in PROTECTIVE else "note",
                        about=each.key,
                        message=f"{id} was held back by {reason}{capped} in {len(hit)} of {len(told)} blocks{limit}",
                    )


def accelerators_exclusive(evidence: Evidence) -> Iterator[Finding]:
    """No other process computed on the accelerators of the record."""
    for each in evidence.measured:
        for id, states in each.accelerators.items():
            if pids := sorted({pid for state in states for pid in state.foreign_pids or ()}):
                listed = ", ".join(map(str, pids))
                message = f"foreign processes on {id}: {len(pids)} ({listed}; limit 0)"
                yield _disturbed(accelerators_exclusive, each.key, message)


def accelerators_watched(evidence: Evidence) -> Iterator[Finding]:
    """No vendor's watcher failed during the run; one that failed before it is told by the run's absences."""
    absent = {each.label for each in evidence.result.absent}
    records = reversed(evidence.result.records)
    failed = {each.label: (record.key, each.reason) for record in records for each in record.unwatched}
    for label, (key, reason) in failed.items():
        if label not in absent:
            message = f"{label} failed, so whether its accelerators were disturbed is not known from here on: {reason}"
            yield _disturbed(accelerators_watched, key, message)


def canary_stable(evidence: Evidence) -> Iterator[Finding]:
    """The fixed loop took as long at its slowest as at its fastest, within 2 % or the scatter of its repetitions, on
    each host by itself.

    The median of each time it ran; the scatter is the largest distance between the quartiles of one run.
    """
    ran_on: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for record in evidence.result.records:
        ran_on[host_of(record.route.device)] += [block.canary_ns for block in record.conditions if block.canary_ns]
    for host, ran in ran_on.items():
        if len(ran) < 2:
            continue
        medians = [median(times) for times in ran]
        drift = max(medians) / min(medians) - 1
        limit = max(CANARY_DRIFT, *(_scatter(times) for times in ran))
        if drift > limit:
            yield _disturbed(
                canary_stable,
                "run",
                f"a fixed loop{f' on {host}' if host else ''} took {min(medians) / 1e6:.2f} ms at its fastest and "
                f"{max(medians) / 1e6:.2f} ms at its slowest, {_percent(drift)} apart (limit {_percent(limit)})",
            )


def wall_clock_steady(evidence: Evidence) -> Iterator[Finding]:
    """The wall clock ran with the one that stamps: it was not set, and the machine did not sleep."""
    for each in evidence.measured:
        steps = [block.clock_step_ns for block in each.watched if block.clock_step_ns is not None]
        worst = max(steps, key=abs, default=0)
        if abs(worst) > CLOCK_STEP_NS:
            yield _disturbed(
                wall_clock_steady,
                each,
                f"the wall clock stepped by {worst / 1e9:+.2f} s (limit {CLOCK_STEP_NS / 1e9:g} s): "
                "it was set, or the machine slept",
            )


def _disturbed(rule: Callable[[Evidence], Iterator[Finding]], about: Measurement | str, message: str) -> Finding:
    """A warning; about what a record's host went through, with the name of the host where the run has several."""
    if isinstance(about, Measurement):
        message = f"{about.host}: {message}" if about.host else message
        about = about.key
    return Finding(rule=rule.__name__, severity="warning", about=about, message=message)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _sum(each: Measurement, field: str) -> int | None:
    """The sum of a field over the watched blocks that know it; None where none does."""
    known: list[int] = [value for block in each.watched if (value := getattr(block, field)) is not None]
    return sum(known) if known else None


def _elapsed_ns(each: Measurement, field: str) -> int:
    """How long the watched blocks that know the field lasted together."""
    return sum(block.end_ns - block.begin_ns for block in each.watched if getattr(block, field) is not None)


def _scatter(times: Sequence[float]) -> float:
    """The distance between the quartiles, as a share of the median."""
    ordered, quarter = sorted(times), len(times) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(times)
