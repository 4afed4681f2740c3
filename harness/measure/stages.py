"""The stages of a run: each says from the result so far which phases come next.

A stage is pure, so an interrupted run goes on where it stopped. It returns phases to measure, and an absence for each
phase that cannot be; nothing, if it is done or has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile
from typing import Any, Literal, TypeVar

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import (
    BITS_PER_WEIGHT,
    Absent,
    Device,
    Fact,
    Finding,
    Limits,
    Mix,
    Phase,
    Placement,
    Purpose,
    Rate,
    Record,
    Result,
    Share,
)
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import voided
from mixmark.harness.judge.rules import interference, registered
from mixmark.harness.plan import presets
from mixmark.harness.plan.phases import (
    RouteKey,
    confirmations,
    of_mix,
    routes_of,
    screening_phase,
)
from mixmark.harness.plan.placement import Planner, Power, place
from mixmark.harness.plan.presets import SECOND
from mixmark.harness.plugins import experiments

MOST_REPEATS = 2  # a machine that is always busy must not keep a run going
REPEATS_S = {"smoke": 8, "edge": 60, "server": 300}
"""The most seconds that repeated screening runs take in a weight class, for each device of the run, by tier."""

Steps = Sequence[Phase | Absent]
Shares = Sequence[Share]
F = TypeVar("F", bound=Fact)


@dataclass(frozen=True)
class Outlook:
    """What is known of a run's phases before they are planned, for its expected time."""

    header: Result
    procedure: Procedure
    planned: Sequence[Phase]
    """The phases that are planned so far."""
    mixed: Shares
    """The shares of a mixed phase, as far as they are known."""

    def asked(self, name: str, shape: type[F]) -> F:
        """What the run keeps of an experiment."""
        return shape.model_validate(self.header.experiments[name])

    def count(self, name: str) -> int:
        """The planned phases of a purpose, or of an experiment."""
        return sum(name in (phase.purpose, phase.experiment) for phase in self.planned)


@dataclass(frozen=True)
class Procedure:
    """What the preset and the tier decide of the stages."""

    mix_limits: Limits
    """The limits of each mixed phase."""
    mixes: int = 1
    """The number of mixed phases, each with fresh workers."""
    repeats: int = 0
    """How many disturbed mixed phases are repeated at most."""
    confirm: bool = False
    """Whether the routes of the plan have a confirmation run before the first mixed phase."""
    idle_s: float = 0.0
    """How long the meters read the idle machine before and after each phase, but not around probes and screening
    runs."""


def procedure(header: Result) -> Procedure:
    """Returns the procedure of the header's preset. The smoke tier, which is never ranked, shortens it and repeats
    nothing."""
    preset = presets.PRESETS.get(header.preset, presets.SELFTEST)
    if header.tier == "smoke":
        return Procedure(mix_limits=presets.SMOKE_MIX, mixes=preset.runs)
    return Procedure(preset.mix, preset.runs, MOST_REPEATS, preset.confirm, preset.idle_s)


