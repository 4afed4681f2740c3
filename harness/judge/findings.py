"""The table of rules: for each code of a finding its severity, its words and what the reader can do about it.

A code is the name of a rule, or `rule.case` if the rule can say several things. The order of the rules is the order of
findings and of the reasons of a verdict, the most serious first. Two cases have a meaning of their own: a rule with the
case `noticed` keeps a result with its warnings from being solid, and a rule of integrity with the case `unranked` costs
the rank.

The words have a field for each value of a finding. The format of a field is one of `FORMATS` or Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from mixmark.harness.contracts.numbers import change, counted, duration, percent, significant
from mixmark.harness.contracts.schema import Finding, FindingValue, Severity

AGAIN = "run again on an idle machine, or with --wait-idle 60"
DOCTOR = "mixmark doctor lists what can disturb"
READS = "mixmark meters shows what it reads"


@dataclass(frozen=True)
class Says:
    """What the table says of a code."""

    severity: Severity
    words: str
    remedy: str = ""
    """What the reader can do. Empty if no remedy is known."""


def note(words: str, remedy: str = "") -> Says:
    return Says("note", words, remedy)


def warning(words: str, remedy: str = "") -> Says:
    return Says("warning", words, remedy)


def invalid(words: str, remedy: str = "") -> Says:
    return Says("invalid", words, remedy)


TABLE: Mapping[str, Says] = {
    "finished.live": warning("still going on in another process"),
    "finished.interrupted": warning("interrupted; --resume goes on"),
    "finished.failed": invalid("{kind}: {message}{hint:hint}"),
    "finished.refused": note("{kind}: {message}{hint:hint}"),
    "finished.going_on": warning("the run is still going on"),
    "finished.stopped": warning("the run was interrupted", "continue it with --resume"),
    "finished.nothing": invalid("nothing was measured"),
    "hosts_took_part": invalid("{host} took no part: {why}"),
    "mix_complete.absent": warning("{why}"),
    "mix_complete.simulated": warning("{devices} took part and is no silicon: a driver simulates it"),
    "mix_complete.other_mix": invalid("this is not the mix that was published as {mix}"),
    "mix_complete.unfinished": invalid("{phase} was not run to its end"),
    "mix_complete.host_failed": invalid("{phase}: {host}: all of its parts failed: {failures}"),
    "mix_complete.failed": invalid("{phase}: {suite} on {device}: {kind}: {message}"),
    "mix_complete.no_feed": warning("{phase}: {suite}: no feed finished"),
    "mix_complete.unaudited": invalid("{phase}: {suite}: it was not audited: {why}"),
    "mix_complete.late": invalid("{phase}: {suite}: no unit counts in the window, {late} broke their limits"),
    "mix_complete.no_unit": invalid("{phase}: {suite}: no unit counts in the window"),
    "mix_complete.other_rate": invalid(
        "{phase}: the plan has {suite} on {device} at {planned_per_s:significant} units/s, and its solo record "
        "{measured_per_s:significant} units/s"
    ),
    "mix_complete.no_rate": invalid(
        "{phase}: the plan has {suite} on {device} at {planned_per_s:significant} units/s, and no solo record that "
        "passed"
    ),
    "mix_complete.unproven": invalid("{phase}: λ* is not proven: {why}"),
    "mix_complete.overloaded": warning(
        "overloaded: {left} of {arrived:counted request} of {suite} were not answered when the level ended"
    ),
    "mix_complete.delayed": warning(
        "the harness took requests up {delay_ns:duration} late (p99), more than {limit:percent} of the shortest limit, "
        "{shortest_ns:duration}"
    ),
    "mix_complete.not_run": warning(
        "no score: {why}; the figures of {known} of {suites} suites, each measured alone, stand",
        "--mix none measures the suites alone and asks for no mix",
    ),
    "mix_complete.no_figure": warning(
        "no score: {why}; the figures of {known} of {suites} suites, each measured alone, stand",
        "--device names the devices to measure",
    ),
    "mix_complete.too_short": warning(
        "no score: {why}; the figures of {known} of {suites} suites, each measured alone, stand", "{longer}"
    ),
    "mix_bounded.faster": warning(
        "{phase}: {suite} on {device} was {times:.2f} times as fast in the mix as alone, so λ* counts its rate in the "
        "mix: the machine was slow when it was measured alone, measure it again"
    ),
    "mix_bounded.overlap": note("{phase}: κ is {kappa:.2f}: feeds that overlap did more than one at a time"),
    "mix_bounded.above": warning(
        "{phase}: κ is {kappa:.2f}, at least {lowest:.2f}, and cannot be above 1: the solo rates are too low, measure "
        "them again"
    ),
    "mix_bounded.much": warning(
        "the mix did {times:.2f} times what its devices alone allow, so those were slowed down", AGAIN
    ),
    "mix_bounded.noticed": warning("the solo rates do not fit the rates of the mix", "measure again"),
    "consistency": invalid("{contradiction}"),
    "audited.problem": invalid("wrong outputs: {problem}"),
    "audited.wrong": invalid(
        "wrong outputs: {wrong} of {audited} audited feeds fail; {metric} {worst:.3g}, at most {at_most:.3g} is allowed"
    ),
    "audited.pending": Says("pending", "not audited yet"),
    "audited.missing": invalid("not audited: {why}"),
    "audited.unasked": note("not audited: {why}"),
    "audited.few": note("{audited:counted audited feed} passed: too few to bound the error rate"),
    "audited.passed": note(
        "{audited:counted audited feed} passed: with 95 % confidence at most {wrong_pct:.2g} % of all feeds are wrong"
    ),
    "audited.unmeasured": note(
        "its gate is unmeasured, as all gates of the server tier and of checkpoints: it may pass work that was skipped"
    ),
    "audited.hosted": note("the outputs of a hosted service cannot be audited"),
    "no_orphans.survived": invalid(
        "{processes:counted process} lived on after the workers of the phase, and had to be killed: {names}"
    ),
    "no_orphans.helped": note(
        "the load of {processes:counted process} that the runner named, and that no worker started, counts as the "
        "run's own: {names}"
    ),
    "units_counted.units": invalid("{least} to {most} units were counted for feeds of {expected}"),
    "units_counted.yields": invalid("feeds of {expected} yields came in {least} at the least"),
    "window_bracketed.outside": invalid(
        "a timestamp lies {outside_ns:duration} outside of the window that the parent timed"
    ),
    "window_bracketed.short": invalid(
        "the worker's timestamps cover {covered_s:.2f} s of a window of {window_s:.2f} s"
    ),
    "on_schedule.unknown": invalid("its window has no seed or no possible rate, so when its feeds were due is unknown"),
    "on_schedule.other": invalid("the feeds were not due when the window's seed says"),
    "on_schedule.left_out": invalid(
        "it left the feed out that was due after {due_s:.2f} s, and all later ones, of a window of {window_s:.2f} s"
    ),
    "latencies_bounded.window": note(
        "the latencies of {suites} are the worker's word: the parent timed only the window"
    ),
    "latencies_bounded.inside": note(
        "the times between the first yield of a feed and its last are the worker's word: the parent timed these two"
    ),
    "concurrency_kept": invalid("{most} feeds were in flight at once on {device}, which takes {concurrency}"),
    "threads_pinned": invalid(
        "{threads:counted thread} of the phase's workers could run on cores outside of their slice"
    ),
    "begun_once": warning("{phase} was begun {times:counted time}, and at most one of them has a record"),
    "begun_once.unranked": warning("{phase} was begun {times:counted time} and recorded once at most"),
    "begun_once.noticed": warning("{phase} was begun more often than it was recorded", "let a run go to its end"),
    "seed_random": warning("the seed was given, so that all feeds, and their outputs, could be known beforehand"),
    "seed_random.unranked": warning("its seed was given"),
    "seed_random.noticed": warning("the inputs were known beforehand, by --seed", "leave --seed away"),
    "below_ceiling": warning(
        "{times:.2f} × the {unit} that the probe of {device} reached: it cannot be ranked until that is explained"
    ),
    "below_ceiling.noticed": warning("a figure exceeds the ceilings that the probe measured{share:share}"),
    "below_ceiling.unranked": warning("{part}, exceeds the ceiling of its probe without an explanation"),
    "suites_verified": warning(
        "its units, costs and gate are the folder's, and were not compared with its suite: {why}"
    ),
    "suites_verified.noticed": warning(
        "a suite is not installed here, so its records were not compared with its code{share:share}"
    ),
    "suites_verified.unranked": warning("{part}, was not compared with the code of its suite"),
    "on_device.elsewhere": invalid("not all of it ran on {device}: {elsewhere}"),
    "on_device.idle": warning("{device} was idle in all {blocks} blocks of the window"),
    "on_device.not_ours": warning("the driver of {device} lists processes, and none of them is ours"),
    "on_device.noticed": warning("the driver saw hardly any work on an accelerator{share:share}"),
    "probed": note("no undisturbed probe of {device} in {precision} passed its audit, so a score has no rank"),
    "probed.unranked": warning(
        "no undisturbed probe of {device} in {precision} passed its audit, so nothing tells what is too fast"
    ),
    "accelerators_exclusive": warning("foreign processes on {device}: {processes} ({pids}; limit 0)"),
    "accelerators_exclusive.noticed": warning("other programs computed on an accelerator{share:share}", "stop them"),
    "no_accelerator_throttling": warning("{device} was held back by {reason} in {hit} of {blocks} blocks (limit 0)"),
    "no_accelerator_throttling.capped": note(
        "{device} was held back by {reason} of {cap_w:.0f} W in {hit} of {blocks} blocks"
    ),
    "no_accelerator_throttling.some_cap": note("{device} was held back by {reason} in {hit} of {blocks} blocks"),
    "no_accelerator_throttling.noticed": warning(
        "an accelerator slowed down to protect itself{share:share}", "improve its cooling or its supply"
    ),
    "accelerators_watched": warning(
        "{watcher} failed, so whether its accelerators were disturbed is not known from here on: {why}"
    ),
    "accelerators_watched.noticed": warning("an accelerator could not be watched to the end{share:share}"),
    "no_quota_throttling": warning("the cgroup's CPU quota ran out in {periods:counted period} (limit 0)"),
    "no_quota_throttling.timed": warning(
        "the cgroup's CPU quota ran out in {periods:counted period}, for {lost_s:.2f} s in all (limit 0)"
    ),
    "no_quota_throttling.much": warning(
        "the CPU quota ran out in up to {periods:counted period} of a measurement and kept {lost_pct:.0f} % of the CPU "
        "time of {machine} from it{share:share}",
        "raise the quota",
    ),
    "no_quota_throttling.run": warning(
        "the CPU quota ran out in {periods:counted period} and kept {lost_pct:.0f} % of the CPU time of {machine} from "
        "it"
    ),
    "no_quota_throttling.noticed": warning("the CPU quota ran out{share:share}", "raise the quota"),
    "on_mains.battery": warning("the machine ran on its battery in {hit} of {blocks} blocks"),
    "on_mains.charging": warning(
        "the battery was charged in {hit} of {blocks} blocks, and a meter at the wall reads that, too"
    ),
    "on_mains.much": warning(
        "the machine ran on its battery, which no meter at the wall sees{share:share}", "plug it in and measure again"
    ),
    "on_mains.noticed": warning(
        "the machine ran on its battery or charged it{share:share}", "plug it in, and charge the battery first"
    ),
    "full_power_profile": warning("the power profile {profile} slows the machine down"),
    "full_power_profile.noticed": warning(
        "the power profile saves power", "choose the profile performance; mixmark doctor says how"
    ),
    "no_thermal_throttling": warning("the CPUs' thermal throttle counters rose by {events} (limit 0)"),
    "no_thermal_throttling.hot": warning(
        "the CPUs' thermal throttle counters rose by {events} at up to {hottest_c:.0f} °C (limit 0)"
    ),
    "no_thermal_throttling.noticed": warning("a CPU slowed down for heat{share:share}", "improve its cooling"),
    "frequency_stable": warning(
        "the clock of {what} fell by {fell:percent}: {first_mhz:.0f} MHz at first, {last_mhz:.0f} MHz at last (limit "
        "{limit:percent})"
    ),
    "frequency_stable.noticed": warning(
        "a clock frequency fell{share:share}", "fix the clocks; mixmark doctor says how"
    ),
    "no_memory_pressure": warning(
        "tasks waited for memory during {stalled:percent} of the time (limit {limit:percent})"
    ),
    "no_memory_pressure.noticed": warning("programs waited for memory{share:share}", "free some memory"),
    "no_paging.major_faults": warning(
        "the workers waited for {pages_per_s:.1f} pages a second from disk (limit {limit:g})"
    ),
    "no_paging.swapped_in_pages": warning("{pages_per_s:.1f} pages a second were swapped in (limit {limit:g})"),
    "no_paging.swapped_out_pages": warning("{pages_per_s:.1f} pages a second were swapped out (limit {limit:g})"),
    "no_paging.noticed": warning("pages came from a disk or went there{share:share}", "free some memory"),
    "wall_clock_steady": warning(
        "the wall clock stepped by {step_s:+.2f} s (limit {limit_s:g} s): it was set, or the machine slept"
    ),
    "wall_clock_steady.noticed": warning("the wall clock was set, or the machine slept{share:share}"),
    "speed_stable": warning(
        "the machine's speed drifted during the run: the probe by {adapter} in {precision} moved by {drift:change} in "
        "{unit}"
    ),
    "speed_stable.much": warning("the machine's speed drifted by {drift:change} during the run", AGAIN),
    "speed_stable.noticed": warning("the machine's speed drifted{share:share}", DOCTOR),
    "batch_search_finished.best": warning(
        "the search for the best batch ran out of time: none above {largest} was tried, and batch {batch} was measured"
    ),
    "batch_search_finished.tried": note(
        "the search for the best batch ran out of time: none above {largest} was tried, and batch {batch} was measured"
    ),
    "batch_search_finished.noticed": warning(
        "the search for the best batch ran out of time{share:share}", "a longer preset searches longer"
    ),
    "steady": warning(
        "not steady, so there is no interval: from {begin_s:.1f} s to {end_s:.1f} s of {window_s:.1f} s it ran at "
        "{rate_pct:.0f} % of the rate of the rest, without which the {figure} would be {moved_pct:.1f} % {other}"
    ),
    "steady.unknown": note("too few feeds to tell whether it was steady: {needed} are needed"),
    "steady.much": warning("a change of speed within a window moved its figure by {moved:change}{share:share}", AGAIN),
    "steady.noticed": warning("the speed was not steady{share:share}", DOCTOR),
    "interval_known.wandering": warning(
        "the interval of the throughput is not known: the rate wanders so slowly that its {blocks} blocks are worth "
        "{independent:.1f} independent ones"
    ),
    "interval_known.wide": warning("the interval of the throughput is not known: it is wider than ±{widest_pct:g} %"),
    "interval_known.much": warning("{unknown} of {figures} figures varied too much for an error margin", AGAIN),
    "interval_known.one_run": warning("one run does not show how far runs differ", "--runs 5 does"),
    "interval_known.over_runs": warning("an interval over the runs is not known", "more --runs"),
    "interval_known.figure": warning("a figure is known to ±{widest_pct:.0f} %", "more --runs"),
    "latency_within_limits.broken": warning("the latency limits are not kept at {percentile}"),
    "latency_within_limits.open": note(
        "whether the latency limits are kept is open: {percentile} needs {needed} feeds"
    ),
    "latency_within_limits.noticed": warning("the latency limits were not kept{share:share}", "a lower --rate"),
    "no_foreign_load": warning(
        "other programs kept {cores:.2f} of {cpus:counted CPU} busy, {fraction:percent} of the machine "
        "(limit {limit:percent})"
    ),
    "no_foreign_load.much": warning("other programs used up to {used_pct:.0f} % of {machine}{share:share}", AGAIN),
    "no_foreign_load.run": warning("other programs used {used_pct:.0f} % of {machine}"),
    "no_foreign_load.noticed": warning("other programs ran{share:share}", AGAIN),
    "no_steal_time": warning(
        "the hypervisor took {stolen:percent} of the CPUs' time (limit {limit:percent}), {worst:percent} in the worst "
        "block (limit {worst_limit:percent})"
    ),
    "no_steal_time.much": warning(
        "the hypervisor gave up to {stolen_pct:.0f} % of the CPU time of {machine} to others{share:share}",
        "run again when the host is quiet",
    ),
    "no_steal_time.run": warning("the hypervisor gave {stolen_pct:.0f} % of the CPU time of {machine} to others"),
    "no_steal_time.noticed": warning("the hypervisor took CPU time away{share:share}"),
    "canary_stable": warning(
        "a fixed loop took {fastest_ms:.2f} ms at its fastest and {slowest_ms:.2f} ms at its slowest, {drift:change} "
        "apart (limit {limit:percent})"
    ),
    "canary_stable.noticed": warning("a fixed loop changed its speed", DOCTOR),
    "device_busy": warning(
        "for {idle_pct:.0f} % of the window no feed was in flight, so the harness may set the rate, and latencies may "
        "leave out work"
    ),
    "device_busy.preempted": warning(
        "for {idle_pct:.0f} % of the window no feed was in flight, while other programs and the hypervisor took "
        "{took_pct:.0f} % of the CPUs' time",
        AGAIN,
    ),
    "device_busy.noticed": warning("much time passed between the feeds{share:share}"),
    "clocks_synchronised": warning(
        "{phase}: the clock of {host} is known to ±{bound_ms:,.1f} ms, {uncertain_pct:.2g} % of the window (limit "
        "{limit_pct:g} %), which is counted {longer_ms:,.1f} ms longer for it"
    ),
    "clocks_synchronised.noticed": warning(
        "the clock of a host is not known well", "a link of shorter round trips to it"
    ),
    "accelerators_fed": warning(
        "{threads:counted hardware thread} of a host for {accelerators:counted accelerator}, fewer than {needed} for "
        "each: they may wait for the host"
    ),
    "accelerators_fed.noticed": warning("few threads of a host feed its accelerators"),
    "network_quiet": warning(
        "{machine}'s network carried {outside_kb_per_s:,.0f} kB a second in the window, for this run or for others "
        "(at rest: {limit_kb_per_s} kB)"
    ),
    "network_quiet.noticed": warning("the network carried traffic{share:share}"),
    "precise": note("the longest time was reached at ±{reached_pct:.1f} % (asked for ±{wanted_pct:.1f} %)"),
    "score_graded.left_out": note("the score leaves out {phase}, which was disturbed: {why}"),
    "score_graded.missing": note("the score is {grade}, not {better}: {missing}"),
    "score_graded.runs": note("{runs} of {needed} runs"),
    "score_graded.window": note("a window of {window_s:.4g} s of {needed_s:.0f} s"),
    "score_graded.surplus": note(
        "{surplus:percent} of the work of a window was in no whole mix (limit {limit_pct:g} %)"
    ),
    "score_graded.apart": note("its runs are too far apart for an interval", AGAIN),
    "score_graded.half_width": note("an interval of ±{reached_pct:.1f} % (limit ±{wanted_pct:g} %)"),
    "score_graded.audits": note("{suite} had {audits:counted feed} audited of {needed}"),
    "score_graded.edges": note("the slowest meter had {periods:.4g} periods of {needed}"),
    "score_graded.own_mix": note("{mix} is a mix of one's own"),
    "score_graded.unknown_mix": note("{mix} is none of the mixes that this version knows"),
    "score_graded.smoke": note("the smoke tier shows that everything works"),
    "score_graded.beside": note("{mix} is published beside the ranked mix of its tier"),
    "score_graded.tier": note("the smoke tier only shows that everything works", "--tier edge measures"),
    "score_graded.bracket": note(
        "the window was too short for this machine: the score is known as a range only", "{longer}"
    ),
    "score_graded.one_run": note("one run of the mix does not show how far runs differ", "--preset ranked makes three"),
    "score_graded.wide": note("the score is known to ±{widest_pct:.0f} %"),
    "score_graded.agree": note("{runs} runs agree within ±{widest_pct:.1f} %, and nothing disturbed them"),
    "score_graded.solid": note("{runs} runs agree within ±{widest_pct:.0f} %, and nothing disturbed them"),
    "path_verified.corrupted": warning("a copy of {size_bytes:,} bytes was wrong from byte {first_byte:,} on"),
    "path_verified.short": warning("a copy of {size_bytes:,} bytes ended at byte {first_byte:,}"),
    "path_verified.repeated": warning("a copy of {size_bytes:,} bytes brought the bytes of the copy before"),
    "path_verified.late": warning(
        "a copy of {size_bytes:,} bytes was acknowledged before byte {first_byte:,} had arrived"
    ),
    "path_verified.noticed": warning("a path between memories does not copy what it is given"),
    "path_measured": note("{kind} at copies of more than {size_bytes:,} bytes: {message}{hint:hint}"),
    "screened.faster": note(
        "only a quick check of seconds: another route was faster in it; --all-routes measures this one"
    ),
    "screened.only": note("only a quick check of seconds"),
    "choice_confirmed": note(
        "slower than {adapter} {precision} was whenever it was tried, so that may be the faster route; --all-routes "
        "measures both"
    ),
    "closed_cleanly": note("{kind} when it was closed: {message}{hint:hint}"),
    "ceiling_known": note("roofline: {why}"),
    "enough_feeds": note("no tail percentile: {percentile} needs {needed} feeds"),
    "energy_measured.absent": note(
        "energy not measured, so there is no efficiency: nothing meters {missing}; the absent meters say what would be "
        "needed"
    ),
    "energy_measured.none": note(
        "energy not measured, so there is no efficiency: nothing meters {missing}; mixmark meters says what would be "
        "needed"
    ),
    "energy_complete": warning("energy of a part only, so there is no efficiency: {why}"),
    "energy_complete.modelled": warning(
        "energy of a part only, so there is no efficiency: {why} ({domains} is modelled, and does not count)"
    ),
    "energy_valid.not_read": warning("{phase:phase}no energy: the meters were not read in its phase"),
    "energy_valid.short": note(
        "{phase:phase}energy of {domain}: {needed} of its updates do not fit into the window: ±5 %"
    ),
    "energy_valid.too_short": note(
        "{phase:phase}no energy of {domain}: {needed} of its updates do not fit into the window"
    ),
    "energy_valid.unknown": warning("{phase:phase}no energy of {domain}: {why}"),
    "energy_valid.noticed": warning("an energy source gave no joules{share:share}", READS),
    "energy_agrees.differ": warning(
        "{phase:phase}{domain} is {by_pct:+.1f} % off {source}, which meters the same (limit {limit:percent})"
    ),
    "energy_agrees.twins": warning(
        "{phase:phase}{domain} and {other} show one and the same reading: that they agree tells nothing, and they are "
        "never added"
    ),
    "energy_agrees.noticed": warning("two energy sources disagree{share:share}", "mixmark meters shows what they read"),
    "meter_timestamps_recent": warning(
        "{phase:phase}the timestamps of {domain} are {age_s:.1f} s old or more when they arrive (limit {limit_s:g} s): "
        "if its clock is late, its joules are off by an unknown part; set its clock by NTP, or declare how late it is"
    ),
    "meter_timestamps_recent.known": warning(
        "{phase:phase}the timestamps of {domain} are {age_s:.1f} s old or more when they arrive (limit {limit_s:g} s): "
        "if its clock is late, its joules are off by {off_pct:+.1f} %; set its clock by NTP, or declare how late it is"
    ),
    "meter_timestamps_recent.noticed": warning("the clock of a meter is late{share:share}"),
    "low_metering_overhead": warning("reading the meters took {used:percent} of one core (limit {limit:percent})"),
    "low_metering_overhead.noticed": warning("reading the meters took much CPU time"),
}
RULES: tuple[str, ...] = tuple(dict.fromkeys(code.partition(".")[0] for code in TABLE))
"""The names of all rules, in the order of the findings."""

FORMATS: Mapping[str, Callable[..., str]] = {
    "percent": percent,
    "significant": significant,
    "change": change,
    "duration": duration,
    "counted": counted,
    "hint": lambda hint: f" ({hint})" if hint else "",
    "phase": lambda phase: f"{phase}: " if phase else "",
    "share": lambda share: " ({} of {} measurements)".format(*share) if share else "",
}
"""Formats of fields beside Python's own. A word after a name is the second argument: `counted feed`."""


