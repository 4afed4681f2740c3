"""Rules about interference: other load on the machine, clock frequencies, memory pressure, heat.

Fractions of CPU time are of the record's whole host over its window unless a rule says otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from mixmark.harness.contracts.schema import PROTECTIVE, ClockReason, Finding, FindingValue
from mixmark.harness.judge.evidence import MUCH_FOREIGN, MUCH_STOLEN, Evidence, Measurement
from mixmark.harness.judge.findings import AGAIN, DOCTOR, cause, explains, found, is_much, note, slows, warning, widens
from mixmark.harness.judge.roofline import speed_drifts, spread
from mixmark.harness.judge.rules.registered import Room
from mixmark.harness.judge.score import RANKED_HALF_WIDTH, figures, widest

room = Room(700)
POWER_SAVING = ("low-power", "quiet", "cool", "power", "balance_power")
"""Values of `System.power_profile`, of platforms and of processors."""

MUCH_DRIFT = 0.25  # of a probe's figure: the machine at the end is not the machine at the start
MUCH_THROTTLED = 0.05  # of the CPUs' time, and of the blocks of a window
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


def disturbed_runs(evidence: Evidence) -> dict[str, Finding]:
    """Why each disturbed mixed run is, by the name of its phase, in the order of the runs.

    Whether a mixed run counts and whether it is repeated depends on the counters of the machine alone and never on its
    figure, so no run is chosen by its score.
    """
    much: dict[str, Finding] = {}
    for rule in (no_steal_time, no_foreign_load, no_quota_throttling):  # the last one is named first
        much |= {finding.about: finding for finding in rule(evidence) if is_much(finding)}
    whys: dict[str, Finding] = {}
    for phase in (phase.name for phase in evidence.result.phases if phase.purpose == "mixed"):
        for measured in (each for each in evidence.measured if each.record.phase == phase and each.disturbed):
            whys.setdefault(phase, much[measured.key].model_copy(update={"about": phase}))
    return whys


@room.record_rule(
    warning("foreign processes on {device}: {processes} ({pids}; limit 0)"),
    noticed=warning("other programs computed on an accelerator{share:share}", "stop them"),
)
def accelerators_exclusive(measured: Measurement) -> Iterator[Finding]:
    """No other process computed on the accelerators of the record."""
    for id, states in measured.accelerators.items():
        if pids := sorted({pid for state in states for pid in state.foreign_pids or ()}):
            names = tuple(map(str, pids))
            yield found("accelerators_exclusive", measured.key, device=id, processes=len(pids), pids=names)


@room.rule(
    warning("{device} was held back by {reason} in {hit} of {blocks} blocks (limit 0)"),
    capped=note("{device} was held back by its power cap in {hit} of {blocks} blocks"),
    much=cause(
        "{device} slowed down to protect itself in {hot_pct:.0f} % of a window{share:share}", "improve its cooling"
    ),
    noticed=slows("an accelerator slowed down to protect itself{share:share}", "improve its cooling or its supply"),
)
def no_accelerator_throttling(evidence: Evidence) -> Iterator[Finding]:
    """No accelerator slowed down to protect itself from heat or a failing supply. A power cap is a note: it is a
    setting, and the same on every run."""
    for measured in evidence.measured:
        for id, states in measured.accelerators.items():
            known = [state.reasons for state in states if state.reasons is not None]
            hits: dict[ClockReason, int] = {
                reason: sum(reason in each for each in known) for reason in (*PROTECTIVE, "power cap")
            }
            for reason in (reason for reason, hit in hits.items() if hit):
                values: dict[str, FindingValue] = {"device": id, "hit": hits[reason], "blocks": len(known)}
                if reason == "power cap":
                    yield found("no_accelerator_throttling.capped", measured.key, **values)
                else:
                    yield found("no_accelerator_throttling", measured.key, **values, reason=reason)
            hot = max(hits[reason] for reason in PROTECTIVE)
            if hot > MUCH_THROTTLED * len(known):
                hot_pct = hot * 100 / len(known)
                yield found("no_accelerator_throttling.much", measured.key, hot_pct=hot_pct, device=id, share=())


@room.rule(
    warning("{watcher} failed, so whether its accelerators were disturbed is not known from here on: {why}"),
    noticed=warning("an accelerator could not be watched to the end{share:share}"),
)
def accelerators_watched(evidence: Evidence) -> Iterator[Finding]:
    """No vendor's watcher failed during the run. One that failed before is among the absences of the run."""
    absent = {absence.label for absence in evidence.result.absent}
    records = reversed(evidence.result.records)
    first = {absence.label: (record.key, absence.reason) for record in records for absence in record.failed_watchers}
    for label, (key, reason) in first.items():
        if label not in absent:
            yield found("accelerators_watched", key, watcher=label, why=reason)


