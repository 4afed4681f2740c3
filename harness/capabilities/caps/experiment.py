from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from mixmark.harness.capabilities.caps import power_caps
from mixmark.harness.capabilities.caps.facts import Capped, Caps, PowerLimit
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import percent
from mixmark.harness.contracts.schema import Phase, Result
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Attendant, Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook, RunState


class PowerCaps(Experiment):
    name = "caps"

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Caps:
        targets = machine.bench.targets(run.request.devices)
        caps = given["caps"]
        limits = tuple(power_caps.find(dict.fromkeys(each.device.id for each in targets)))
        for limit in limits:
            if min(caps) * limit.watts < limit.least_watts:
                lowest = math.ceil(limit.least_watts / limit.watts * 100)
                raise UsageError(
                    f"{limit.id} cannot be limited to {min(caps) * limit.watts:g} W of {limit.watts:g} W",
                    f"its driver takes {limit.least_watts:g} W and more: give a cap of {lowest} or more",
                )
        return Caps(caps=caps, limits=limits)

    def recover(self) -> Iterator[str]:
        for id in power_caps.recover():
            yield f"a killed run left the power limit of {id} lowered; it is restored"

    def next(self, state: RunState) -> list[Phase]:
        """One cap after the other."""
        ran = {phase.told(Capped).cap for phase in state.of(self.name)}
        left = [cap for cap in state.asked(self.name, Caps).caps if cap not in ran]
        return [state.experiment(self.name, Capped(cap=cap), state.phase(f"cap{round(cap * 100)}")) for cap in left[:1]]

    def rounds(self, run: Outlook) -> int:
        return len(run.asked(self.name, Caps).caps)

    def prefix(self, phase: Phase) -> str:
        return f"at {percent(phase.told(Capped).cap)} power"

    def attendant(self, request: PhaseRequest, asked: Mapping[str, Any], prepared: None) -> Attendant:
        limits = Caps.model_validate(asked).limits
        return Lowering(limits, request.phase.told(Capped).cap)


class Lowering(Attendant):
    """Lowers the limits once the workers of a phase are loaded, and voids the window if they did not hold."""

    def __init__(self, limits: Sequence[PowerLimit], cap: float) -> None:
        self.limits, self.cap = limits, cap

    def ready(self, stack: ExitStack, pids: list[int]) -> None:
        stack.enter_context(power_caps.lowered(self.limits, self.cap))

    def window(self) -> AbstractContextManager[object]:
        return power_caps.held(self.limits, self.cap)
