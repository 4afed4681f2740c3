"""What a reader should know before trusting a result: a tuple of small rules, each Result -> findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import Literal

from harness.judge import energy, honest, score, stats
from harness.judge.steady import window
from harness.schema import PROTECTIVE, AcceleratorConditions, ClockReason, Conditions, Domain, Finding, Record, Result

DRIFT = 0.10  # a probe that moves further than this between its records: the machine changed speed

# Disturbances. Shares of CPU time are of the whole machine over a record's window unless said otherwise.
STOLEN = 0.005  # a quarter of the 2 % that a comparison has to resolve
STOLEN_IN_BLOCK = 0.02
FOREIGN = 0.01
FOREIGN_CORES = 0.25  # on many cores 1 % is several: a parallel loop waits for its slowest thread
MEMORY_STALL = 0.001  # of the window: a stop this long is below what any interval here resolves
FAULTS_PER_S = 1.0  # a disk takes some 10 ms for a page, so one a second is 1 % of the time
CLOCK_DROP = 0.03
CANARY_DRIFT = 0.02
METERING = 0.005  # of one core
CLOCK_STEP_NS = 100_000_000  # NTP slews by 0.5 ms a second at most; the rest is room for a late thread


def finished(result: Result) -> Iterator[Finding]:
    """A failed attempt is invalid; refused or unsupported is a note; an interrupted run is a warning."""
    if not result.finished:
        yield Finding(rule="finished", severity="warning", about="run", message="interrupted; --resume goes on")
    for record in result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            yield Finding(
                rule="finished",
                severity="invalid" if error.attempted else "note",
                about=record.key,
                message=f"{error.kind}: {error.message}{hint}",
            )


def energy_known(result: Result) -> Iterator[Finding]:
    """Something here is metered. What would make it so is told by the meters that are absent."""
    if not result.domains:
        missing = ", ".join(energy.uncovered((), result.devices))
        absent = any(each.kind == "meter" for each in result.absent)
        told = "the absent meters say what would be needed" if absent else "mixmark meters says what would be needed"
        message = f"energy not measured, so there is no efficiency: nothing meters {missing}; {told}"
        yield Finding(rule="energy_known", severity="note", about="run", message=message)


def energy_whole(result: Result) -> Iterator[Finding]:
    """What is metered covers every device, used or not, the host's processor included, by measurement."""
    if result.domains and (missing := energy.uncovered(_meterable(result), result.devices)):
        modelled = [each.id for each in result.domains if each.method == "modelled"]
        also = f" ({', '.join(modelled)} is modelled, and does not count)" if modelled else ""
        message = f"energy of a part only, so there is no efficiency: nothing meters {', '.join(missing)}{also}"
        yield Finding(rule="energy_whole", severity="warning", about="run", message=message)


def energy_valid(result: Result) -> Iterator[Finding]:
    """Every domain whose joules would be added has them in the window of every record and mix, its edges within 1 %."""
    needed = [each.id for each in _meterable(result)]
    for about, phase, found in _energies(result):
        of = f"{phase}: " if about == "run" else ""
        metering = energy.metered(result, phase)
        if metering is None:
            message = f"{of}no energy: the meters were not read in its phase"
            yield Finding(rule="energy_valid", severity="warning", about=about, message=message)
            continue
        for id in needed:
            reasons = found.readings[id].reasons
            severity: Literal["note", "warning"] = "note"
            if reasons == ("short window",):
                message = f"energy of {id}: {energy.ENOUGH_PERIODS} of its updates do not fit into the window: ±5 %"
            elif reasons == ("window too short",):
                message = f"no energy of {id}: {energy.FEWEST_PERIODS} of its updates do not fit into the window"
            elif reasons:
                severity = "warning"
                message = f"no energy of {id}: {', '.join(energy.told(found.readings[id], metering.lost))}"
            else:
                continue
            yield Finding(rule="energy_valid", severity=severity, about=about, message=f"{of}{message}")


