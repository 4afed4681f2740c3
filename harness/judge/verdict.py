"""The verdict: in one word with its reasons, whether the figures of a result can be relied on.

    solid        at least three runs know the figure that is shown to ±3 %
    fair         it is known to ±10 %
    rough        it is known less well, as a range only, or without an error margin
    disturbed    something biased it, so that no margin helps: measure again
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
from mixmark.harness.contracts.schema import Finding, FindingValue
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import (
    AGAIN,
    CODES,
    case_of,
    declare,
    disturbs,
    found,
    in_full,
    note,
    remedy,
    warning,
)
from mixmark.harness.judge.rules import registered
from mixmark.harness.judge.score import RANKED_RUNS, widest
from mixmark.harness.judge.solo import Solo
from mixmark.harness.plan.presets import longer

VerdictWord = Literal["solid", "fair", "rough", "disturbed", "partial", "invalid", "unfinished"]

SOLID_RUNS = 3
SOLID_HALF_WIDTH = 0.03
FAIR_HALF_WIDTH = 0.10


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
        """The reasons as one phrase. Of more than three, two in full, and where a report lists all of them."""
        texts = [text for text, _ in self.in_words]
        if (more := len(texts) - 2) > 1:
            texts[2:] = [f"and {counted(more, 'more reason')}: see Findings (report --verbose)"]
        return "; ".join(texts)

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

    disturbances: of the records that the figure shown is of; see `rules.registered`. solos: the solo measurements over
    their runs. exit_code: of the command.
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
    lacking, noticed = tuple(_lacking(evidence, solos)), tuple(_noticed(evidence, findings))
    word, margin = _margin(evidence, solos, noticed)
    warnings = tuple(each for each in noticed if each.severity == "warning")
    if word != "solid":
        return Verdict(word, (*lacking, margin, *noticed))
    return Verdict("fair", (*lacking, *warnings, margin)) if lacking or warnings else Verdict("solid", (margin,))


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
    figure counts are left out, and what only explains a margin if it is about another record than that of the figure
    shown."""
    about: dict[str, set[str]] = defaultdict(set)
    whole, own = ({each.key for each in some} for some in (evidence.measured, evidence.counted))
    shown = {each.key for each in evidence.figured}
    for finding in findings:
        case = CODES.get(f"{finding.rule}.noticed")
        left_out = whole - (shown if case and case.severity == "note" else own)
        if finding.severity == "warning" and finding.about not in left_out:
            about[finding.rule].add(finding.about)
    for rule in (each.name for each in registered.in_order() if each.name in about):
        share = registered.share(sum(each.key in about[rule] for each in evidence.counted), len(evidence.counted))
        if noticed := case_of(rule, "noticed", share=share):
            yield noticed


declare(
    "score_graded",
    bracket=note("the window was too short for this machine: the score is known as a range only", "{longer}"),
    agree=note("{runs} runs agree within ±{widest_pct:.1f} %"),
    known=note("{runs:counted run}, known to ±{widest_pct:.1f} %: {why}", "{remedy}"),
    unknown=note("{runs:counted run}, without an error margin: {why}", "{remedy}"),
)
declare(
    "margin",
    shared=note("this virtual machine shares its host, whose speed changed meanwhile", "another hour may be steadier"),
    changed=note("the speed of the machine changed meanwhile", AGAIN),
    few=note(f"it takes {SOLID_RUNS} runs to show how far runs differ"),
    asked=note("a server's rate is the one that was asked for"),
    feeds=note("single outputs take so long that few of them show how the speed varies"),
    short=note("the window was too short to show how the speed varies"),
    floor=note("by the self-test, runs on this machine differ by as much"),
)


def _lacking(evidence: Evidence, solos: Sequence[Solo]) -> Iterator[Finding]:
    """What keeps figures from being solid, however well they are known."""
    if evidence.result.tier == "smoke":
        yield found("score_graded.smoke")
    for why in sorted({"hosted" if solo.route.hosted else "no gate" for solo in solos if solo.status == "unaudited"}):
        yield found("audited.unasked", why=why)


def _margin(evidence: Evidence, solos: Sequence[Solo], noticed: Sequence[Finding]) -> tuple[VerdictWord, Finding]:
    """The word by the margin of the figure that is shown, and the largest cause of it."""
    score, (runs, known) = evidence.score, _agreement(evidence, solos)
    if score and score.mixes_per_hour and score.mixes_per_hour.is_bracket:
        return "rough", found("score_graded.bracket", longer=longer(max(run.length_ns for run in score.runs)))
    if known is not None and known <= SOLID_HALF_WIDTH and runs >= SOLID_RUNS:
        return "solid", found("score_graded.agree", runs=runs, widest_pct=known * 100)
    why = _cause(evidence, solos, runs, known, noticed)
    more = f"--preset ranked makes {RANKED_RUNS} runs of the mix" if score else "--runs 5 shows how far runs differ"
    values: dict[str, FindingValue] = {
        "runs": runs,
        "why": (why,),
        "remedy": more if runs < SOLID_RUNS else remedy(why),
    }
    if known is None:
        return "rough", found("score_graded.unknown", **values)
    return "fair" if known <= FAIR_HALF_WIDTH else "rough", found(
        "score_graded.known", widest_pct=known * 100, **values
    )


def _cause(
    evidence: Evidence, solos: Sequence[Solo], runs: int, known: float | None, noticed: Sequence[Finding]
) -> Finding:
    """What widens the figure that is shown most."""
    run = evidence.runs[0] if evidence.score and runs == 1 else None
    if known is not None and known <= SOLID_HALF_WIDTH:
        return found("margin.few")
    if run and run.widened_by != "speed":
        return found(f"margin.{run.widened_by}")
    if not evidence.score and known is None:
        unknown = [solo for solo in solos if solo.stands and solo.units_per_s and solo.units_per_s.half_width is None]
        windows = {each.key: each.window for each in evidence.figured}
        if any(solo.scenario == "server" for solo in unknown):
            return found("margin.asked")
        if any(window is None or window.steady is None for window in (windows.get(solo.key) for solo in unknown)):
            return found("margin.short")
    seen = (each for each in noticed if disturbs(each) == "explains")
    virtual = any(system.virtualization for system in evidence.result.systems.values())
    return next(seen, found("margin.shared" if virtual else "margin.changed"))


def _agreement(evidence: Evidence, solos: Sequence[Solo]) -> tuple[int, float | None]:
    """The runs of the score, or the fewest of a solo measurement, and the half-width of the least certain figure. None
    if a figure has no interval. No runs: nothing stands."""
    if score := evidence.score:
        return len(score.counted()), widest(score.mixes_per_hour, score.mixes_per_kwh)
    rates = [(solo.runs, solo.units_per_s.half_width) for solo in solos if solo.stands and solo.units_per_s]
    widths = [width for _, width in rates if width is not None]
    known = max(widths, default=0.0) if len(widths) == len(rates) else None
    return min((runs for runs, _ in rates), default=0), known