@dataclass(frozen=True)
class Span:
    """A value that differs between findings of one code."""

    low: float
    high: float


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Span):
            low, high = (self.format_field(end, format_spec) for end in (value.low, value.high))
            return low if low == high else f"{low} to {high}"
        name, *argument = format_spec.split(" ", 1)
        if name in FORMATS:
            return FORMATS[name](value, *argument)
        if isinstance(value, tuple):
            return ", ".join(words(each) if isinstance(each, Finding) else each for each in value)
        return format(value, format_spec)


def found(code: str, about: str = "", /, **values: FindingValue) -> Finding:
    """A finding of this code. about: see `Finding.about`; the run, if it is empty as the name of the only host is."""
    return Finding(code=code, severity=TABLE[code].severity, about=about or "run", values=values)


def words(finding: Finding) -> str:
    """What a finding says."""
    return _written(TABLE[finding.code].words, finding.values)


def in_full(finding: Finding) -> str:
    """What a finding says, after the name of what it is about."""
    return words(finding) if finding.about == "run" else f"{finding.about}: {words(finding)}"


def remedy(finding: Finding) -> str:
    """What the reader can do about it. Empty if no remedy is known."""
    return _written(TABLE[finding.code].remedy, finding.values)


def words_of_all(findings: Iterable[Finding]) -> str:
    """What findings of one code say whose values differ in numbers only: kept 1.04 to 1.65 of 2 CPUs busy."""
    first, *others = findings
    return _written(TABLE[first.code].words, {name: _over(value, name, others) for name, value in first.values.items()})


def is_like(finding: Finding) -> tuple[object, ...]:
    """Equal for findings that differ in numbers only."""
    texts = (str(value) for value in finding.values.values() if not _is_number(value))
    return finding.code, finding.severity, *texts


def _over(value: FindingValue, name: str, others: Iterable[Finding]) -> object:
    numbers = [value, *(other.values[name] for other in others)]
    return Span(min(numbers), max(numbers)) if _is_number(value) else value  # type: ignore[arg-type]  # all are numbers


def _is_number(value: FindingValue) -> bool:
    return isinstance(value, (int, float))


def _written(template: str, values: Mapping[str, object]) -> str:
    return _Words().vformat(template, (), values)