def energy_agrees(result: Result) -> Iterator[Finding]:
    """A device's energy counter and the integral of its power differ by at most 5 %; no wall or node uses less than the
    devices in it, by more than that."""
    for about, phase, found in _energies(result):
        of = f"{phase}: " if about == "run" else ""
        if not found.readings:  # no meter was read then, as `energy_valid` says
            continue
        for counter, integral, by in energy.disagreements(result.domains, found.readings):
            if abs(by) > energy.CROSS_CHECK:
                message = (
                    f"{of}the integral of {integral.id} is {by * 100:+.1f} % off the counter {counter.id} "
                    f"(limit {_percent(energy.CROSS_CHECK)})"
                )
                yield Finding(rule="energy_agrees", severity="warning", about=about, message=message)
        for whole, by in energy.contradictions(result.domains, found.readings):
            if by < -energy.CROSS_CHECK:
                message = (
                    f"{of}{whole.id} used {_percent(-by)} less than what it holds: are its unit and its clock right?"
                )
                yield Finding(rule="energy_agrees", severity="warning", about=about, message=message)


def metering_cheap(result: Result) -> Iterator[Finding]:
    """Reading the meters took at most 0.5 % of one core."""
    for metering in result.meterings:
        share = metering.cpu_ns / max(metering.end_ns - metering.begin_ns, 1)
        if share > METERING:
            message = f"reading the meters took {_percent(share)} of one core (limit {_percent(METERING)})"
            yield Finding(rule="metering_cheap", severity="warning", about=metering.phase, message=message)


def _meterable(result: Result) -> tuple[Domain, ...]:
    """The domains that would be added if all were read well."""
    measured = {each.id for each in result.domains if each.method != "modelled"}
    return energy.antichain(result.domains, measured, result.devices)


def _energies(result: Result) -> Iterator[tuple[str, str, energy.Total]]:
    """(about, phase, total) of the records that have a phase for themselves, the probes' left out, and of the mixes."""
    found_score = score.score(result) if result.domains else None
    for run in found_score.runs if found_score else ():
        yield "run", run.phase, run.total
    for record in result.records:
        if record.scenario != "probe" and result.domains:
            found = energy.of_record(result, record)
            if found is not None:
                yield record.key, record.phase, found


def enough_feeds(result: Result) -> Iterator[Finding]:
    """No tail percentile where the sample does not carry the lowest of them."""
    needed = stats.sample_needed(stats.LOWEST_TAIL)
    for record in result.records:
        if record.completions and stats.is_cell(record) and len(record.completions) < needed:
            yield Finding(
                rule="enough_feeds",
                severity="note",
                about=record.key,
                message=f"no tail percentile: p{stats.LOWEST_TAIL * 100:g} needs {needed} feeds",
            )


def ceiling_known(result: Result) -> Iterator[Finding]:
    """Why a record has no share of the roofline, or whose ceiling it was compared with."""
    known = stats.ceilings(result.records)
    for record in result.records:
        if record.completions and stats.is_cell(record) and (note := stats.achieved(record, known).note):
            yield Finding(rule="ceiling_known", severity="note", about=record.key, message=f"roofline: {note}")


def speed_held(result: Result) -> Iterator[Finding]:
    """The same probe, before and after, within 10 %."""
    probed: dict[stats.CeilingKey, list[stats.Ceiling]] = defaultdict(list)
    for record in result.records:
        for key, ceiling in stats.ceilings([record]).items():
            probed[key].append(ceiling)
    for (device, adapter, precision), seen in probed.items():
        for rate, what in (("flops_per_s", "flop/s"), ("bytes_per_s", "byte/s")):
            rates = [value for ceiling in seen if (value := getattr(ceiling, rate)) is not None]
            if rates and max(rates) > min(rates) * (1 + DRIFT):
                yield Finding(
                    rule="speed_held",
                    severity="warning",
                    about=device,
                    message=f"the machine's speed drifted during the run: the probe by {adapter} in {precision} "
                    f"moved by {(max(rates) / min(rates) - 1) * 100:.0f} % in {what}",
                )


