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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import case_of, declare, found, in_full, note, remedy, warning
from mixmark.harness.judge.rules import registered
from mixmark.harness.judge.score import SOLID_HALF_WIDTH, widest
from mixmark.harness.judge.solo import Solo
from mixmark.harness.plan.presets import longer

VerdictWord = Literal["solid", "fair", "disturbed", "partial", "invalid", "unfinished"]

SOLID_RUNS = 2  # one run does not show how far runs differ


@dataclass(frozen=True)
class Verdict:
    """The verdict with its reasons, the most serious first."""

    word: VerdictWord
    """The verdict itself."""
    reasons: tuple[Finding, ...]
    """Each is about the run, or about a route by its label."""

    @property
    def in_words(self) -> list[tuple[str, str]]:
        """(what it says, what the reader can do about it or an empty text) of each reason."""
        return [(in_full(reason), remedy(reason)) for reason in self.reasons]

    @property
    def reason(self) -> str:
        """The reasons as one phrase, at most two in full."""
        shown = [text for text, _ in self.in_words[:2]]
        more = len(self.reasons) - len(shown)
        return "; ".join(shown) + (f"; and {counted(more, 'more reason')}" if more else "")

    @property
    def remedy(self) -> str:
        """What the reader can do about the most serious reason that has a remedy."""
        return next(filter(None, map(remedy, self.reasons)), "")

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


def verdict(
    evidence: Evidence,
    findings: Sequence[Finding],
    solos: Sequence[Solo],
    exit_code: int,
    disturbances: Sequence[Finding] = (),
) -> Verdict:
    """The verdict over all findings.

    disturbances: see `rules.registered`. solos: the solo measurements over their runs. exit_code: of the command.
    """
    if evidence.result.live:
        return Verdict("unfinished", (found("finished.live"),))
    if exit_code == 130:
        return Verdict("unfinished", (found("finished.interrupted"),))
    if exit_code:
        return Verdict("invalid", tuple(_wrong(evidence, findings)) or (found("finished.nothing"),))
    if disturbances:
        return Verdict("disturbed", tuple(disturbances))
    if problems := evidence.score.problems if evidence.score else ():  # warnings, since the exit code is 0
        return Verdict("partial", (_partial(evidence, solos, problems[0]), *_noticed(evidence, findings)))
    if little := (*_missing(evidence, solos), *_noticed(evidence, findings)):
        return Verdict("fair", little)
    runs, known = _agreement(evidence, solos)
    return Verdict("solid", (found("score_graded.agree", runs=runs, widest_pct=(known or 0.0) * 100),))


def _wrong(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The invalid findings, but of several that say the same only the first."""
    labels = {record.key: record.route.label for record in evidence.result.records}
    said = list[tuple[str, object]]()
    for finding in findings:
        if finding.severity == "invalid" and (same := (finding.code, finding.values)) not in said:
            said.append(same)
            yield finding.model_copy(update={"about": labels.get(finding.about, "run")})


declare(
    "mix_complete",
    partial=warning(
        "no score: {why}; the figures of {known} of {suites} suites, each measured alone, stand", "{remedy}"
    ),
)


def _partial(evidence: Evidence, solos: Sequence[Solo], problem: Finding) -> Finding:
    suites = evidence.result.mix.units if evidence.result.mix else {}
    known = {solo.route.suite for solo in solos if solo.stands}.intersection(suites)
    remedy = "--device names the devices to measure"
    if not evidence.runs:
        remedy = "--mix none measures the suites alone and asks for no mix"
    elif problem.code == "mix_complete.no_feed":
        remedy = longer(max(run.length_ns for run in evidence.runs))
    return found("mix_complete.partial", known=len(known), suites=len(suites), why=(problem,), remedy=remedy)


def _noticed(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The warnings, each rule once, with the number of measurements that it is about. Warnings about records that no
    figure counts are left out."""
    about: dict[str, set[str]] = defaultdict(set)
    left_out = {measured.key for measured in evidence.measured} - {measured.key for measured in evidence.counted}
    for finding in findings:
        if finding.severity == "warning" and finding.about not in left_out:
            about[finding.rule].add(finding.about)
    for rule in (each.name for each in registered.in_order() if each.name in about):
        share = registered.share(sum(each.key in about[rule] for each in evidence.counted), len(evidence.counted))
        if noticed := case_of(rule, "noticed", share=share):
            yield noticed


declare(
    "score_graded",
    bracket=note("the window was too short for this machine: the score is known as a range only", "{longer}"),
    one_run=note("one run of the mix does not show how far runs differ", "--preset ranked makes three runs of the mix"),
    wide=note("a figure is known to ±{widest_pct:.0f} %"),
    agree=note("{runs} runs agree within ±{widest_pct:.1f} %, and nothing disturbed them"),
)


def _missing(evidence: Evidence, solos: Sequence[Solo]) -> Iterator[Finding]:
    """What the figures lack to be solid."""
    if evidence.result.tier == "smoke":
        yield found("score_graded.smoke")
    for why in sorted({"hosted" if solo.route.hosted else "no gate" for solo in solos if solo.status == "unaudited"}):
        yield found("audited.unasked", why=why)
    score, (runs, known) = evidence.score, _agreement(evidence, solos)
    if score and score.mixes_per_hour and score.mixes_per_hour.is_bracket:
        yield found("score_graded.bracket", longer=longer(max(run.length_ns for run in score.runs)))
    elif 0 < runs < SOLID_RUNS:
        yield found("score_graded.one_run" if score else "interval_known.one_run")
    elif known is None:
        yield found("score_graded.apart")
    elif known > SOLID_HALF_WIDTH:
        yield found("score_graded.wide", widest_pct=known * 100)


def _agreement(evidence: Evidence, solos: Sequence[Solo]) -> tuple[int, float | None]:
    """The runs of the score, or the fewest of a solo measurement, and the half-width of the least certain figure. None
    if a figure has no interval. No runs: nothing stands."""
    if score := evidence.score:
        return len(score.counted()), widest(score.mixes_per_hour, score.mixes_per_kwh)
    rates = [(solo.runs, solo.units_per_s.half_width) for solo in solos if solo.stands and solo.units_per_s]
    widths = [width for _, width in rates if width is not None]
    known = max(widths, default=0.0) if len(widths) == len(rates) else None
    return min((runs for runs, _ in rates), default=0), known
