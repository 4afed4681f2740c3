"""The verdict: in one word with its reasons, whether the figures of a result can be relied on.

    solid        several runs agree within ±5 %, and nothing disturbed them
    fair         nothing disturbed the measurement much, but something is missing or was noticed: the reasons say what
    disturbed    something changed the figures by more than a reader would accept: measure again
    partial      the solo measurements stand, and there is no score: the mix could not be run, because a suite of it has
                 no figure or memory lacks, its window was too short for the machine, or a simulated device took part
    invalid      something failed or is wrong, so that the command exits with 1
    unfinished   the run was interrupted

No reason changes a figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mixmark.harness.contracts.numbers import change
from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge import disturbance
from mixmark.harness.judge.disturbance import MUCH_FOREIGN, MUCH_STOLEN
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.mixed_run import HOUR_S, ScoreProblem
from mixmark.harness.judge.rules.interference import speed_drifts
from mixmark.harness.judge.rules.records import interval_known
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo
from mixmark.harness.plan.presets import longer

VerdictWord = Literal["solid", "fair", "disturbed", "partial", "invalid", "unfinished"]

MUCH_DRIFT = 0.25  # of a probe's figure: the machine at the end is not the machine at the start
MUCH_MOVED = 0.05  # of a window's throughput, by a stretch of it that ran at another level
SOLID_HALF_WIDTH = 0.05
SOLID_RUNS = 2  # one run does not show how far runs differ

AGAIN = "run again on an idle machine, or with --wait-idle 60"


@dataclass(frozen=True)
class VerdictReason:
    """Why a result is not solid."""

    rule: str
    """The rule whose finding, or whose figure, it rests on."""
    text: str
    remedy: str = ""
    """What the reader can do about it. Empty: no remedy is known."""


@dataclass(frozen=True)
class Verdict:
    """The verdict with its reasons, the most serious first."""

    word: VerdictWord
    """The verdict itself."""
    reasons: tuple[VerdictReason, ...]

    @property
    def reason(self) -> str:
        """The reasons as one phrase, at most two in full."""
        shown = [reason.text for reason in self.reasons[:2]]
        more = len(self.reasons) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "")

    @property
    def remedy(self) -> str:
        """What the reader can do about the most serious reason that has a remedy."""
        return next((reason.remedy for reason in self.reasons if reason.remedy), "")

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


def verdict(evidence: Evidence, findings: Sequence[Finding], solos: Sequence[Solo], exit_code: int) -> Verdict:
    """The verdict over all findings.

    solos: the solo measurements over their runs. exit_code: that of the command.
    """
    if evidence.result.live:
        return Verdict("unfinished", (VerdictReason("finished", "the run is still going on"),))
    if exit_code == 130:
        interrupted = VerdictReason("finished", "the run was interrupted", "continue it with --resume")
        return Verdict("unfinished", (interrupted,))
    if exit_code:
        nothing = VerdictReason("finished", "nothing was measured")
        return Verdict("invalid", tuple(_wrong(evidence, findings)) or (nothing,))
    if much := disturbances(evidence):
        return Verdict("disturbed", much)
    if problems := evidence.score.problems if evidence.score else ():  # harmless ones: of others the exit code is 1
        return Verdict("partial", (_partial(evidence, solos, problems[0]), *_noticed(evidence, findings)))
    if little := (*_missing(evidence, solos), *_noticed(evidence, findings)):
        return Verdict("fair", little)
    return Verdict("solid", (VerdictReason("", _agreement(evidence, solos)),))


def disturbances(evidence: Evidence) -> tuple[VerdictReason, ...]:
    """Why a result is disturbed. Empty: it is not."""
    return tuple(reason for check in DISTURBED for reason in check(evidence))


def _wrong(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[VerdictReason]:
    """Each message of an invalid finding once."""
    labels = {record.key: f"{record.route.label}: " for record in evidence.result.records}
    invalid = [finding for finding in findings if finding.severity == "invalid"]
    for (message, rule), label in {(each.message, each.rule): labels.get(each.about, "") for each in invalid}.items():
        yield VerdictReason(rule, label + message)


def _partial(evidence: Evidence, solos: Sequence[Solo], problem: ScoreProblem) -> VerdictReason:
    suites = evidence.result.mix.units if evidence.result.mix else {}
    known = {solo.route.suite for solo in solos if solo.status == "ok"}.intersection(suites)
    text = f"{len(known)} of {len(suites)} suites of the mix were measured alone; {problem.text}"
    remedy = "--mix none measures the suites alone and asks for no mix"
    if evidence.runs:
        slow = longer(max(run.length_ns for run in evidence.runs))
        remedy = slow if problem.suite else "--device names the devices to measure"
    return VerdictReason("mix_complete", text, remedy)


def loaded(evidence: Evidence) -> Iterator[VerdictReason]:
    """Other programs used much of the machine."""
    used = [
        (disturbance.foreign(measured), measured.host or "the machine")
        for measured in evidence.counted
        if measured.foreign_cores
    ]
    most, where = max(used, default=(0.0, ""))
    if most > MUCH_FOREIGN:
        text = f"other programs used up to {most * 100:.0f} % of {where}"
        count = _count([fraction > MUCH_FOREIGN for fraction, _ in used])
        yield VerdictReason("no_foreign_load", text + count, AGAIN)


def stolen(evidence: Evidence) -> Iterator[VerdictReason]:
    """The hypervisor gave much of the CPUs' time to others."""
    taken = [(disturbance.stolen(measured), measured.host) for measured in evidence.counted if measured.stolen]
    most, host = max(taken, default=(0.0, ""))
    if most > MUCH_STOLEN:
        cpus = f"the time of the CPUs of {host}" if host else "the CPUs' time"
        text = f"the hypervisor gave up to {most * 100:.0f} % of {cpus} to others"
        count = _count([fraction > MUCH_STOLEN for fraction, _ in taken])
        yield VerdictReason("no_steal_time", text + count, "run again when the host is quiet")


