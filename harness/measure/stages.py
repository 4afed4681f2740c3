"""The stages of a run: those of the core, and the loop that asks them and those of experiments for the next phases.

A stage is pure, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from mixmark.harness.contracts.numbers import significant
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Absent, Finding, Phase, Placement, Result, Share
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.rules import integrity
from mixmark.harness.judge.solo import unit_names
from mixmark.harness.measure import experiments
from mixmark.harness.measure.audit import pending
from mixmark.harness.measure.experiments import Stage
from mixmark.harness.measure.run_state import Outlook, RunState, Shares, Steps
from mixmark.harness.plan.phases import RouteKey, confirmations, of_share, routes_of, screened_as, screening_phase

NEAR = 0.9
"""If the score comes first, a route this near to the fastest one in its screening run is screened once more."""
CHECKED = 1  # the feeds of a quick check that are audited before its route may be in the mix


class Screening(Stage):
    """A brief run of each other route of a suite on a device, once the likely fastest one was measured."""

    name = "screening"

    def solo(self, state: RunState) -> Steps:
        """The screening run of each route that could be the fastest, and an absence for each that could not."""
        steps: list[Phase | Absent] = []
        for shares, tried in _routes(state):
            if _is_measured_first(shares, tried):
                continue
            untried = [share for share in shares if share.route.key not in tried]
            untried = [share for share in untried if not state.is_absent(share.route.label, "route")]
            for share in untried:
                why = _why_slower(state, share)
                steps.append(
                    Absent(kind="route", name=share.route.label, reason=why) if why else screening_phase(share)
                )
            if state.score_first and not untried:
                steps += _once_more(state, shares, tried)
        return steps

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        """All routes but the likely fastest."""
        for shares in () if run.of(self.name) else routes_of(run.result.candidates).values():
            yield from (screening_phase(share).shares for share in _likely_first(shares)[1:])

    def idle_s(self, phase: Phase, run: Outlook) -> float:
        return 0.0

    def prefix(self, phase: Phase) -> str:
        return "quick check"


def _once_more(state: RunState, shares: Sequence[Share], tried: Mapping[RouteKey, float]) -> Iterator[Phase]:
    """A second screening run, in turn, of each route that is nearly as fast as the fastest one."""
    near = [share for share in shares if tried.get(share.route.key, 0.0) >= NEAR * max(tried.values(), default=1.0)]
    planned = {phase.name for phase in state.result.phases}
    again = [screening_phase(share, "again") for share in near] if len(near) > 1 else []
    yield from (phase for phase in again if phase.name not in planned)


Tried = tuple[Sequence[Share], Mapping[RouteKey, float]]
"""The routes of a suite on a device that neither failed nor proved invalid, the likely fastest first, and the units per
second of those that were tried. Of equal devices the first one that has such a route."""


def _routes(state: RunState) -> Iterator[Tried]:
    failed = {
        record.route.key
        for record in state.result.records
        if record.error
        or record.key in state.invalid
        or (record.audit and not record.audit.passed and not pending(record))
    }
    known = solo_rates.tried_per_s(state.evidence.measured)
    found = set[tuple[str, str]]()
    for (suite, device), shares in routes_of(state.result.candidates).items():
        if (of_equals := (suite, state.stand_ins.get(device, device))) in found:
            continue
        left = [share for share in _likely_first(shares) if share.route.key not in failed]
        rates = {share.route.key: known.get((share.route.key, screened_as(share))) for share in left}
        if left:
            found.add(of_equals)
            yield left, {route: rate for route, rate in rates.items() if rate is not None}


def _likely_first(shares: Mapping[RouteKey, Share]) -> Sequence[Share]:
    """The routes of fewer bits first, since they compute faster and read less. Else their order is kept."""
    return sorted(shares.values(), key=lambda share: BITS_PER_WEIGHT[share.route.precision])


def _is_measured_first(shares: Sequence[Share], tried: Mapping[RouteKey, float]) -> bool:
    """Whether the likely fastest route is measured before the others are screened. The measurement of a server compares
    with no screening run: its rate is that of the arrivals."""
    return shares[0].route.key not in tried and (len(shares) == 1 or shares[0].scenario != "server")


def _why_slower(state: RunState, share: Share) -> str:
    """Why a route is slower than one that was measured. Empty if it may be faster."""
    route = share.route
    for each in state.evidence.measured:
        if each.record.cut_off:
            continue
        other, rate = each.record.route, each.throughput_per_s or 0.0
        if (other.suite, other.device, each.record.scenario) != (route.suite, route.device, share.scenario):
            continue
        if (most := integrity.most_per_s(each, share, state.evidence.peaks)) < rate and each.key not in state.invalid:
            allowed = f"{significant(most)} {unit_names(state.result, each.record).short}/s"
            return (
                f"not tried: the limits of {route.device} allow at most {allowed} in {route.precision}, and "
                f"{other.adapter} {other.precision} reached {significant(rate)}; --all-routes measures it"
            )
    return ""


class Solo(Stage):
    """The solo measurements, with the probes of their devices."""

    name = "solo"

    def solo(self, state: RunState) -> list[Phase]:
        """The phases that measure the likely fastest route of each suite on each device. Then, as long as a screening
        run was faster than what is measured, those that measure the route of the fastest one. A route that failed or
        proved invalid does not count."""
        result = state.result
        planned = {phase.shares[0].route.key for phase in result.phases if not phase.shares[0].limits.cut_off}
        wanted = {
            shares[0].route.key if _is_measured_first(shares, tried) else max(tried, key=lambda route: tried[route])
            for shares, tried in _routes(state)
        } - planned
        targets = {tuple(target) for _, *target in wanted}
        narrow = {(device, adapter) for device, adapter, bits in targets if BITS_PER_WEIGHT[bits] < 16}
        probed = [phase.shares[0].route for phase in result.candidates if phase.purpose == "probe"]
        targets |= {  # a probe of fewer than 16 bits measures no bandwidth
            (route.device, route.adapter, route.precision)
            for route in probed
            if (route.device, route.adapter) in narrow and BITS_PER_WEIGHT[route.precision] >= 16
        }
        found = [*_probes_of_others(state, targets)] + [
            phase
            for phase in result.candidates
            for suite, *target in [phase.shares[0].route.key]
            if (suite, *target) in wanted
            or (phase.purpose == "probe" and (suite, *target) not in planned and tuple(target) in targets)
        ]
        return _checks(found) if state.score_first else found

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        """The routes that screening will choose, with their probes."""
        if any(not share.limits.cut_off for phase in run.result.phases for share in phase.shares):
            return
        chosen = {(share.route.suite, share.route.device, share.scenario): share for share in run.alone}
        targets = {_target(share) for share in chosen.values()}
        probes = [each for each in run.result.candidates if each.purpose == "probe"]
        found = [of_share(share, "solo") for share in chosen.values()]
        found += [each for each in probes if _target(each.shares[0]) in targets]
        yield from (phase.shares for phase in (_checks(found) if run.score_first else found))

    def idle_s(self, phase: Phase, run: Outlook) -> float:
        return 0.0 if phase.purpose == "probe" else run.preset.idle_s


def _probes_of_others(state: RunState, targets: Collection[tuple[str, ...]]) -> Iterator[Phase]:
    """A probe by a built-in adapter in each further precision of a device, which may show that no route in that
    precision is the fastest. targets: the devices, adapters and precisions that are probed anyway."""
    result = state.result
    others = (share.route for shares, _ in _routes(state) for share in shares[1:])
    wanted = {(route.device, route.precision) for route in others}
    wanted -= {(device, precision) for device, _, precision in targets}
    wanted -= {(share.route.device, share.route.precision) for phase in result.phases for share in phase.shares}
    for phase in result.candidates:
        route = phase.shares[0].route
        if phase.purpose == "probe" and (route.device, route.precision) in wanted and result.ran_built_in(route):
            wanted.remove((route.device, route.precision))
            yield phase


def _checks(phases: Sequence[Phase]) -> list[Phase]:
    """One probe of each target, and an audited screening run of each route in place of its solo measurements."""
    first: dict[RouteKey, Phase] = {}
    for phase in phases:
        first.setdefault(phase.shares[0].route.key, phase)
    return [
        screening_phase(each.shares[0], "check", CHECKED) if each.purpose == "solo" else each for each in first.values()
    ]


def _target(share: Share) -> tuple[str, str, str]:
    return share.route.device, share.route.adapter, share.route.precision


class Confirmation(Stage):
    """Repeated solo measurements of the routes that the plan uses."""

    name = "confirmation"

    def next(self, state: RunState) -> Steps:
        if not state.preset.confirm or state.mixed or state.of(self.name) or isinstance(state.placement, Absent):
            return ()
        return confirmations(state.result, state.placement)

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        if run.preset.confirm and not run.of(self.name) and not run.of("mixed"):
            yield from ([share] for share in run.routes)

    def prefix(self, phase: Phase) -> str:
        return "confirmation run"


class Around(Stage):
    """A probe of each device that was measured for the plan directly before and directly after each mixed phase, if the
    score comes first."""

    name = "around"

    def next(self, state: RunState) -> Steps:
        if not state.score_first or isinstance(state.placement, Absent):
            return ()
        planned = {phase.name for phase in state.result.phases}
        targets = {(rate.device, rate.adapter, rate.precision) for rate in state.own_rates}
        found = _probes(state, f"around{len(state.mixed)}", targets)
        return [each for each in found if each.name not in planned]

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        if run.score_first:
            for when in ("around0", "around1"):
                if not any(phase.name.startswith(when) for phase in run.result.phases):
                    yield from (phase.shares for phase in _probes(run, when, {*map(_target, run.routes)}))


def _probes(run: Outlook, named: str, targets: Collection[tuple[str, ...]]) -> list[Phase]:
    """A probe of each device by one of its targets. named: what the names begin with."""
    shares = [phase.shares[0] for phase in run.result.candidates if phase.purpose == "probe"]
    probes = {share.route.device: share for share in reversed(shares) if _target(share) in targets}
    return [of_share(each.model_copy(update={"key": f"{named}.{each.key}"}), "probe") for each in probes.values()]


class Alone(Stage):
    """The solo measurements of the plan's routes after the mix, if the score comes first."""

    name = "alone"

    def next(self, state: RunState) -> Steps:
        if not state.score_first or state.of("solo"):
            return ()
        chosen = {max(tried, key=lambda route: tried[route]) for _, tried in _routes(state) if tried}
        if isinstance(state.placement, Placement):
            chosen = {rate.key for rate in state.own_rates}
        return [each for each in state.result.candidates if each.shares[0].route.key in chosen]

    def to_come(self, run: Outlook) -> Iterator[Shares]:
        if run.score_first and not run.of("solo"):
            yield from ([share] for share in run.routes)