@dataclass(frozen=True, eq=False)
class RunState:
    """A run whose planned phases are over, with what several stages ask for. Each part is computed once."""

    evidence: Evidence
    procedure: Procedure
    pool_bytes: Mapping[str, int]
    """How many bytes may be filled of each memory pool whose size is known."""

    @property
    def result(self) -> Result:
        return self.evidence.result

    @property
    def mix(self) -> Mix:
        assert self.result.mix is not None  # without a mix there is no stage
        return self.result.mix

    @cached_property
    def doubts(self) -> Sequence[Finding]:
        return registered.findings("facts", self.evidence)

    @cached_property
    def invalid(self) -> Collection[str]:
        """The keys of the records that a rule of integrity found invalid."""
        return voided(self.doubts)

    def asked(self, name: str, shape: type[F]) -> F:
        """What the run keeps of an experiment."""
        return shape.model_validate(self.result.experiments[name])

    @cached_property
    def mixed(self) -> Sequence[Phase]:
        return self.of("mixed")

    def of(self, name: str) -> Sequence[Phase]:
        """The phases of a purpose, or of an experiment."""
        return [phase for phase in self.result.phases if name in (phase.purpose, phase.experiment)]

    @cached_property
    def disturbed(self) -> Sequence[tuple[str, Finding]]:
        """The disturbed mixed phases that are repeated, each with the reason."""
        return tuple(interference.disturbed_runs(self.evidence).items())[: self.procedure.repeats]

    @cached_property
    def rates(self) -> Sequence[Rate]:
        """The solo rates of the mix's suites."""
        return solo_rates.solo(self.evidence, self.mix, self.invalid)

    @cached_property
    def power(self) -> Power | None:
        return solo_rates.power(self.result)

    @cached_property
    def placement(self) -> Placement | Absent:
        """The plan of all mixed phases, so that their rates compare, or why there is none."""
        if self.mixed and self.mixed[0].placement:
            return self.mixed[0].placement
        try:
            return self.place(self.result.devices, self.power)
        except MixmarkError as error:
            able = {rate.suite for rate in self.rates}
            lacking = [record for record in self.result.records if record.route.suite in self.mix.units.keys() - able]
            failures = {each.route.suite: each.error.message for each in reversed(lacking) if each.error}
            hint = "; ".join(f"{suite}: {message}" for suite, message in failures.items())
            return absent(self.mix.name, MixmarkError(str(error), hint or error.hint))

    @property
    def plan(self) -> Placement:
        """The plan of all mixed phases, once there is one."""
        assert isinstance(self.placement, Placement)
        return self.placement

    def planner(self, devices: Sequence[Device], power: Power | None) -> Planner:
        """Plans for these devices as the run is to be planned."""
        return partial(
            place,
            devices=devices,
            objective=self.result.objective,
            pool_bytes=self.pool_bytes,
            host_fraction=solo_rates.host_fraction(self.evidence),
            power=power,
        )

    def place(self, devices: Sequence[Device], power: Power | None) -> Placement:
        """Raises MixmarkError if the devices cannot run the mix."""
        return self.planner(devices, power)(self.mix.units, self.rates)

    def phase(
        self,
        name: str,
        purpose: Purpose,
        run: int = 1,
        placement: Placement | None = None,
        limits: Limits | None = None,
        **more: Any,
    ) -> Phase:
        """A phase of the mix, by default on the plan of the mixed phases and with their limits."""
        limits = limits or self.procedure.mix_limits
        return of_mix(self.result, placement or self.plan, limits, name, purpose, run, self.pool_bytes, **more)

    def experiment(self, name: str, facts: Fact, phase: str = "", **more: Any) -> Phase:
        """A phase of an experiment; by default with its name, and as a mixed phase. more: as of `phase`."""
        return self.phase(phase or name, "experiment", experiment=name, facts=facts, **more)

    def is_absent(self, name: str, kind: str = "mix") -> bool:
        return any((each.kind, each.name) == (kind, name) for each in self.result.absent)


def absent(name: str, error: MixmarkError, kind: Literal["mix", "experiment"] = "mix") -> Absent:
    return Absent(kind=kind, name=name, reason=f"{error}; {error.hint}".removesuffix("; "))


def screen(state: RunState) -> list[Phase]:
    """One more screening run of each route that may be the fastest of its suite on its device, in turns. Nothing if
    each suite has its fastest route, or if too little of REPEATS_S is left."""
    result = state.result
    ran = [record for record in result.records if record.screening]
    took_ns = {record.key: _took_ns(record, state.evidence.limits[record.key]) for record in ran}
    again_ns = {record.route.key: took_ns[record.key] for record in ran}
    repeated = takewhile(lambda record: record.run > 1, reversed(ran))  # a weight class begins with first runs
    left_ns = REPEATS_S[result.tier] * SECOND * len(result.devices) - sum(took_ns[record.key] for record in repeated)
    phases: list[Phase] = []
    for shares, rates in _screened(state):
        routes = solo_rates.contenders(rates)
        if len(routes) > 1 and (turn_ns := sum(again_ns[route] for route in routes)) <= left_ns:
            left_ns -= turn_ns
            phases += [screening_phase(shares[route], len(rates[route]) + 1) for route in routes]
    return phases