def steady(result: Result) -> Iterator[Finding]:
    """A closed loop's window was steady, at least from some block of its first half on."""
    for record in result.records:
        if record.completions is None or not stats.is_cell(record) or record.scenario == "server":
            continue
        seen = window(record.completions)
        if seen is not None and seen.steady is False:
            message = "not steady: the throughput is of the whole window, and has no interval"
            yield Finding(rule="steady", severity="warning", about=record.key, message=message)
        elif seen is None or seen.steady is None:
            message = f"too few feeds to tell whether it was steady: {stats.FEWEST_BLOCKS} are needed"
            yield Finding(rule="steady", severity="note", about=record.key, message=message)


def precise(result: Result) -> Iterator[Finding]:
    """The half-width that was asked for was reached before the longest time was."""
    asked = {
        share.key: share.limits.half_width for phase in result.phases for task in phase.tasks for share in task.shares
    }
    for record in result.records:
        half_width = asked.get(record.key)
        if record.completions is None or record.ended_by != "cap" or half_width is None:
            continue
        seen = window(record.completions)
        interval = stats.throughput_interval(seen.rates_per_s) if seen and seen.steady else None
        if interval is not None and interval.half_width > half_width:
            message = (
                f"the longest time was reached at ±{_percent(interval.half_width)} (asked for ±{_percent(half_width)})"
            )
            yield Finding(rule="precise", severity="note", about=record.key, message=message)


def latency_kept(result: Result) -> Iterator[Finding]:
    """A server at a given rate keeps the suite's latency limits."""
    for record in result.records:
        limits, done = record.latency_limits, record.completions
        if done is None or limits is None or record.rate_trials or record.scenario != "server":
            continue
        kept = stats.keeps(done, limits)
        if kept is False:
            message = f"the latency limits are not kept at p{limits.percentile * 100:g}"
            yield Finding(rule="latency_kept", severity="warning", about=record.key, message=message)
        elif kept is None:
            needed = stats.sample_needed(limits.percentile)
            message = f"whether the latency limits are kept is open: p{limits.percentile * 100:g} needs {needed} feeds"
            yield Finding(rule="latency_kept", severity="note", about=record.key, message=message)


def watched(record: Record) -> tuple[Conditions, ...]:
    """The blocks that lie inside the record's window; where it is too short for one, those that touch it."""
    if record.completions is None:
        return ()
    begin_ns, end_ns = int(record.completions.issued_ns.min()), int(record.completions.marks_ns.max())
    inside = [block for block in record.conditions if begin_ns <= block.begin_ns and block.end_ns <= end_ns]
    return tuple(
        inside or [block for block in record.conditions if block.begin_ns < end_ns and begin_ns < block.end_ns]
    )


def not_stolen(result: Result) -> Iterator[Finding]:
    """The hypervisor gave at most 0.5 % of the CPUs' time to others, and at most 2 % in any block."""
    for record in result.records:
        shares = [
            (block.stolen_ns, (block.end_ns - block.begin_ns) * block.cpus)
            for block in watched(record)
            if block.stolen_ns is not None and block.cpus
        ]
        if not shares:
            continue
        mean = sum(stolen for stolen, _ in shares) / sum(whole for _, whole in shares)
        worst = max(stolen / whole for stolen, whole in shares)
        if mean > STOLEN or worst > STOLEN_IN_BLOCK:
            yield _disturbed(
                not_stolen,
                record.key,
                f"the hypervisor took {_percent(mean)} of the CPUs' time (limit {_percent(STOLEN)}), "
                f"{_percent(worst)} in the worst block (limit {_percent(STOLEN_IN_BLOCK)})",
            )