@room.record_rule(
    warning("the cgroup's CPU quota ran out in {periods:counted period} (limit 0)"),
    much=explains(
        "the CPU quota ran out in up to {periods:counted period} of a measurement and kept {lost_pct:.0f} % of the CPU "
        "time of {machine} from it{share:share}",
        "raise the quota",
    ),
    noticed=slows("the CPU quota ran out{share:share}", "raise the quota"),
)
def no_quota_throttling(measured: Measurement) -> Iterator[Finding]:
    """No CPU quota ran out. It is a setting of the machine, and disturbs no result by itself; but it explains one that
    is disturbed, if it kept more time from a measurement than other programs used."""
    periods, lost = measured.total("throttled_periods"), measured.throttled_fraction
    if periods:
        yield found("no_quota_throttling", measured.key, periods=periods)
    if lost > max(MUCH_THROTTLED, measured.foreign_fraction):
        values: dict[str, FindingValue] = {"lost_pct": lost * 100, "periods": periods or 0, "machine": measured.machine}
        yield found("no_quota_throttling.much", measured.key, **values, share=())


@room.record_rule(
    battery=warning("the machine ran on its battery in {hit} of {blocks} blocks"),
    charging=warning("the battery was charged in {hit} of {blocks} blocks, and a meter at the wall reads that, too"),
    much=cause(
        "the machine ran on its battery, which no meter at the wall sees{share:share}", "plug it in and measure again"
    ),
    noticed=warning(
        "the machine ran on its battery or charged it{share:share}", "plug it in, and charge the battery first"
    ),
)
def on_mains(measured: Measurement) -> Iterator[Finding]:
    """Mains supplied the machine, and charged no battery."""
    known = [block.power_source for block in measured.watched if block.power_source]
    for source in ("battery", "charging"):
        if hit := known.count(source):
            yield found(f"on_mains.{source}", measured.key, hit=hit, blocks=len(known))
    if "battery" in known:
        yield found("on_mains.much", measured.key, share=())


@room.rule(
    warning("the power profile {profile} slows the machine down"),
    noticed=slows("the power profile saves power", "choose the profile performance; mixmark doctor says how"),
)
def full_power_profile(evidence: Evidence) -> Iterator[Finding]:
    """No host has a profile that saves power."""
    for host, system in evidence.result.systems.items():
        if system.power_profile in POWER_SAVING:
            yield found("full_power_profile", host or "run", profile=system.power_profile)


@room.record_rule(
    warning("the CPUs' thermal throttle counters rose by {events} (limit 0)"),
    much=cause("a CPU slowed down for heat in {hot_pct:.0f} % of a window{share:share}", "improve its cooling"),
    noticed=slows("a CPU slowed down for heat{share:share}", "improve its cooling"),
)
def no_thermal_throttling(measured: Measurement) -> Iterator[Finding]:
    """No CPU lowered its clock for heat."""
    if events := measured.total("thermal_throttles"):
        yield found("no_thermal_throttling", measured.key, events=events)
        known = [block.thermal_throttles for block in measured.watched if block.thermal_throttles is not None]
        if (hot := sum(map(bool, known)) / len(known)) > MUCH_THROTTLED:
            yield found("no_thermal_throttling.much", measured.key, hot_pct=hot * 100, share=())


