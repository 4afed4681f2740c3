"""Rules about the quality of figures: whether each record, the mix and the energy have one, and how well it is known.

A record finished, is steady and precise, and kept its limits. The score is complete, bounded and graded, and the clocks
of its hosts are known. Each window has its joules, and sources of energy agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mixmark.harness.contracts.schema import Domain, Finding, FindingValue, Metering, Result
from mixmark.harness.judge.energy.coverage import antichain, lacking, unmetered_parts, why_no_boundary
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS, FEWEST_PERIODS, SHORT, TOO_SHORT
from mixmark.harness.judge.energy.total import CROSS_CHECK, MachineEnergy, disagreements, metered, to_meter, twins, why
from mixmark.harness.judge.evidence import Evidence, is_solo
from mixmark.harness.judge.findings import AGAIN, DOCTOR, READS, effect, explains, found, invalid, note, warning, widens
from mixmark.harness.judge.rules.registered import Room, share
from mixmark.harness.judge.solo_rates import COARSE, lenders
from mixmark.harness.judge.statistics import intervals
from mixmark.harness.plan import presets

MUCH_MOVED = 0.05  # of a window's throughput, by a stretch of it that ran at another level

room = Room(400)  # of the rules of records


@room.rule(
    weight=990,
    live=warning("the run is still going on"),
    interrupted=warning("the run was interrupted", "continue it with --resume"),
    nothing=invalid("nothing was measured"),
    failed=invalid("{kind}: {message}{hint:hint}"),
    refused=note("{kind}: {message}{hint:hint}"),
)
def finished(evidence: Evidence) -> Iterator[Finding]:
    """A failed attempt is invalid; refused or unsupported is a note; an interrupted run is a warning."""
    if evidence.result.live:
        yield found("finished.live")
    elif not evidence.result.finished:
        yield found("finished.interrupted")
    for record in evidence.result.records:
        if error := record.error:
            code = "finished.failed" if error.attempted else "finished.refused"
            yield found(code, record.key, kind=error.kind, message=error.message, hint=error.hint)


@room.rule(
    warning("the search for the best batch ran out of time: none above {largest} was tried"),
    weight=600,
    noticed=note("the search for the best batch ran out of time{share:share}", "a longer preset searches longer"),
)
def batch_search_finished(evidence: Evidence) -> Iterator[Finding]:
    """The largest batch that was tried is not the best one if the search ended for lack of time: a larger batch may be
    better still."""
    for record in evidence.result.records:
        if record.search_ended_by == "time" and not record.screening:
            largest = max(trial.batch for trial in record.trials)
            if record.batch == largest:
                yield found("batch_search_finished", record.key, largest=largest)


@room.rule(
    warning(
        "not steady: a stretch{begin_s:from}{end_s:to}{window_s:of} ran at "
        "{rate_pct:.0f} % of the rate of the rest, without which the {figure} would be {moved_pct:.1f} % {other}"
    ),
    weight=600,
    much=widens("a change of speed within a window moved its figure by {moved:percent}{share:share}", AGAIN),
    unknown=note("too few feeds to tell whether it was steady: {needed} are needed"),
    noticed=note("the speed was not steady{share:share}", DOCTOR),
)
def steady(evidence: Evidence) -> Iterator[Finding]:
    """No stretch of a closed loop's window, or of a mixed run's, ran at another level than the rest of it. For
    the test fewer than 20 blocks are too few, which is a note."""
    moved: list[float] = []
    for measured in evidence.solo:
        if measured.record.scenario == "server":
            continue
        window = measured.window
        if window is not None and window.stretch is not None:
            values = window.stretch.values(window.blocks.edges_ns)
            yield found("steady", measured.key, figure="throughput", **values)
            moved.append(window.stretch.moved)
        elif window is None or window.steady is None:
            yield found("steady.unknown", measured.key, needed=intervals.FEWEST_BLOCKS)
    for run in evidence.runs:
        if run.stretch is not None:
            values = run.stretch.values(np.array(run.edges_ns))
            yield found("steady", run.phase, figure="mixes per hour", **values)
            moved.append(run.stretch.moved)
    if (most := max(moved, default=0.0)) > MUCH_MOVED:
        yield found("steady.much", moved=most, share=share(sum(each > MUCH_MOVED for each in moved), len(moved)))


@room.rule(
    warning(
        "the interval of the throughput is not known: it is wider than ±{widest_pct:g} %, or the rate wanders so "
        "slowly that its blocks are worth fewer than {fewest} independent ones"
    ),
    weight=600,
    much=widens("{unknown} of {figures} figures varied too much for an error margin", AGAIN),
)
def interval_known(evidence: Evidence) -> Iterator[Finding]:
    """A steady window has an interval of its throughput: its blocks are worth at least 4 independent ones, and the
    interval is no wider than ±25 %."""
    closed = (each for each in evidence.solo if each.record.scenario != "server" and not each.interval)
    unknown = [each.key for each in closed if each.window is not None and each.window.steady]
    for key in unknown:
        yield found("interval_known", key, widest_pct=intervals.WIDEST * 100, fewest=intervals.FEWEST_INDEPENDENT)
    if unknown:
        yield found("interval_known.much", unknown=len(unknown), figures=len(evidence.measured))


@room.rule(
    weight=600,
    broken=warning("the latency limits are not kept at {percentile}"),
    open=note("whether the latency limits are kept is open: {percentile} needs {needed} feeds"),
    noticed=warning("the latency limits were not kept{share:share}", "a lower --rate"),
)
def latency_within_limits(evidence: Evidence) -> Iterator[Finding]:
    """A server keeps the suite's latency limits in its window, also at a rate that its own search found."""
    for measured in evidence.measured:
        limits = measured.record.latency_limits
        if limits is None or measured.record.scenario != "server":
            continue
        kept, name = intervals.within_limits(measured.completions, limits), f"p{limits.percentile * 100:g}"
        if kept is False:
            yield found("latency_within_limits.broken", measured.key, percentile=name)
        elif kept is None:
            needed = intervals.sample_needed(limits.percentile)
            yield found("latency_within_limits.open", measured.key, percentile=name, needed=needed)


