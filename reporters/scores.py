"""The score and what explains it: the run with the median TX, its devices and hosts, the plan, the other runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.schema import Mix, Placement, Result, System
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.diagnosis import Diagnosis
from mixmark.harness.judge.findings import in_full, words
from mixmark.harness.judge.mixed_run import HOUR_S, KWH_J, ScoredRun
from mixmark.harness.judge.score import Score
from mixmark.reporters import figures, loads
from mixmark.reporters.document import Facts, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN, significant
from mixmark.reporters.summary import summary

STEADINESS = {True: "steady", False: "not steady", None: "too short to tell whether it was steady"}
MOST = 12  # hosts that a table lists; the others are in the JSON
YES_OR_NO = {True: "yes", False: "NO", None: "not known"}


def explained(assessment: Assessment) -> Iterator[Paragraph | Facts | Table]:
    """Nothing if there is no score. Figures of a single run come from the run with the median TX."""
    found = assessment.score
    if found is None:
        return
    facts, tables = [] if found.problems else [("grade", found.graded)], []
    if run := found.median_run():
        diagnosis = assessment.diagnoses[run.phase]
        facts += [*_facts(run, diagnosis, assessment.result), *_nominal(found), *_traffic(run), *_unscaled(assessment)]
        tables += [_streams(run, found.mix), _parts(diagnosis, figures.device_names(assessment.result))]
        tables += [_hosts(run), _scaling(assessment)]
    if len(found.runs) > 1:
        tables.append(_runs(assessment, found))
    yield Paragraph(summary(assessment).limits)
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
    proof = f"NOT PROVEN: {'; '.join(map(words, diagnosis.unproven))}" if diagnosis.unproven else "proven by its prices"
    if diagnosis.faster and not diagnosis.unproven:
        proof = (
            f"with the rates in the mix of {', '.join(f'{part.suite} on {part.device}' for part in diagnosis.faster)}"
        )
    facts = [
        ("window", f"{run.phase}: {figures.duration(run.length_ns)}, {STEADINESS[run.steady]}"),
        ("completed", f"{significant(run.mixes)} mixes"),
        ("energy", joules),
        *loads.idle(run, result),
        ("best possible, λ*", f"{significant(diagnosis.bound_per_hour)} mixes per hour{estimated}, {proof}"),
        ("reached, κ", _interval(diagnosis.kappa)),
        ("surplus", f"{figures.percent(run.surplus)} of the work, which no mix counts"),
        ("plan", _plan(diagnosis.plan, run)),
    ]
    if diagnosis.other_plan is not None:
        facts.append(("the other plan", _plan(diagnosis.other_plan, run)))
    if diagnosis.heterogeneity_gain is not None:
        gain = significant(diagnosis.heterogeneity_gain)
        facts.append(("heterogeneity gain", f"{gain} × the best possible of the {diagnosis.best_kind} devices alone"))
    return facts


def _nominal(found: Score) -> Iterator[tuple[str, str]]:
    """The speed relative to the device for which the mix was made."""
    flops, bytes_per_s = found.mix.nominal_flops_per_s, found.mix.nominal_bytes_per_s
    if flops and bytes_per_s and found.mix.frozen and found.mixes_per_hour is not None:
        percent = significant(found.mixes_per_hour.estimate / HOUR_S * 100, 2)  # which does a mix a second
        nominal = f"{figures.prefixed(flops, 'FLOP/s')} and {figures.prefixed(bytes_per_s, 'B/s')}"
        yield "nominal device", f"{percent} % of the speed of one with {nominal} all the time"


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
    for device, busy in diagnosis.busy.items():
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
    header = ("device", "suite", "busy", "planned", "in the mix", "solo", "retained")
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


def groups(result: Result) -> Iterator[tuple[str, System]]:
    """("2 hosts: host1, host2", their system) of each group of equal hosts, or of the machine."""
    if not result.hosts:
        yield "machine", result.system
    for group in result.hosts:
        yield f"{figures.counted(len(group.names), 'host')}: {_listed(group.names)}", group.system


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")


def _traffic(run: ScoredRun) -> Iterator[tuple[str, str]]:
    """How well the clocks of a run's hosts were known, and whether the run was self-contained."""
    if not run.traffic:
        return
    longer = figures.duration(2 * run.clock_bound_ns)
    yield "clocks", f"known to ±{figures.duration(run.clock_bound_ns)}; the window is counted {longer} longer for it"
    outside = sum(traffic.outside_bytes for traffic in run.traffic)
    agents = sum(traffic.agent_bytes for traffic in run.traffic)
    answers = {traffic.self_contained for traffic in run.traffic}
    known = "self-contained" if None not in answers else "self-contained as far as known"
    conclusion = "not self-contained" if False in answers else known
    carried = f"{figures.prefixed(outside, 'B')} beside the agents' own {figures.prefixed(agents, 'B')}"
    yield "traffic", f"{carried}: {conclusion}"


def _hosts(run: ScoredRun) -> Table:
    """The traffic of the hosts with the most other traffic."""
    rows = [
        (
            traffic.host,
            figures.prefixed(traffic.agent_bytes, "B"),
            figures.prefixed(traffic.outside_bytes, "B") if traffic.seconds else UNKNOWN,
            figures.prefixed(traffic.outside_per_s, "B/s") if traffic.seconds else UNKNOWN,
            YES_OR_NO[traffic.self_contained],
        )
        for traffic in sorted(run.traffic, key=lambda traffic: -traffic.outside_per_s)[:MOST]
    ]
    return Table("Hosts", ("host", "its agent", "other traffic", "a second", "self-contained"), rows)


def _scaling(assessment: Assessment) -> Table:
    """The mix on the first hosts and on all of them."""
    rows = [
        (
            str(len(step.hosts)),
            figures.estimate(step.mixes_per_hour),
            figures.estimate(step.mixes_per_kwh),
            significant(step.bound_per_hour),
            figures.whole_percent(step.efficiency),
        )
        for step in assessment.scaling
    ]
    return Table("Scaling", ("hosts", "mix/h", "mix/kWh", "λ*", "efficiency"), rows)


def _unscaled(assessment: Assessment) -> Iterator[tuple[str, str]]:
    """Why a step of the scaling has no rate or no efficiency. The last step is the score, which has its own reason."""
    for step in assessment.scaling[:-1]:
        if why := "; ".join(map(in_full, step.problems)) or step.unmeasured:
            lacks = "no rate" if step.problems else "no mix/kWh"
            yield f"on {figures.counted(len(step.hosts), 'host')}", f"{lacks}: {why}"