def not_throttled(result: Result) -> Iterator[Finding]:
    """No CPU quota ran out."""
    for record in result.records:
        if periods := _sum(record, "throttled_periods"):
            time_ns = _sum(record, "throttled_ns")
            lost = "" if time_ns is None else f", for {time_ns / 1e9:.2f} s in all"
            yield _disturbed(
                not_throttled, record.key, f"the cgroup's CPU quota ran out in {periods} periods{lost} (limit 0)"
            )


def machine_ours(result: Result) -> Iterator[Finding]:
    """Others used at most 1 % of the machine's CPU time, and a quarter of a core. Counters tick every 10 ms."""
    for record in result.records:
        blocks = [
            (block.busy_ns - block.own_ns, block.end_ns - block.begin_ns, block.cpus)
            for block in watched(record)
            if block.busy_ns is not None and block.own_ns is not None and block.cpus
        ]
        if not blocks:
            continue
        cores = sum(foreign for foreign, _, _ in blocks) / sum(elapsed for _, elapsed, _ in blocks)
        cpus = max(cpus for _, _, cpus in blocks)
        limit = min(FOREIGN * cpus, FOREIGN_CORES)
        if cores > limit:
            yield _disturbed(
                machine_ours,
                record.key,
                f"other processes kept {cores:.2f} of {cpus} CPUs busy, {_percent(cores / cpus)} of the machine "
                f"(limit {_percent(limit / cpus)})",
            )


def memory_sufficed(result: Result) -> Iterator[Finding]:
    """Nobody waited for memory for more than 0.1 % of the time."""
    for record in result.records:
        stalled_ns, whole_ns = _sum(record, "memory_stall_ns"), _elapsed_ns(record, "memory_stall_ns")
        if stalled_ns is not None and stalled_ns > MEMORY_STALL * whole_ns:
            yield _disturbed(
                memory_sufficed,
                record.key,
                f"tasks waited for memory during {_percent(stalled_ns / whole_ns)} of the time "
                f"(limit {_percent(MEMORY_STALL)})",
            )


def no_paging(result: Result) -> Iterator[Finding]:
    """At most one page a second came from, or went to, a disk."""
    kinds = {
        "major_faults": "the workers waited for {:.1f} pages a second from disk",
        "swapped_in_pages": "{:.1f} pages a second were swapped in",
        "swapped_out_pages": "{:.1f} pages a second were swapped out",
    }
    for record in result.records:
        for field, said in kinds.items():
            pages = _sum(record, field)
            if pages is not None and (rate := pages / (_elapsed_ns(record, field) / 1e9)) > FAULTS_PER_S:
                yield _disturbed(no_paging, record.key, f"{said.format(rate)} (limit {FAULTS_PER_S:g})")


