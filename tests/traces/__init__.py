"""Runs that are played on a clock which the test turns: one that was recorded, and others that are made from it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console

from mixmark.harness.cli.eta import Told
from mixmark.harness.cli.progress import Progress
from mixmark.harness.contracts.schema import (
    HOST_POOL,
    Audit,
    Device,
    Failure,
    Gate,
    Phase,
    Placement,
    Record,
    Result,
    Share,
    Task,
    Tier,
)
from mixmark.harness.judge.energy.total import CurrentPower
from mixmark.harness.measure.benchmark import Observer, procedure
from mixmark.harness.measure.dispatch import Tally
from mixmark.harness.measure.mixed import Snapshot
from mixmark.harness.plan import mixes, presets
from mixmark.harness.plan import phases as plan
from tests.golden.sample import SUITES, closed_loop, record, system

Trace = Mapping[str, Sequence[float]]
"""The seconds of each piece of a run, by what it is: `prepare llm torch`. Where the same is done more often than it has
times, the last time is used."""
S = 1_000_000_000
FAILED = Failure(kind="crashed", message="the worker was killed by SIGSEGV while loading")
WAITING = Audit(gate=Gate(metric="error", at_most=1.0), finished=1, feeds=(0,))
UNITS = {"llm": "token", "diffusion": "image", "dlrm": "sample", "resnet50": "image", "probe": "kernel"}
NATIVE = {"llm": "single-stream", "diffusion": "single-stream", "dlrm": "offline", "resnet50": "offline"}
ADAPTERS = {"torch": "bf16", "onnxruntime": "fp32"}


def quiet() -> Trace:
    """A quiet edge run on two cores, as its journal and the times of its files tell."""
    stored: Trace = json.loads((Path(__file__).parent / "quiet.json").read_text("utf-8"))
    return stored


def paced(trace: Trace, factors: Mapping[str, float]) -> Trace:
    """The same with the pieces of some kinds so many times as long."""
    return {name: [seconds * factors.get(name.split()[0], 1.0) for seconds in each] for name, each in trace.items()}


def header(preset: str = "quick", tier: Tier = "edge", suites: Collection[str] = tuple(NATIVE)) -> Result:
    """A new run of the four suites by two adapters on a processor."""
    workloads = [plan.Workload(name, "1", (NATIVE[name],)) for name in suites]  # type: ignore[arg-type]
    targets = [
        plan.Target(Device(id="cpu:0", kind="cpu", memory_pool=HOST_POOL, precisions=(precision,)), adapter, {})  # type: ignore[arg-type]
        for adapter, precision in ADAPTERS.items()
    ]
    probe = plan.Workload("probe", "1", ("probe",))
    return Result(
        created_utc="2026-11-22T04:13:00+00:00",
        tier=tier,
        preset=preset,
        phases=plan.solo(targets, workloads, tier, presets.PRESETS[preset], probe=probe),
        system=system(),
        devices=(targets[0].device,),
        suites=SUITES,
        mix=mixes.frozen()[f"{tier}-1"] if set(suites) == set(NATIVE) else None,
        records=(),
        finished=False,
    )


@dataclass(frozen=True)
class Look:
    """What is seen at a moment."""

    at_s: float
    told: Told
    step: int
    total: int
    bar: float


class Played:
    """A run that somebody follows. Its order of events is that of `mixmark.harness.measure.benchmark.Benchmark`."""

    def __init__(
        self,
        header: Result,
        trace: Trace,
        *,
        past: Mapping[str, float] | None = None,
        fails: Callable[[Share], bool] = lambda share: False,
        metered: bool = False,
        terminal: bool = False,
        width: int = 80,
        tick_s: float = 1.0,
    ) -> None:
        self.header, self.how, self.fails, self.tick_s = header, procedure(header), fails, tick_s
        self.metered = metered
        self.seconds = {name: list(each) for name, each in trace.items()}
        self.now_s = 0.0
        self.drawn: CurrentPower | None = None
        self.out = StringIO()
        console = Console(file=self.out, width=width, force_terminal=terminal, color_system=None, _environ={})
        self.progress = Progress(header, self.how, past, metered, lambda: self.drawn, console, lambda: self.now_s)
        self.observer: Observer = self.progress.observer
        self.records = {each.key: each for each in header.records}
        self.phases = list(header.phases)
        self.looks: list[Look] = []
        self.shows = False
        """Whether the display is kept at each look."""
        self.shown: list[str] = []
        self.look()

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    def look(self) -> None:
        pace = self.progress.pace
        self.looks.append(Look(self.now_s, pace.told(self.now_s), pace.step, pace.total, pace.share(self.now_s)))
        if self.shows:
            self.shown.append(self.display())

    def display(self) -> str:
        with self.progress.console.capture() as captured:
            self.progress.console.print(self.progress._render())
        return captured.get()

    def wait(self, name: str, during: Callable[[], None] = lambda: None) -> None:
        """Lets a piece take its time, and looks on."""
        times = self.seconds[name]
        self.sleep(times.pop(0) if len(times) > 1 else times[0], during)

    def sleep(self, seconds: float, during: Callable[[], None] = lambda: None) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + self.tick_s)
            during()
            self.look()

    def play(self, most_phases: int = 1000) -> Played:
        """Plays the run to its end, or until it is interrupted."""
        phases = self.phases
        while True:
            for phase in phases:
                if all(record.phase != phase.name for record in self.records.values()):
                    if not most_phases:
                        return self
                    most_phases -= 1
                    self.measure(phase)
            self.compare()
            if not (planned := self.later(phases)):
                self.look()
                return self
            phases += planned
            self.observer.planned(planned)

    def measure(self, phase: Phase) -> None:
        idle_s = self.how.idle_s if self.metered and phase.purpose != "probe" else 0.0
        self.sleep(idle_s)
        self.observer.started(phase.shares[0])
        made = [self.mixed(phase)] if phase.placement else [[self.cell(share, phase)] for share in phase.shares]
        for each in itertools.chain(*made):
            self.records[each.key] = each
            self.observer.recorded(each)
        self.sleep(idle_s)

    def cell(self, share: Share, phase: Phase) -> Record:
        target = f"{share.route.suite} {share.route.adapter}"
        for stage in ("loading", "warming up"):
            self.observer.stage(share, stage)
            if stage == "loading":
                self.wait(f"prepare {target}")
        if self.fails(share):
            return made(share, phase, error=FAILED)
        self.observer.stage(share, "measuring")
        self.wait(f"measure {target}")
        return made(share, phase)

    def mixed(self, phase: Phase) -> list[Record]:
        for share in phase.shares:
            self.observer.stage(share, "loading")
            self.wait(f"mixed {share.route.suite}")
        assert self.header.mix is not None
        units, begin_s = self.header.mix.units, self.now_s
        self.wait("mix", lambda: self.observer.mixing(snapshot(units, self.now_s - begin_s)))
        return [made(share, phase) for share in phase.shares]

    def compare(self) -> None:
        waiting = [each for each in self.records.values() if each.audit and not each.audit.values]
        for suite in dict.fromkeys(each.route.suite for each in waiting):
            self.wait(f"reference {suite}")
            for each in (each for each in waiting if each.route.suite == suite):
                self.observer.auditing(each)
                self.wait(f"compare {suite}")
                audited = WAITING.model_copy(update={"values": (0.0,)})
                self.records[each.key] = each.model_copy(update={"audit": audited})
                self.observer.audited(self.records[each.key])

    def later(self, phases: Sequence[Phase]) -> list[Phase]:
        """What follows, by a plan that uses each suite's first route that was measured."""
        shares = {share.key: share for phase in phases for share in phase.shares}
        routes: dict[str, Share] = {}
        for each in self.records.values():
            if not each.error and each.scenario not in ("probe", "mixed"):
                routes.setdefault(each.route.suite, shares[each.key])
        mixed = sum(phase.purpose == "mixed" for phase in phases)
        if not self.header.mix or mixed == self.how.mixes or routes.keys() != self.header.mix.units.keys():
            return []
        if self.how.confirm and not any(phase.purpose == "confirmation" for phase in phases):
            return [
                Phase(
                    name=f"confirmation.{key}", purpose="confirmation", tasks=(Task(device="cpu:0", shares=(share,)),)
                )
                for key, share in ((share.key, share) for share in routes.values())
                for share in [share.model_copy(update={"key": f"confirmation.{key}", "batch": 1})]
            ]
        update: dict[str, Any] = {"scenario": "mixed", "batch": 1, "limits": self.how.mix_limits}
        run = tuple(
            share.model_copy(update={**update, "key": f"mix{mixed + 1}.{suite}"}) for suite, share in routes.items()
        )
        name = f"mix{mixed + 1}"
        return [Phase(name=name, purpose="mixed", tasks=(Task(device="cpu:0", shares=run),), placement=PLACEMENT)]

    def resumed(self) -> Result:
        """The header with which the run goes on."""
        return self.header.model_copy(update={"phases": tuple(self.phases), "records": tuple(self.records.values())})