@room.rule(note("only a quick check of seconds: --all-routes measures this one"))
def screened(evidence: Evidence) -> Iterator[Finding]:
    """A route is measured no further if another one of its suite on its device was faster than its screening run."""
    in_full = {record.route.key for record in evidence.result.records if is_solo(record)}
    tried = {each.record.route.key: each.key for each in evidence.measured if each.record.screening}
    for route, key in tried.items():
        if route not in in_full:
            yield found("screened", key)


@room.rule(note("{kind} when it was closed: {message}{hint:hint}"))
def closed_cleanly(evidence: Evidence) -> Iterator[Finding]:
    """The adapter closed what it had opened without an error. Each measurement has a fresh process, so an error there
    affects no other measurement."""
    for record in evidence.result.records:
        if failure := record.close_failure:
            values = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
            yield found("closed_cleanly", record.key, **values)


@room.rule(note("roofline: {why}"))
def ceiling_known(evidence: Evidence) -> Iterator[Finding]:
    """The roofline fraction of a record is known."""
    for measured in evidence.solo:
        if note := evidence.achieved(measured).note:
            yield found("ceiling_known", measured.key, why=note)


room = Room(900)  # of the rules of the mix
LARGEST_IDLE = 0.02
"""The largest fraction of a window in which a host may lack work though its devices could do some."""


@room.rule()
def mix_complete(evidence: Evidence) -> Iterator[Finding]:
    """Every suite of the mix has units that count, no device and no host failed, and the stored dual values prove λ*.

    It is a warning if the mix cannot be run here, if a suite finished no feed, or if a simulated device took part: the
    solo measurements stand. What other rules found about a record, they say themselves.
    """
    problems = evidence.score.problems if evidence.score else ()
    yield from (problem for problem in problems if problem.rule == "mix_complete")


@room.rule(
    effect("{phase}: κ is {kappa:.2f}, at least {lowest:.2f}, and cannot be above 1: the solo rates are too low", AGAIN)
)
def mix_bounded(evidence: Evidence) -> Iterator[Finding]:
    """No more was done than the solo rates allow, by more than the intervals of both. Feeds that overlap may do more
    than one at a time."""
    for run in evidence.runs:
        diagnosis = evidence.diagnoses.get(run.phase)
        if diagnosis and not diagnosis.bound_is_estimate and (lowest := diagnosis.lowest_kappa(run)) > 1:
            yield found("mix_bounded", phase=run.phase, kappa=diagnosis.kappa.estimate, lowest=lowest)


@room.rule(
    late=explains("{phase}: {host} began {idle_s:.1f} s late, in a window of {window_s:.0f} s"),
    unled=explains("{phase}: the leading process stood still: hosts lacked work for {idle_s:.1f} of {window_s:.0f} s"),
    weight=530,
    noticed=warning("hosts had no work in a part of the window"),
)
def hosts_at_work(evidence: Evidence) -> Iterator[Finding]:
    """Every host begins a mixed run with the others, and the leading process hands out work throughout."""
    result = evidence.result
    for run in evidence.runs:
        most_s, window_s = LARGEST_IDLE * run.length_ns / 1e9, run.length_ns / 1e9
        idle_s = max((each.unled_ns / 1e9 for each in result.connections if each.phase == run.phase), default=0.0)
        if idle_s > most_s:
            yield found("hosts_at_work.unled", phase=run.phase, idle_s=idle_s, window_s=window_s)
        windows = {each.route.host: each.parent_window_ns for each in result.records if each.phase == run.phase}
        begun_ns = {host: window[0] for host, window in windows.items() if window}
        for host, begin_ns in begun_ns.items():
            if (late_s := (begin_ns - min(begun_ns.values())) / 1e9) > most_s:
                yield found("hosts_at_work.late", phase=run.phase, host=host, idle_s=late_s, window_s=window_s)