def impossible(evidence: Evidence) -> Iterator[VerdictReason]:
    """The mix was faster than the rates alone allow, by more than its interval and theirs."""
    for run in evidence.runs:
        diagnosis = evidence.diagnoses.get(run.phase)
        if diagnosis is not None and not diagnosis.bound_is_estimate and diagnosis.lowest_of_plan(run) > 1:
            times = run.mixes_per_hour.estimate / (diagnosis.plan.bound_per_s * HOUR_S)
            text = f"the mix did {times:.2f} times what its devices alone allow, so those were slowed down"
            yield VerdictReason("mix_bounded", text, AGAIN)
            return


def drifted(evidence: Evidence) -> Iterator[VerdictReason]:
    """The machine changed speed between the start and the end of the run, and no runs of the mix show that this moved
    their score by little: a probe lasts for seconds, a mix for minutes."""
    far = [drift for _, _, drift, scatter in speed_drifts(evidence) if drift > max(MUCH_DRIFT, scatter)]
    widest = _widest(evidence.score) if evidence.score else None
    if far and (widest is None or widest > SOLID_HALF_WIDTH):
        text = f"the machine's speed drifted by {change(max(far))} during the run"
        yield VerdictReason("speed_stable", text, AGAIN)


def collapsed(evidence: Evidence) -> Iterator[VerdictReason]:
    """A stretch of a window ran at another level and moved the figure much."""
    moved = [
        measured.window.stretch.moved
        for measured in evidence.solo
        if measured.record.scenario != "server" and measured.window and measured.window.stretch
    ]
    moved += [run.stretch.moved for run in evidence.runs if run.stretch]
    most = max(moved, default=0.0)
    if most > MUCH_MOVED:
        text = f"a change of speed within a window moved its figure by {change(most)}"
        yield VerdictReason("steady", text + _count([fraction > MUCH_MOVED for fraction in moved]), AGAIN)


def wandering(evidence: Evidence) -> Iterator[VerdictReason]:
    """The speed in a window wandered so much that its figure has no interval."""
    unknown = sum(1 for _ in interval_known(evidence))
    if unknown:
        text = f"the speed wandered so much that {unknown} of {len(evidence.measured)} figures have no interval"
        yield VerdictReason("interval_known", text, AGAIN)


DISTURBED: tuple[Callable[[Evidence], Iterator[VerdictReason]], ...] = (
    loaded,
    stolen,
    impossible,
    drifted,
    collapsed,
    wandering,
)
"""The checks by which a result is disturbed."""

NOTICED: dict[str, tuple[str, str]] = {
    "seed_random": ("the inputs were known beforehand, by --seed", "leave --seed away"),
    "below_ceiling": ("a figure exceeds the ceilings that the probe measured", ""),
    "suites_verified": ("a suite is not installed here, so its records were not compared with its code", ""),
    "on_device": ("the driver saw hardly any work on an accelerator", ""),
    "accelerators_exclusive": ("other programs computed on an accelerator", "stop them"),
    "no_accelerator_throttling": ("an accelerator slowed down to protect itself", "improve its cooling or its supply"),
    "accelerators_watched": ("an accelerator could not be watched to the end", ""),
    "no_quota_throttling": ("a container's CPU quota ran out", "raise the quota"),
    "no_thermal_throttling": ("a CPU slowed down for heat", "improve its cooling"),
    "frequency_stable": ("a clock frequency fell", "fix the clocks; mixmark doctor says how"),
    "no_memory_pressure": ("programs waited for memory", "free some memory"),
    "no_paging": ("pages came from a disk or went there", "free some memory"),
    "wall_clock_steady": ("the wall clock was set, or the machine slept", ""),
    "speed_stable": ("the machine's speed drifted", "mixmark doctor lists what can disturb"),
    "batch_search_finished": ("the search for the best batch ran out of time", "a longer preset searches longer"),
    "steady": ("the speed was not steady", "mixmark doctor lists what can disturb"),
    "latency_within_limits": ("the latency limits were not kept", "a lower --rate"),
    "no_foreign_load": ("other programs ran", AGAIN),
    "no_steal_time": ("the hypervisor took CPU time away", ""),
    "canary_stable": ("a fixed loop changed its speed", "mixmark doctor lists what can disturb"),
    "device_busy": ("much time passed between the feeds", ""),
    "clocks_synchronised": ("the clock of a host is not known well", "a link of shorter round trips to it"),
    "accelerators_fed": ("few threads of a host feed its accelerators", ""),
    "network_quiet": ("the network carried traffic", ""),
    "energy_valid": ("an energy source gave no joules", "mixmark meters shows what it reads"),
    "energy_agrees": ("two energy sources disagree", "mixmark meters shows what they read"),
    "meter_timestamps_recent": ("the clock of a meter is late", ""),
    "low_metering_overhead": ("reading the meters took much CPU time", ""),
}
"""(what was noticed, its remedy) for each rule that warns, the most serious first."""
ELSEWHERE = ("finished", "mix_complete", "mix_bounded", "interval_known", "energy_complete")
"""The rules that warn and have a verdict of their own. The score itself says which part of the machine is not
metered."""