@room.record_rule(
    warning(
        "the clock of {what} fell by {fell:percent}: {first_mhz:.0f} MHz at first, {last_mhz:.0f} MHz at last (limit "
        "{limit:percent})"
    ),
    noticed=note("a clock frequency fell{share:share}", "fix the clocks; mixmark doctor says how"),
)
def frequency_stable(measured: Measurement) -> Iterator[Finding]:
    """The clock of the busy CPUs and of the accelerators fell by at most 3 % from the first third of the window to the
    last."""
    series = {"the CPUs": [block.clock_mean_mhz for block in measured.watched if block.clock_mean_mhz]}
    for id, states in measured.accelerators.items():
        series[id] = [float(state.clock_mhz) for state in states if state.clock_mhz]
    for name, clocks_mhz in series.items():
        if not (third := len(clocks_mhz) // 3):
            continue
        first, last = median(clocks_mhz[:third]), median(clocks_mhz[-third:])
        if last < first * (1 - CLOCK_DROP):
            clocks = {"first_mhz": first, "last_mhz": last, "fell": 1 - last / first, "limit": CLOCK_DROP}
            yield found("frequency_stable", measured.key, what=name, **clocks)


@room.record_rule(
    warning("tasks waited for memory during {stalled:percent} of the time (limit {limit:percent})"),
    noticed=slows("programs waited for memory{share:share}", "free some memory"),
)
def no_memory_pressure(measured: Measurement) -> Iterator[Finding]:
    """Tasks waited for memory for at most 0.1 % of the time."""
    stalled = measured.per_s("memory_stall_ns") / 1e9
    if stalled > MEMORY_STALL:
        yield found("no_memory_pressure", measured.key, stalled=stalled, limit=MEMORY_STALL)


@room.record_rule(
    major_faults=warning("the workers waited for {pages_per_s:.1f} pages a second from disk (limit {limit:g})"),
    swapped_in_pages=warning("{pages_per_s:.1f} pages a second were swapped in (limit {limit:g})"),
    swapped_out_pages=warning("{pages_per_s:.1f} pages a second were swapped out (limit {limit:g})"),
    noticed=slows("pages came from a disk or went there{share:share}", "free some memory"),
)
def no_paging(measured: Measurement) -> Iterator[Finding]:
    """At most one page a second came from, or went to, a disk."""
    for counter in ("major_faults", "swapped_in_pages", "swapped_out_pages"):
        rate_per_s = measured.per_s(counter)
        if rate_per_s > FAULTS_PER_S:
            yield found(f"no_paging.{counter}", measured.key, pages_per_s=rate_per_s, limit=FAULTS_PER_S)


@room.record_rule(
    warning("the wall clock stepped by {step_s:+.2f} s (limit {limit_s:g} s): it was set, or the machine slept"),
    noticed=warning("the wall clock was set, or the machine slept{share:share}"),
)
def wall_clock_steady(measured: Measurement) -> Iterator[Finding]:
    """The wall clock kept to the monotonic clock within 0.1 s: it was not set, and the machine did not sleep."""
    steps_ns = [block.clock_step_ns for block in measured.watched if block.clock_step_ns is not None]
    worst_ns = max(steps_ns, key=abs, default=0)
    if abs(worst_ns) > CLOCK_STEP_NS:
        yield found("wall_clock_steady", measured.key, step_s=worst_ns / 1e9, limit_s=CLOCK_STEP_NS / 1e9)


@room.rule(
    warning("the speed drifted by {drift:percent} during the run, in {unit} of the probe by {adapter} in {precision}"),
    much=widens("the speed drifted by {drift:percent} during the run", AGAIN),
    noticed=note("the speed drifted{share:share}", DOCTOR),
)
def speed_stable(evidence: Evidence) -> Iterator[Finding]:
    """The figures of a probe before and after the suites lie within 10 % of each other, or within the scatter of its
    passes. A drift beyond 25 % costs the rank, unless runs of the mix show that it moved their score by little: a probe
    lasts for seconds, a mix for minutes."""
    most = 0.0
    for (device, adapter, precision), unit, drift, scatter in speed_drifts(evidence.result.records):
        if drift > max(DRIFT, scatter):
            yield found("speed_stable", device, adapter=adapter, precision=precision, drift=drift, unit=unit)
            most = max(most, drift)
    known = widest(*figures(evidence.runs)[:2]) if len(evidence.runs) > 1 else None
    if most > MUCH_DRIFT and (known is None or known > RANKED_HALF_WIDTH):
        yield found("speed_stable.much", drift=most)


@room.record_rule(
    warning(
        "other programs kept {cores:.2f} of {cpus:counted CPU} busy, {fraction:percent} of the machine "
        "(limit {limit:percent})"
    ),
    weight=550,
    much=cause("other programs used up to {used_pct:.0f} % of {machine}{share:share}", AGAIN),
    noticed=slows("other programs ran{share:share}", AGAIN),
)
def no_foreign_load(measured: Measurement) -> Iterator[Finding]:
    """Other programs used at most 1 % of the machine's CPU time, and at most a quarter of a core. The kernel's own
    threads are no other program."""
    cores, cpus = measured.foreign_cores or (0.0, 1)
    limit = min(FOREIGN * cpus, FOREIGN_CORES)
    if cores > limit:
        fractions = {"fraction": cores / cpus, "limit": limit / cpus}
        yield found("no_foreign_load", measured.key, cores=cores, cpus=cpus, **fractions)
    if (used := measured.foreign_fraction) > MUCH_FOREIGN:
        yield found("no_foreign_load.much", measured.key, used_pct=used * 100, machine=measured.machine, share=())


@room.record_rule(
    warning(
        "the hypervisor took {stolen:percent} of the machine's CPU time in the window (limit {limit:percent}), "
        "{worst:percent} in its worst block (limit {worst_limit:percent})"
    ),
    weight=550,
    much=cause(
        "the hypervisor gave up to {stolen_pct:.0f} % of the CPU time of {machine} to others{share:share}",
        "run again when the host is quiet",
    ),
    noticed=slows("the hypervisor took CPU time away{share:share}"),
)
def no_steal_time(measured: Measurement) -> Iterator[Finding]:
    """The hypervisor gave at most 0.5 % of the CPUs' time to others, and at most 2 % in any block."""
    mean, worst = measured.stolen or (0.0, 0.0)
    if mean > STOLEN or worst > STOLEN_IN_BLOCK:
        limits = {"limit": STOLEN, "worst_limit": STOLEN_IN_BLOCK}
        yield found("no_steal_time", measured.key, stolen=mean, worst=worst, **limits)
    if mean > MUCH_STOLEN:
        yield found("no_steal_time.much", measured.key, stolen_pct=mean * 100, machine=measured.machine, share=())


@room.rule(
    warning(
        "a fixed loop took {fastest_ms:.2f} ms at its fastest and {slowest_ms:.2f} ms at its slowest, {drift:times} as "
        "long (limit {limit:times})"
    ),
    weight=550,
    noticed=note("a fixed loop changed its speed", DOCTOR),
)
def canary_stable(evidence: Evidence) -> Iterator[Finding]:
    """The fixed loop took as long at its slowest as at its fastest, within 2 % or the scatter of its repetitions, on
    each host by itself.

    A time is the median of one run of the loop; the scatter is the largest distance between the quartiles of one run.
    """
    by_host: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for record in evidence.result.records:
        by_host[record.route.host] += [block.canary_ns for block in record.conditions if block.canary_ns]
    for host, runs in by_host.items():
        if len(runs) < 2:
            continue
        medians = [median(times) for times in runs]
        drift = max(medians) / min(medians) - 1
        limit = max(CANARY_DRIFT, *(spread(times) for times in runs))
        if drift > limit:
            times_ms = {"fastest_ms": min(medians) / 1e6, "slowest_ms": max(medians) / 1e6}
            yield found("canary_stable", host, **times_ms, drift=drift, limit=limit)