EQUAL = 0.10
"""By how much the rate of a device in the mix may differ from that of an equal one."""
EACH = "--preset ranked measures each device"


@room.rule(
    warning("{phase}: {suite} at {times:.2f} times the rate of its equal {equal} (limit ±{limit:percent})", EACH),
    once=note("it was measured for {others:counted equal device} too", EACH),
    weight=530,
    noticed=warning("equal devices differ in speed", EACH),
    unranked=warning("one of several equal devices was measured for all"),
)
def equals_alike(evidence: Evidence) -> Iterator[Finding]:
    """A device that was not measured, because an equal one was, has the rate of that one in the mix within 10 %, or if
    that one did none of the suite there, its rate alone within 25 %."""
    lent, others = lenders(evidence.result), defaultdict[str, set[str]](set)
    for run in evidence.runs:
        parts = {(part.suite, part.device): part for part in evidence.diagnoses[run.phase].parts}
        for (suite, device), part in parts.items():
            if (equal := lent.get((suite, device))) is None:
                continue
            others[equal].add(device)
            beside = parts.get((suite, equal))
            times, limit = (part.units_per_s / beside.units_per_s, EQUAL) if beside else (part.retained, COARSE)
            if times is not None and abs(times - 1) > limit:
                yield found("equals_alike", device, phase=run.phase, suite=suite, equal=equal, times=times, limit=limit)
    for equal, ids in others.items():
        yield found("equals_alike.once", equal, others=len(ids))


room = Room(440, sees="grade")


@room.rule(
    left_out=note("the score leaves out {phase}, which was disturbed: {why}"),
    missing=note("the score is {grade}, not {better}: {missing}"),
)
def score_graded(evidence: Evidence) -> Iterator[Finding]:
    """What the score lacks for the next better grade, and which disturbed runs it leaves out."""
    score = evidence.score
    if score is None or score.problems:
        return
    for run in score.runs:
        if run.disturbed and run.phase in score.left_out:
            yield found("score_graded.left_out", phase=run.phase, why=(run.disturbed,))
    if score.missing:
        yield found("score_graded.missing", grade=score.grade, better=score.better_grade, missing=score.missing)


room = Room(300)  # of the rules of energy
LATE_NS = 1_500_000_000
"""The largest age of a reading: timestamps of whole seconds are up to a second old, and meters are read ten times a
second."""
METERING = 0.005
"""The largest fraction of one core that reading the meters may take."""
RESOLVED_NS = 100_000_000  # ten ticks, in which the kernel counts a process's time: fewer are noise


@room.rule(
    note(
        "energy not measured, so there is no efficiency: nothing meters {missing}; mixmark meters says what would be "
        "needed"
    )
)
def energy_measured(evidence: Evidence) -> Iterator[Finding]:
    """At least one energy source was sampled."""
    if not evidence.result.domains:
        yield found("energy_measured", missing=unmetered_parts((), to_meter(evidence.result)))


@room.rule(warning("energy of a part only, so there is no efficiency: {why}"))
def energy_complete(evidence: Evidence) -> Iterator[Finding]:
    """The measured domains cover every device, used or not, the processor of every host, and everything else that the
    machine announces to meter."""
    result, devices = evidence.result, to_meter(evidence.result)
    unread = lacking(_meterable(result), (part for each in result.absent for part in each.covers))
    nothing = "; ".join((*why_no_boundary(_measured(result), devices), *(f"{part} is not metered" for part in unread)))
    if nothing and result.domains:
        yield found("energy_complete", why=nothing)


@room.rule(
    not_read=warning("{phase:phase}no energy: the meters were not read in its phase"),
    short=note("{phase:phase}energy of {domain}: {needed} of its updates do not fit into the window: ±5 %"),
    too_short=note("{phase:phase}no energy of {domain}: {needed} of its updates do not fit into the window; {longer}"),
    unknown=warning("{phase:phase}no energy of {domain}: {why}"),
    noticed=warning("an energy source gave no joules{share:share}", READS),
)
def energy_valid(evidence: Evidence) -> Iterator[Finding]:
    """Every domain that would be added has joules in the window of every record and mix, its edges within 1 %."""
    for window in _windows(evidence):
        if window.metering is None:
            yield window.found("energy_valid.not_read")
            continue
        for domain in _meterable(window.result):
            reading = window.energy.readings[window.energy.sources.get(domain.id, domain.id)]
            if reading.reasons == (SHORT,):
                yield window.found("energy_valid.short", domain=reading.domain, needed=ENOUGH_PERIODS)
            elif reading.reasons == (TOO_SHORT,):
                longer = presets.long_enough(reading.needed_ns or 0, window.about == "run", evidence.result.tier)
                yield window.found("energy_valid.too_short", domain=domain.id, needed=FEWEST_PERIODS, longer=longer)
            elif reading.reasons:
                reasons = tuple(why(reading, window.metering.lost))
                yield window.found("energy_valid.unknown", domain=domain.id, why=reasons)


