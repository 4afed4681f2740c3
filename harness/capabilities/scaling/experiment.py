from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from mixmark.harness.capabilities.scaling.steps import ScalingStep, steps
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Fact, Phase, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import in_full
from mixmark.harness.measure.request import PreparedRun
from mixmark.harness.measure.stages import Outlook, RunState
from mixmark.harness.plan.placement import Power
from mixmark.harness.plugins.experiments import Experiment
from mixmark.reporters import figures as written
from mixmark.reporters.document import Block, Bullets, Heading, Table
from mixmark.reporters.figures import significant


class Asked(Fact):
    """The fact that the mix is also run on a part of the hosts."""

    scaling: Literal[True] = True


class Scaling(Experiment):
    name = "scaling"
    facts = (Asked, Fact)
    needs_mix = False

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> None:
        if not (run.mix and run.request.machines) and not run.resumed:
            raise UsageError("--scaling runs a mix on a part of several hosts", hint="give --hosts, and a mix")

    def next(self, state: RunState) -> list[Phase]:
        """One part of the hosts after the other. Hosts that cannot run every suite have no phase."""
        hosts = list(dict.fromkeys(device.host for device in state.result.devices))
        known = {phase.name for phase in state.of(self.name)}
        for count in sizes(state.result) if state.mixed else ():
            devices = [device for device in state.result.devices if device.host in hosts[:count]]
            if (name := f"scaling{count}") in known:
                continue
            power = state.power and Power(
                {device.id: state.power.idle_watts[device.id] for device in devices},
                state.power.rest_watts * count / len(hosts),
            )
            with suppress(MixmarkError):
                return [state.experiment(self.name, Fact(), state.phase(name, placement=state.place(devices, power)))]
        return []

    def rounds(self, run: Outlook) -> int:
        return len(sizes(run.result))

    def prefix(self, phase: Phase) -> str:
        return "in the mix on a part of the hosts"

    def figures(self, judged: Assessment) -> tuple[ScalingStep, ...] | None:
        return steps(judged) or None

    def section(self, judged: Assessment, figures: Sequence[ScalingStep]) -> Iterator[Block]:
        rows = [
            (
                str(len(step.hosts)),
                written.estimate(step.mixes_per_hour),
                written.estimate(step.mixes_per_kwh),
                significant(step.bound_per_hour),
                written.whole_percent(step.efficiency),
            )
            for step in figures
        ]
        yield Heading("Scaling", "scaling")
        yield Table("", ("hosts", "mix/h", "mix/kWh", "λ*", "efficiency"), rows)
        if missing := list(_missing(figures)):
            yield Bullets(missing)


def _missing(figures: Sequence[ScalingStep]) -> Iterator[str]:
    """Why a step has no figure. The last is the score, which has its own reason."""
    for step in figures[:-1]:
        if why := "; ".join(map(in_full, step.problems)) or step.unmeasured:
            lacks = "no rate" if step.problems else "no mix/kWh"
            yield f"on {written.counted(len(step.hosts), 'host')} {lacks}: {why}"


def sizes(result: Result) -> tuple[int, ...]:
    """1, 2, 4, … below the number of hosts."""
    hosts = len({device.host for device in result.devices})
    return tuple(1 << power for power in range(hosts.bit_length()) if 1 << power < hosts)