PLACEMENT = Placement(
    objective="throughput",
    rates=(),
    shares={},
    mixes_per_s=0.0133,
    bound_per_s=0.0133,
    bound_fractions={},
    suite_prices={},
    device_prices={},
)


def made(share: Share, phase: Phase, error: Failure | None = None) -> Record:
    """The record of a share: a failure, or a thousand units a second that wait to be compared."""
    suite = share.route.suite
    done = None if error else closed_loop([[S // 1000]])
    drawn = record(share.key, suite, UNITS[suite], done, scenario=share.scenario, error=error)
    update = {"route": share.route, "phase": phase.name}
    audit = {"audit": WAITING, "unaudited": ""} if share.limits.audits and not error else {}
    return drawn.model_copy(update={**update, **audit})


def snapshot(units: Mapping[str, float], elapsed_s: float) -> Snapshot:
    """Half a mix of these units is done."""
    return Snapshot(
        elapsed_ns=round(elapsed_s * S),
        longest_ns=120 * S,
        mixes=0.5,
        planned_per_s=PLACEMENT.mixes_per_s,
        running={"cpu:0": "llm", "npu:a": ""},
        tally=Tally({suite: each / 2 for suite, each in units.items()}, {}, {}),
        feeds={},
        mix_units=dict(units),
    )
