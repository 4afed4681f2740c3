"""A run so far, as its stages see it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, TypeVar

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.evidence import Evidence, gather
from mixmark.harness.judge.findings import voided
from mixmark.harness.judge.rules import interference, registered
from mixmark.harness.plan.equals import equals
from mixmark.harness.plan.phases import of_mix
from mixmark.harness.plan.placement import Planner, Power, place
from mixmark.harness.plan.presets import Preset

Steps = Sequence[schema.Phase | schema.Absent]
Shares = Sequence[schema.Share]
F = TypeVar("F", bound=schema.Fact)


@dataclass(frozen=True, eq=False)
class Outlook:
    """A run with the phases that are planned so far."""

    result: schema.Result
    preset: Preset

    def asked(self, name: str, shape: type[F]) -> F:
        """What the run keeps of an experiment."""
        return shape.model_validate(self.result.experiments[name])

    def of(self, name: str) -> Sequence[schema.Phase]:
        """The phases of a purpose, or of an experiment."""
        return [phase for phase in self.result.phases if name in (phase.purpose, phase.experiment)]

    @property
    def score_first(self) -> bool:
        """Whether the mix comes before the suites alone: its plan needs no watts, and no experiment needs suites."""
        result = self.result
        plain = result.mix is not None and not result.experiments and result.objective == "throughput"
        return self.preset.score_first and plain and bool(result.candidates)

    @cached_property
    def stand_ins(self) -> Mapping[str, str]:
        """The first of its equals for each device that has any, if only one of them is measured outside of the mix."""
        return {id: ids[0] for id, ids in equals(self.result).items() if self.score_first}

    @cached_property
    def alone(self) -> Shares:
        """The share of each solo measurement that is planned or may be chosen, the first one last."""
        phases = [each for each in (*self.result.candidates, *self.result.phases) if each.purpose == "solo"]
        return [phase.shares[0] for phase in reversed(phases)]

    @cached_property
    def routes(self) -> Shares:
        """The first route of each suite on each device, which stands for the route that will be chosen."""
        return [*{(share.route.suite, share.route.device): share for share in self.alone}.values()]

    @cached_property
    def shares_of_mix(self) -> Shares:
        """The expected shares of a mixed phase."""
        update = {"limits": self.preset.mix, "batch": 1, "scenario": "mixed"}
        return [share.model_copy(update=update) for share in self.routes]


@dataclass(frozen=True, eq=False)
class RunState(Outlook):
    """A run whose planned phases are over, with what several stages ask for. Each part is computed once."""

    pool_bytes: Mapping[str, int]
    """How many bytes may be filled of each memory pool whose size is known."""

    @cached_property
    def evidence(self) -> Evidence:
        return gather(self.result)

    @property
    def mix(self) -> schema.Mix:
        assert self.result.mix is not None  # without a mix there is no stage
        return self.result.mix

    @cached_property
    def doubts(self) -> Sequence[schema.Finding]:
        """What the rules of integrity found. No plan doubts a record whose outputs are still to be compared."""
        return [each for each in registered.findings("facts", self.evidence) if each.severity != "pending"]

    @cached_property
    def invalid(self) -> Collection[str]:
        """The keys of the records that a rule of integrity found invalid."""
        return voided(self.doubts)

    @cached_property
    def mixed(self) -> Sequence[schema.Phase]:
        return self.of("mixed")

    @cached_property
    def disturbed(self) -> Sequence[tuple[str, schema.Finding]]:
        """The disturbed mixed phases that are repeated, each with the reason."""
        return tuple(interference.disturbed_runs(self.evidence).items())[: self.preset.repeats]

    @cached_property
    def rates(self) -> Sequence[schema.Rate]:
        """The rates of the mix's suites that the plan is made of."""
        return tuple(best.rate for best in solo_rates.planned(self.evidence, self.mix, self.invalid))

    @cached_property
    def power(self) -> Power | None:
        return solo_rates.power(self.result)

    @cached_property
    def placement(self) -> schema.Placement | schema.Absent:
        """The plan of all mixed phases, so that their rates compare, or why there is none."""
        if self.mixed and self.mixed[0].placement:
            return self.mixed[0].placement
        try:
            return self.place(self.result.devices, self.power)
        except MixmarkError as error:
            able = {rate.suite for rate in self.rates}
            lacking = [record for record in self.result.records if record.route.suite in self.mix.units.keys() - able]
            late = "each feed took longer than the mix allows"
            failures = {
                each.route.suite: each.error.message if each.error else late
                for each in reversed(lacking)
                if each.error or (each.audited and each.key not in self.invalid)
            }
            hint = "; ".join(f"{suite}: {message}" for suite, message in failures.items())
            return absent(self.mix.name, MixmarkError(str(error), hint or error.hint))

    @property
    def plan(self) -> schema.Placement:
        """The plan of all mixed phases, once there is one."""
        assert isinstance(self.placement, schema.Placement)
        return self.placement

    @property
    def own_rates(self) -> Sequence[schema.Rate]:
        """The rates of the plan that were measured on their own devices."""
        lent = solo_rates.lenders(self.result)
        return [rate for rate in self.plan.rates if rate.key[:2] not in lent]

    def planner(self, devices: Sequence[schema.Device], power: Power | None) -> Planner:
        """Plans for these devices as the run is to be planned."""
        return partial(
            place,
            devices=devices,
            objective=self.result.objective,
            pool_bytes=self.pool_bytes,
            host_fraction=solo_rates.host_fraction(self.evidence),
            power=power,
        )

    def place(self, devices: Sequence[schema.Device], power: Power | None) -> schema.Placement:
        """Raises MixmarkError if the devices cannot run the mix."""
        return self.planner(devices, power)(self.mix.units, self.rates)

    def phase(
        self, name: str, run: int = 1, placement: schema.Placement | None = None, limits: schema.Limits | None = None
    ) -> schema.Phase:
        """A mixed phase, by default on the plan of all of them and with their limits."""
        return of_mix(self.result, placement or self.plan, limits or self.preset.mix, name, run, self.pool_bytes)

    def experiment(self, name: str, facts: schema.Fact, phase: schema.Phase | None = None) -> schema.Phase:
        """A phase of an experiment. phase: the mixed phase that it is like; by default one with the experiment's
        name."""
        own = {"purpose": "experiment", "experiment": name, "facts": facts.model_dump(mode="json")}
        return schema.Phase.model_validate({**dict(phase or self.phase(name)), **own})

    def is_absent(self, name: str, kind: str = "mix") -> bool:
        return any((each.kind, each.name) == (kind, name) for each in self.result.absent)


def absent(name: str, error: MixmarkError, kind: Literal["mix", "experiment"] = "mix") -> schema.Absent:
    return schema.Absent(kind=kind, name=name, reason=f"{error}; {error.hint}".removesuffix("; "))
