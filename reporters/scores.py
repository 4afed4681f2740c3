"""The score and what explains it: the run with the median TX, its devices and hosts, the plan, the other runs."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Mix, Placement, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.diagnosis import Diagnosis
from mixmark.harness.judge.energy.total import ready_watts
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.mixed_run import HOUR_S, KWH_J, ScoredRun
from mixmark.harness.judge.score import Score
from mixmark.reporters import figures, hosts
from mixmark.reporters.document import Facts, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN, significant
from mixmark.reporters.summary import limits

PROVEN = "proven for the measured rates: no other division of time does more"
STEADINESS = {True: "steady", False: "not steady", None: "too short to tell whether it was steady"}

FASTER = (
    "Above 100 % a suite was faster in the mix than alone: its feeds overlapped, or the machine was slower when the "
    "suite ran alone."
)


def explained(assessment: Assessment) -> Iterator[Paragraph | Facts | Table]:
    """Nothing if there is no score. Figures of a single run come from the run with the median TX."""
    found = assessment.score
    if found is None:
        return
    facts = [] if found.problems else [("grade", found.graded)]
    tables: list[Table | Paragraph] = []
    facts.append(("mixed runs", f"{counted(found.started, 'run')} begun, {len(found.counted())} in the figures"))
    if run := found.median_run():
        diagnosis = assessment.diagnoses[run.phase]
        facts += _facts(run, diagnosis, assessment.result)
        tables += [_streams(run, found.mix), _parts(diagnosis, hosts.shown(assessment))]
        if any(part.retained is not None and part.retained > 1.005 for part in diagnosis.parts):
            tables.append(Paragraph(FASTER, style="quiet"))
    if len(found.runs) > 1:
        tables.append(_runs(assessment, found))
    yield Paragraph(limits(assessment))
    yield Facts(facts)
    yield from tables


def _facts(run: ScoredRun, diagnosis: Diagnosis, result: Result) -> list[tuple[str, str]]:
    joules = UNKNOWN
    if run.total.joules is not None:
        watts = figures.prefixed(run.total.watts, "W")
        joules = (
            f"{figures.prefixed(run.total.joules, 'J')} of the {run.total.boundary}, {watts} on average, idle included"
        )
    estimated = ", an estimate, since a device ran several feeds at a time" if diagnosis.bound_is_estimate else ""
    proof = f"NOT PROVEN: {'; '.join(map(words, diagnosis.unproven))}" if diagnosis.unproven else PROVEN
    most = f"{significant(diagnosis.bound_per_hour.estimate)} mixes per hour{estimated}; {proof}"
    facts = [
        ("window", f"{run.phase}: {figures.duration(run.length_ns)}, {STEADINESS[run.steady]}"),
        ("completed", f"{significant(run.mixes)} mixes"),
        ("energy", joules),
        *_idle(run, result),
        ("most by the solo rates, λ*", most),
        ("reached, κ", _interval(diagnosis.kappa)),
        ("surplus", f"{figures.percent(run.surplus)} of the work, which no mix counts"),
        ("plan", _plan(diagnosis.plan, run)),
    ]
    if diagnosis.heterogeneity_gain is not None:
        gain = significant(diagnosis.heterogeneity_gain)
        facts.append(("heterogeneity gain", f"{gain} × the most that the {diagnosis.best_kind} devices alone allow"))
    return facts


def _idle(run: ScoredRun, result: Result) -> Iterator[tuple[str, str]]:
    """The power at rest around a run: without any worker, and with everything loaded."""
    bare = [watts for watts in run.total.idle_watts if watts is not None]
    ready = ready_watts(result, run.phase)
    told = [f"bare {figures.prefixed(sum(bare) / len(bare), 'W')}"] if bare else []
    told += [f"ready {figures.prefixed(ready, 'W')}, with everything loaded"] if ready is not None else []
    if told:
        yield "idle", "; ".join(told)


def _interval(figure: Estimate) -> str:
    """A fraction with its interval: 73 % (71 to 75 %)."""
    if figure.low is None or figure.high is None:
        return f"{figure.estimate * 100:.1f} %"
    return f"{figure.estimate * 100:.1f} % ({figure.low * 100:.1f} to {figure.high * 100:.1f} %)"


def _plan(plan: Placement, run: ScoredRun) -> str:
    """A plan in words. Its predicted efficiency is left out if none was measured."""
    text = f"for {plan.objective}: {significant(plan.mixes_per_s * HOUR_S)} mix/h"
    if not plan.watts or run.mixes_per_kwh is None:
        return text
    efficiency = significant(KWH_J * plan.mixes_per_s / plan.watts)
    return f"{text}, {figures.prefixed(plan.watts, 'W')}, {efficiency} mix/kWh predicted"


def _streams(run: ScoredRun, mix: Mix) -> Table:
    rows = [
        (
            figures.name(stream.suite),
            significant(mix.units[stream.suite]),
            f"{stream.units:,}",
            significant(stream.mixes),
            f"{stream.feeds:,}",
            f"{stream.late:,}",
            f"{stream.audited:,}",
        )
        for stream in run.suites
    ]
    return Table("Streams", ("suite", "units a mix", "units", "mixes", "feeds", "late", "audited"), rows)


def _parts(diagnosis: Diagnosis, names: dict[str, str]) -> Table:
    rows: list[tuple[str, ...]] = []
    for device, busy in ((device, busy) for device, busy in diagnosis.busy.items() if device in names):
        own = [part for part in diagnosis.parts if part.device == device]
        for index, part in enumerate(own):
            solo = UNKNOWN if part.solo_units_per_s is None else f"{significant(part.solo_units_per_s)}/s"
            rows.append(
                (
                    names[device] if index == 0 else "",
                    figures.name(part.suite),
                    figures.whole_percent(busy) if index == 0 else "",
                    figures.whole_percent(part.planned),
                    f"{significant(part.units_per_s)}/s",
                    solo,
                    figures.whole_percent(part.retained),
                )
            )
        if not own:
            rows.append((names[device], UNKNOWN, figures.whole_percent(busy), *[UNKNOWN] * 4))
    header = ("device", "suite", "busy", "planned", "in the mix", "alone", "mix / alone")
    return Table("Devices", header, rows, text_columns=2)


def _runs(assessment: Assessment, found: Score) -> Table:
    left_out = found.left_out
    rows = [
        (
            f"{run.phase}, left out" if run.phase in left_out else run.phase,
            figures.duration(run.length_ns),
            significant(run.mixes),
            figures.estimate(run.mixes_per_hour),
            figures.estimate(run.mixes_per_kwh),
            significant(assessment.diagnoses[run.phase].kappa.estimate),
        )
        for run in found.runs
    ]
    return Table("Runs", ("run", "window", "mixes", "mix/h", "mix/kWh", "κ"), rows)