def clocks_held(result: Result) -> Iterator[Finding]:
    """The busy CPUs' clock and the accelerators' fell by at most 3 % from the first third of the window to the last."""
    for record in result.records:
        series = {"the CPUs": [block.clock_mean_mhz for block in watched(record) if block.clock_mean_mhz]}
        for id, states in _accelerators(record, result).items():
            series[id] = [float(state.clock_mhz) for state in states if state.clock_mhz]
        for name, clocks in series.items():
            if not (third := len(clocks) // 3):
                continue
            first, last = median(clocks[:third]), median(clocks[-third:])
            if last < first * (1 - CLOCK_DROP):
                yield _disturbed(
                    clocks_held,
                    record.key,
                    f"the clock of {name} fell by {_percent(1 - last / first)}, from {first:.0f} to {last:.0f} MHz "
                    f"(limit {_percent(CLOCK_DROP)})",
                )


def cool_enough(result: Result) -> Iterator[Finding]:
    """No CPU lowered its clock for heat."""
    for record in result.records:
        if events := _sum(record, "thermal_throttles"):
            temperatures = [block.temperature_c for block in watched(record) if block.temperature_c is not None]
            hottest = f" at up to {max(temperatures):.0f} °C" if temperatures else ""
            yield _disturbed(
                cool_enough, record.key, f"the CPUs' thermal throttle counters rose by {events}{hottest} (limit 0)"
            )


def accelerators_unhindered(result: Result) -> Iterator[Finding]:
    """No accelerator slowed down to protect itself from heat or a failing supply. A power cap is a note: it is a
    setting, and the same on every run."""
    for record in result.records:
        for id, states in _accelerators(record, result).items():
            told = [state for state in states if state.reasons is not None]
            reasons: tuple[ClockReason, ...] = (*PROTECTIVE, "power cap")
            for reason in reasons:
                if hit := [state for state in told if reason in (state.reasons or ())]:
                    caps = [state.power_cap_mw for state in hit if state.power_cap_mw]
                    capped = f" of {max(caps) / 1000:.0f} W" if reason == "power cap" and caps else ""
                    limit = " (limit 0)" if reason in PROTECTIVE else ""
                    yield Finding(
                        rule=accelerators_unhindered.__name__,
                        severity="warning" if reason in PROTECTIVE else "note",
                        about=record.key,
                        message=f"{id} was held back by {reason}{capped} in {len(hit)} of {len(told)} blocks{limit}",
                    )


def accelerators_ours(result: Result) -> Iterator[Finding]:
    """No other process computed on the accelerators of the record."""
    for record in result.records:
        for id, states in _accelerators(record, result).items():
            if pids := sorted({pid for state in states for pid in state.foreign_pids or ()}):
                listed = ", ".join(map(str, pids))
                message = f"foreign processes on {id}: {len(pids)} ({listed}; limit 0)"
                yield _disturbed(accelerators_ours, record.key, message)


def accelerators_watched(result: Result) -> Iterator[Finding]:
    """No vendor's watcher failed during the run; one that failed before it is told by the run's absences."""
    absent = {each.label for each in result.absent}
    failed = {each.label: (record.key, each.reason) for record in reversed(result.records) for each in record.unwatched}
    for label, (key, reason) in failed.items():
        if label not in absent:
            message = f"{label} failed, so whether its accelerators were disturbed is not known from here on: {reason}"
            yield _disturbed(accelerators_watched, key, message)


def canary_held(result: Result) -> Iterator[Finding]:
    """The fixed loop took as long at its slowest as at its fastest, within 2 % or the scatter of its repetitions.

    The median of each time it ran; the scatter is the largest distance between the quartiles of one run.
    """
    ran = [block.canary_ns for record in result.records for block in record.conditions if block.canary_ns]
    if len(ran) < 2:
        return
    medians = [median(times) for times in ran]
    drift = max(medians) / min(medians) - 1
    limit = max(CANARY_DRIFT, *(_scatter(times) for times in ran))
    if drift > limit:
        yield _disturbed(
            canary_held,
            "run",
            f"a fixed loop took {min(medians) / 1e6:.2f} ms at its fastest and {max(medians) / 1e6:.2f} ms at its "
            f"slowest, {_percent(drift)} apart (limit {_percent(limit)})",
        )


def clock_kept(result: Result) -> Iterator[Finding]:
    """The wall clock ran with the one that stamps: it was not set, and the machine did not sleep."""
    for record in result.records:
        steps = [block.clock_step_ns for block in watched(record) if block.clock_step_ns is not None]
        worst = max(steps, key=abs, default=0)
        if abs(worst) > CLOCK_STEP_NS:
            yield _disturbed(
                clock_kept,
                record.key,
                f"the wall clock stepped by {worst / 1e9:+.2f} s (limit {CLOCK_STEP_NS / 1e9:g} s): "
                "it was set, or the machine slept",
            )


def mix_complete(result: Result) -> Iterator[Finding]:
    """Every suite of the mix has units that count, and no device fell out."""
    found = score.score(result)
    for problem in found.problems if found else ():
        message = f"no score: {problem}"
        yield Finding(rule="mix_complete", severity="invalid", about="run", message=message)


def mix_graded(result: Result) -> Iterator[Finding]:
    """What the score lacks for the next better grade, and whether it can be ranked."""
    found = score.score(result)
    if found is None or found.problems:
        return
    if found.missing:
        message = f"the score is {found.graded}"
        yield Finding(rule="mix_graded", severity="note", about="run", message=message)
    for why in found.unranked:
        message = f"the score is not ranked: {why}"
        yield Finding(rule="mix_graded", severity="note", about="run", message=message)


def mix_bounded(result: Result) -> Iterator[Finding]:
    """No more was done than the solo rates allow, and the stored prices prove what that is."""
    found = score.score(result)
    for run in found.runs if found else ():
        seen = score.diagnose(result, run)
        if seen is None:
            continue
        if seen.unproven:
            message = f"{run.phase}: λ* is not proven: {'; '.join(seen.unproven)}"
            yield Finding(rule="mix_bounded", severity="invalid", about="run", message=message)
        kappa = seen.kappa
        lowest = kappa.estimate * (1 - run.coarseness) if kappa.low is None else kappa.low
        if lowest > 1 and seen.estimate:
            message = f"{run.phase}: κ is {kappa.estimate:.2f}: feeds that overlap did more than one at a time"
            yield Finding(rule="mix_bounded", severity="note", about="run", message=message)
        elif lowest > 1:
            message = (
                f"{run.phase}: κ is {kappa.estimate:.2f}, at least {lowest:.2f}, and cannot be above 1: "
                "the solo rates are too low, measure them again"
            )
            yield Finding(rule="mix_bounded", severity="warning", about="run", message=message)


def _disturbed(rule: Callable[[Result], Iterator[Finding]], about: str, message: str) -> Finding:
    return Finding(rule=rule.__name__, severity="warning", about=about, message=message)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _sum(record: Record, field: str) -> int | None:
    """Over the blocks that know it; None where none does."""
    known: list[int] = [value for block in watched(record) if (value := getattr(block, field)) is not None]
    return sum(known) if known else None


def _elapsed_ns(record: Record, field: str) -> int:
    """Of the blocks that know the field."""
    return sum(block.end_ns - block.begin_ns for block in watched(record) if getattr(block, field) is not None)


def _silicon(record: Record, result: Result) -> frozenset[str]:
    """The ids of what the record's device is made of."""
    known = [device.silicon for device in result.devices if device.id == record.route.device]
    return frozenset({record.route.device}).union(*known)


def _accelerators(record: Record, result: Result) -> dict[str, list[AcceleratorConditions]]:
    """By device that the record ran on, its state in each block."""
    ours = _silicon(record, result)
    states: dict[str, list[AcceleratorConditions]] = defaultdict(list)
    for block in watched(record):
        for state in block.accelerators:
            if state.id in ours:
                states[state.id].append(state)
    return states


def _scatter(times: tuple[int, ...]) -> float:
    """The distance between the quartiles, as a share of the median."""
    ordered, quarter = sorted(times), len(times) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(times)


RULES: tuple[Callable[[Result], Iterator[Finding]], ...] = (
    finished,
    mix_complete,
    mix_bounded,
    *honest.RULES,
    speed_held,
    steady,
    latency_kept,
    not_stolen,
    not_throttled,
    machine_ours,
    memory_sufficed,
    no_paging,
    clocks_held,
    cool_enough,
    accelerators_unhindered,
    accelerators_ours,
    accelerators_watched,
    canary_held,
    clock_kept,
    precise,
    mix_graded,
    ceiling_known,
    enough_feeds,
    energy_known,
    energy_whole,
    energy_valid,
    energy_agrees,
    metering_cheap,
)


def findings(result: Result) -> tuple[Finding, ...]:
    return tuple(finding for rule in RULES for finding in rule(result))