def _noticed(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[VerdictReason]:
    """The warnings, each rule once, with the number of measurements that it is about. Those about records that no
    figure counts are left out."""
    about: dict[str, set[str]] = defaultdict(set)
    left_out = {measured.key for measured in evidence.measured} - {measured.key for measured in evidence.counted}
    for finding in findings:
        if finding.severity == "warning" and finding.about not in left_out:
            about[finding.rule].add(finding.about)
    for rule, (text, remedy) in NOTICED.items():
        if rule in about:
            count = _count([measured.key in about[rule] for measured in evidence.counted])
            yield VerdictReason(rule, text + count, remedy)


def _missing(evidence: Evidence, solos: Sequence[Solo]) -> Iterator[VerdictReason]:
    """What the figures lack to be solid."""
    if evidence.result.tier == "smoke":
        yield VerdictReason("score_graded", "the smoke tier only shows that everything works", "--tier edge measures")
    yield from _missing_in_score(evidence.score) if evidence.score else _missing_in_solos(solos)


def _missing_in_score(score: Score) -> Iterator[VerdictReason]:
    widest = _widest(score)
    if score.mixes_per_hour and score.mixes_per_hour.is_bracket:
        text = "the window was too short for this machine: the score is known as a range only"
        yield VerdictReason("score_graded", text, longer(max(run.length_ns for run in score.runs)))
    elif len(score.counted()) < SOLID_RUNS:
        text = "one run of the mix does not show how far runs differ"
        yield VerdictReason("score_graded", text, "--preset ranked makes three")
    elif widest is None:
        yield VerdictReason("score_graded", "its runs are too far apart for an interval", AGAIN)
    elif widest > SOLID_HALF_WIDTH:
        yield VerdictReason("score_graded", f"the score is known to ±{widest * 100:.0f} %")


def _missing_in_solos(solos: Sequence[Solo]) -> Iterator[VerdictReason]:
    if any(solo.status == "unaudited" for solo in solos):
        yield VerdictReason("audited", "nobody can audit the outputs of a hosted service")
    measured = [solo for solo in solos if solo.status == "ok" and solo.units_per_s]
    if any(solo.runs < SOLID_RUNS for solo in measured):
        yield VerdictReason("interval_known", "one run does not show how far runs differ", "--runs 5 does")
    widths = [solo.units_per_s.half_width for solo in measured if solo.units_per_s and solo.runs >= SOLID_RUNS]
    known = [width for width in widths if width is not None]
    if len(known) < len(widths):
        yield VerdictReason("interval_known", "an interval over the runs is not known", "more --runs")
    elif (widest := max(known, default=0.0)) > SOLID_HALF_WIDTH:
        yield VerdictReason("interval_known", f"a figure is known to ±{widest * 100:.0f} %", "more --runs")


def _widest(score: Score) -> float | None:
    """The half-width of the less certain of MX and TX, since a reader relies on both. None: one is not known."""
    widths = [figure.half_width for figure in (score.mixes_per_kwh, score.mixes_per_hour) if figure is not None]
    known = [width for width in widths if width is not None]
    return max(known) if known and len(known) == len(widths) else None


def _agreement(evidence: Evidence, solos: Sequence[Solo]) -> str:
    score = evidence.score
    if score and (widest := _widest(score)) is not None:
        return f"{len(score.counted())} runs agree within ±{widest * 100:.1f} %, and nothing disturbed them"
    runs = min((solo.runs for solo in solos), default=0)
    return f"{runs} runs agree within ±{SOLID_HALF_WIDTH * 100:.0f} %, and nothing disturbed them"


def _count(hits: Sequence[bool]) -> str:
    """How many of several measurements a reason is about. Empty: it is about the whole run, or the only measurement."""
    return f" ({sum(hits)} of {len(hits)} measurements)" if any(hits) and len(hits) > 1 else ""