class MixedRuns(Stage):
    """The mixed phases one by one, with one more for each disturbed one."""

    name = "mixed"

    def next(self, state: RunState) -> Steps:
        if isinstance(state.placement, Absent):
            return () if state.is_absent(state.mix.name) else (state.placement,)
        run = len(state.mixed) + 1
        if run > state.preset.runs + len(state.disturbed):
            return ()
        return (state.phase(f"mix{run}", run),)

    def rounds(self, run: Outlook) -> int:
        return run.preset.runs

    def prefix(self, phase: Phase) -> str:
        return "in the mix"


def makes_up_for(state: RunState, phase: Phase) -> tuple[str, Finding] | None:
    """The disturbed mixed phase that this mixed phase repeats, and the reason. None if it repeats none."""
    extra = len(state.mixed) - state.preset.runs
    return state.disturbed[extra] if phase.purpose == "mixed" and extra >= 0 else None


SCREENING, SOLO, CONFIRMATION = Screening(), Solo(), Confirmation()
AROUND, MIXED_RUNS, ALONE = Around(), MixedRuns(), Alone()
CORE = {each.name: each for each in (SCREENING, SOLO, CONFIRMATION, MIXED_RUNS)} | {"probe": SOLO}


def stages(result: Result) -> Iterator[Stage]:
    """The stages of a run, in their order."""
    asked = [*experiments.of(result)]
    yield from (SCREENING, SOLO)
    yield from (each for each in asked if each.takes_turns)
    yield from (CONFIRMATION, AROUND, MIXED_RUNS, ALONE) if result.mix else ()
    yield from (each for each in asked if not each.takes_turns)