@room.rule(
    differ=warning(
        "{phase:phase}{domain} is {by_pct:+.1f} % off {source}, which meters the same (limit {limit:percent})"
    ),
    twins=warning(
        "{phase:phase}{domain} and {other} return identical readings: their agreement proves nothing, and they are "
        "never added"
    ),
    noticed=warning("two energy sources disagree{share:share}", "mixmark meters shows what they read"),
)
def energy_agrees(evidence: Evidence) -> Iterator[Finding]:
    """Two sources of the same thing differ by at most 5 %, and no two sources show the same reading."""
    for window in _windows(evidence):
        if window.metering is None:  # as `energy_valid` says
            continue
        for source, checked, by in disagreements(window.result.domains, window.energy.readings):
            if abs(by) > CROSS_CHECK:
                ids = {"domain": checked.id, "source": source.id}
                yield window.found("energy_agrees.differ", **ids, by_pct=by * 100, limit=CROSS_CHECK)
        for one, other in twins([domain.id for domain in _measured(window.result)], window.metering):
            yield window.found("energy_agrees.twins", domain=one, other=other)


@room.rule(
    warning(
        "{phase:phase}the timestamps of {domain} are {age_s:.1f} s old or more when they arrive (limit {limit_s:g} s): "
        "if its clock is late, its joules are off; set its clock by NTP, or declare how late it is"
    ),
    noticed=warning("the clock of a meter is late{share:share}"),
)
def meter_timestamps_recent(evidence: Evidence) -> Iterator[Finding]:
    """The timestamps of a meter that has a clock of its own are at most 1.5 s old when its first readings arrive."""
    for window in _windows(evidence):
        ages_ns = window.metering.reading_age_ns if window.metering else {}
        for id in window.energy.domains:
            if (age_ns := ages_ns.get(id, 0)) > LATE_NS:
                late = {"age_s": age_ns / 1e9, "limit_s": LATE_NS / 1e9}
                yield window.found("meter_timestamps_recent", domain=id, **late)


@room.rule(
    warning("reading the meters took {used:percent} of one core (limit {limit:percent})"),
    plugins=warning(
        "meters, watchers and other plugins took {used:percent} of one core with what they started "
        "(limit {limit:percent})"
    ),
    noticed=warning("meters and other plugins took much CPU time"),
)
def low_metering_overhead(evidence: Evidence) -> Iterator[Finding]:
    """Reading the meters took at most 0.5 % of one core, and the processes of meters and other plugins took no more."""
    for metering in evidence.result.meterings:
        used = metering.cpu_ns / max(metering.end_ns - metering.begin_ns, 1)
        if used > METERING:
            yield found("low_metering_overhead", metering.phase, used=used, limit=METERING)
    for measured in evidence.measured:
        used = measured.per_s("plugins_ns") / 1e9
        if used > METERING and (measured.total("plugins_ns") or 0) >= RESOLVED_NS:
            yield found("low_metering_overhead.plugins", measured.key, used=used, limit=METERING)


def _measured(result: Result) -> list[Domain]:
    return [domain for domain in result.domains if domain.method != "modelled"]


def _meterable(result: Result) -> tuple[Domain, ...]:
    """The domains that would be added if all of them were read well."""
    return antichain(result.domains, {domain.id for domain in _measured(result)}, to_meter(result))


@dataclass(frozen=True)
class _MeteredWindow:
    """A window whose energy the rules look at."""

    about: str
    phase: str
    energy: MachineEnergy
    result: Result
    """The facts of the machine, or of the machines, that it is about."""
    metering: Metering | None
    """None if the meters were not read in its phase."""

    def found(self, code: str, **values: FindingValue) -> Finding:
        return found(code, self.about, phase=self.phase if self.about == "run" else "", **values)


def _windows(evidence: Evidence) -> Iterator[_MeteredWindow]:
    """The window of every mix, and of every record but a probe's that has a phase for itself."""
    result = evidence.result
    if not result.domains:
        return
    for run in evidence.runs:
        yield _MeteredWindow("run", run.phase, run.total, result, metered(result, run.phase))
    for measured in evidence.measured:
        phase = measured.record.phase
        if measured.record.scenario != "probe" and measured.energy is not None:
            own = measured.result
            yield _MeteredWindow(measured.key, phase, measured.energy, own, metered(own, phase))