def _took_ns(record: Record, limits: Limits) -> int:
    """The time of a screening run, without the start of its worker."""
    search_ns = limits.search_ns if record.trials else 0
    return (record.load_ns or 0) + limits.warmup_ns + search_ns + limits.max_ns


def _screened(state: RunState) -> Iterator[tuple[Mapping[RouteKey, Share], Mapping[RouteKey, Sequence[float]]]]:
    """For each suite on each device, the shares of its candidate routes, and the units per second of the screening runs
    of each route that neither failed nor proved invalid. The only route of a suite on a device needs no screening run,
    and has a rate of 0."""
    failed = {
        record.route.key
        for record in state.result.records
        if record.error or record.key in state.invalid or (record.audit and not record.audit.passed)
    }
    rates = solo_rates.screened_per_s(state.evidence.measured)
    for shares in routes_of(state.result.candidates).values():
        known = rates if len(shares) > 1 else dict.fromkeys(shares, (0.0,))
        if left := {route: known[route] for route in shares if route in known and route not in failed}:
            yield shares, left


def choose(state: RunState) -> list[Phase]:
    """The phases that measure the fastest route of each suite on each device, by the medians of the screening runs. If
    that route failed or proved invalid, the next one is taken; a route that was measured needs no further phase."""
    result = state.result
    planned = {phase.shares[0].route.key for phase in result.phases if phase.purpose != "screening"}
    wanted = {solo_rates.contenders(rates)[0] for _, rates in _screened(state)} - planned
    targets = {tuple(target) for _, *target in wanted}
    narrow = {(device, adapter) for device, adapter, bits in targets if BITS_PER_WEIGHT[bits] < 16}
    probed = [phase.shares[0].route for phase in result.candidates if phase.purpose == "probe"]
    targets |= {  # a probe of fewer than 16 bits measures no bandwidth
        (route.device, route.adapter, route.precision)
        for route in probed
        if (route.device, route.adapter) in narrow and BITS_PER_WEIGHT[route.precision] >= 16
    }
    return [
        phase
        for phase in result.candidates
        for suite, *target in [phase.shares[0].route.key]
        if (suite, *target) in wanted
        or (phase.purpose == "probe" and (suite, *target) not in planned and tuple(target) in targets)
    ]


def confirm(state: RunState) -> Steps:
    """Confirmation runs of the routes that the plan uses."""
    if not state.procedure.confirm or state.of("confirmation") or isinstance(state.placement, Absent):
        return ()
    return confirmations(state.result, state.placement)


def mix(state: RunState) -> Steps:
    """The mixed phases one by one, with one more for each disturbed one."""
    if isinstance(state.placement, Absent):
        return () if state.is_absent(state.mix.name) else (state.placement,)
    run = len(state.mixed) + 1
    if run > state.procedure.mixes + len(state.disturbed):
        return ()
    return (state.phase(f"mix{run}", "mixed", run),)


def makes_up_for(state: RunState, phase: Phase) -> tuple[str, Finding] | None:
    """The disturbed mixed phase that this mixed phase repeats, and the reason. None if it repeats none."""
    extra = len(state.mixed) - state.procedure.mixes
    return state.disturbed[extra] if phase.purpose == "mixed" and extra >= 0 else None


def stages(state: RunState) -> Iterator[Callable[[RunState], Steps]]:
    """The stages of a run in their order. No route changes once a mixed phase is planned."""
    asked = [*experiments.of(state.result)]
    if state.result.mix is None:
        yield from (each.solo for each in asked)
        yield from (each.next for each in asked if not each.needs_mix)
        return
    if not state.mixed:
        yield from (screen, choose, *(each.solo for each in asked), confirm, mix)
    else:
        yield from (each.next for each in asked if each.takes_turns)
        yield mix
    yield from (each.next for each in asked if not each.takes_turns and (state.mixed or not each.needs_mix))


def next_steps(state: RunState) -> Steps:
    """The next phases of the first stage that has any, with the absences that were found on the way. The run is over if
    there is no phase."""
    found: list[Phase | Absent] = []
    for stage in stages(state):
        found += stage(state)
        if any(isinstance(step, Phase) for step in found):
            break
    return found