def stage_of(phase: Phase) -> Stage:
    """The stage that planned a phase."""
    return experiments.installed()[phase.experiment] if phase.experiment else CORE[phase.purpose]


def next_steps(state: RunState) -> Steps:
    """The next phases of the first stage that has any, with the absences that were found on the way. The run is over if
    there is no phase. No route changes once a mixed phase is planned."""
    asked = [*stages(state.result)]
    ways = [] if state.mixed else [stage.solo for stage in asked]
    ways += [stage.next for stage in asked if state.mixed or not stage.follows_mix]
    found: list[Phase | Absent] = []
    for next_of_stage in ways:
        found += next_of_stage(state)
        if any(isinstance(step, Phase) for step in found):
            break
    return found


def audits_wait(state: RunState) -> bool:
    """Whether a phase comes next whose plan depends on no audit: another mixed phase or one that takes turns with it;
    before the mix, if the score comes first, another screening run, or the mix directly after its probe."""
    if not state.mixed and any(phase.name.startswith("around") for phase in state.result.phases):
        return True
    turns = [each for each in stages(state.result) if each.takes_turns or each in (AROUND, MIXED_RUNS)]
    ways = [stage.next for stage in turns] if state.mixed else [SCREENING.solo, SOLO.solo] if state.score_first else []
    return any(isinstance(step, Phase) for way in ways for step in way(state))


def to_come(run: Outlook) -> Iterator[Shares]:
    """The shares of each phase that the run will plan. Empty if no route is known."""
    for stage in stages(run.result) if run.alone else ():
        for shares in stage.to_come(run):
            if len(shares) > 1 or run.stand_ins.get(device := shares[0].route.device, device) == device:
                yield shares
