"""A made-up result that is whole and small: two suites, two devices, probes, and a metered mixed run that has a score.

Tests forge and alter its folder.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from mixmark.harness import VERSION
from mixmark.harness.contracts import schema
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.evidence import gather
from mixmark.harness.plan import phases as plan
from mixmark.harness.plan import presets
from mixmark.harness.plan.phases import Target, Workload
from mixmark.harness.plan.placement import place
from mixmark.harness.plugins import registry
from mixmark.harness.record import store
from tests.golden.sample import but, domain, system

SECOND = 1_000_000_000
GPU = "gpu:GPU-0"
DEVICES = (
    schema.Device(
        id="cpu:0", kind="cpu", name="Acme Quartz", memory_pool="host", memory_bytes=1 << 36, precisions=("fp32",)
    ),
    schema.Device(id=GPU, kind="gpu", name="Acme Topaz", memory_pool=GPU, memory_bytes=1 << 35, precisions=("bf16",)),
)
FEEDS_PER_S = {("dlrm", "cpu:0"): 30.0, ("resnet50", "cpu:0"): 8.0, ("dlrm", GPU): 40.0, ("resnet50", GPU): 40.0}
BATCH = {"dlrm": 4, "resnet50": 2, "probe": 1}
TORCH = registry.find("adapters")["torch"]
CODE = {
    path: hashlib.sha256(path.encode()).hexdigest()
    for path in (
        "mixmark/__init__.py",
        "mixmark/harness/adapters/torch/__init__.py",
        "mixmark/harness/adapters/torch/fused.py",
        "mixmark/harness/capabilities/acme/meter.py",
        "mixmark/harness/capabilities/ladder/options.py",
        "mixmark/harness/capabilities/ladder/report.py",
        "mixmark/harness/capabilities/plan/bounds.json",
        "mixmark/suites/dlrm/__init__.py",
    )
}
"""A version of Mixmark with few files."""
MIX = schema.Mix(name="two", tier="smoke", units={"dlrm": 120.0, "resnet50": 80.0})
MIX_S = 12.0
BOARD = domain("nvml/0", (GPU,), meter="nvml", source="")
PACKAGE = domain("rapl/0", meter="rapl", wrap_joules=262_143.0, source="")


class Maker:
    """Makes up the records of one phase after the other on a clock of its own."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.now_ns = 50 * SECOND
        self.suites: dict[str, Suite] = {
            name: registry.build_suite(name, registry.BUILT_IN["suites"][name], "smoke", {}) for name in BATCH
        }

    def result(self, runs: int = 1) -> schema.Result:
        """The whole result of a finished run with so many mixed phases."""
        targets = [Target(device, "torch", {}) for device in DEVICES]
        work = {
            name: Workload(name, suite.version, cast(Sequence[schema.ScenarioName], suite.scenarios))
            for name, suite in self.suites.items()
        }
        chosen = [work["dlrm"], work["resnet50"]]
        phases = plan.solo(targets, chosen, "smoke", presets.PRESETS["quick"], probe=work["probe"])
        result = schema.Result(
            created_utc="2026-01-02T03:04:05+00:00",
            tier="smoke",
            preset="quick",
            command=("run", "--tier", "smoke"),
            phases=phases,
            system=but(system(), cpu_model=DEVICES[0].name),
            devices=DEVICES,
            code=CODE,
            environments={
                "torch": schema.Environment(
                    origin="built in", spec=TORCH.spec, python="CPython 3.12.3", mixmark=VERSION
                )
            },
            domains=(PACKAGE, BOARD),
            mix=MIX,
            suites=tuple(
                schema.SuiteFacts(name=name, version=each.version, unit=each.unit, unit_names=each.unit_names)
                for name, each in self.suites.items()
            ),
            records=(),
            finished=True,
        )
        for phase in phases:
            result = self.added(result, phase)
        placement = place(MIX.units, solo_rates.solo(gather(result), MIX, ()), DEVICES)
        for run in range(1, runs + 1):
            mixed = plan.of_mix(result, placement, presets.SMOKE_MIX, f"mix{run}", run, {})
            result = self.added(but(result, phases=(*result.phases, mixed)), mixed)
        return result

    def added(self, result: schema.Result, phase: schema.Phase) -> schema.Result:
        """The result with one more phase, measured and metered."""
        before_ns = self.now_ns
        canary = [self._canary()]
        begin_ns = self.now_ns + SECOND // 10
        lasts_s = MIX_S if phase.purpose == "mixed" else 2.5
        end_ns = begin_ns + round(lasts_s * SECOND)
        played = [share for share in phase.shares if self._plays(share, phase)]
        done = {share.key: self._done(share, begin_ns, end_ns) for share in played}
        over_ns = max(end_ns, *(int(each.yielded_ns.max()) for each in done.values()))
        edges = np.linspace(begin_ns - 1_000_000, over_ns + 1_000_000, 4).astype(np.int64).tolist()
        blocks = [
            schema.Conditions(
                begin_ns=one, end_ns=two, cpus=16, busy_ns=SECOND, own_ns=SECOND, stolen_ns=0, throttled_periods=0
            )
            for one, two in itertools.pairwise(edges)
        ]
        self.now_ns = over_ns + SECOND // 10
        canary.append(self._canary())
        conditions = (canary[0], *blocks, canary[1])
        records = tuple(self._record(phase, share, done[share.key], (begin_ns, end_ns), conditions) for share in played)
        metering = self._metering(phase.name, before_ns, begin_ns, end_ns, played)
        return but(result, records=(*result.records, *records), meterings=(*result.meterings, metering))

    def _plays(self, share: schema.Share, phase: schema.Phase) -> bool:
        """Whether a share gets a turn: in the mix, the one that its device has most of."""
        if phase.placement is None:
            return True
        parts = {suite: of.get(share.route.device, 0.0) for suite, of in phase.placement.fractions.items()}
        return parts[share.route.suite] == max(parts.values())

    def _canary(self) -> schema.Conditions:
        begin_ns = self.now_ns
        self.now_ns += SECOND // 100
        return schema.Conditions(begin_ns=begin_ns, end_ns=self.now_ns, canary_ns=(1_000_000, 1_000_100, 1_000_200))

    def _done(self, share: schema.Share, begin_ns: int, end_ns: int) -> schema.Completions:
        suite, pair = share.route.suite, (share.route.suite, share.route.device)
        mean_ns = SECOND / FEEDS_PER_S.get(pair, 16.0)
        if share.scenario == "mixed":
            mean_ns *= 1.05
        yields = sum(cost.yields for cost in self.suites[suite].costs(share.route.precision, BATCH[suite]))
        count = int((end_ns - begin_ns) / mean_ns)
        took = (mean_ns * (1 + 0.02 * self.rng.standard_normal(count * yields).clip(-2, 2)) / yields).astype(np.int64)
        marks = begin_ns + 1000 + np.cumsum(took)
        marks = marks[: len(marks[marks <= end_ns]) // yields * yields]
        ends = np.arange(yields, len(marks) + 1, yields)
        issued = np.concatenate(([begin_ns + 1000], marks[ends[:-1] - 1]))
        return schema.Completions(issued, issued, ends, marks, np.full(len(marks), BATCH[suite]))

    def _record(
        self,
        phase: schema.Phase,
        share: schema.Share,
        done: schema.Completions,
        parent_window_ns: tuple[int, int],
        conditions: tuple[schema.Conditions, ...],
    ) -> schema.Record:
        suite, batch, route = self.suites[share.route.suite], BATCH[share.route.suite], share.route
        gate = suite.gate(route.precision)
        count = min(2, len(done))
        audit = None
        if gate is not None:
            values = (gate.at_most / 2,) * count
            audit = schema.Audit(gate=gate, finished=len(done), feeds=tuple(range(count)), values=values)
        return schema.Record(
            key=share.key,
            phase=phase.name,
            route=route,
            scenario=share.scenario,
            unit=suite.unit,
            batch=batch,
            costs=tuple(suite.costs(route.precision, batch)),
            load_ns=SECOND // 20,
            run=share.run,
            ended_by="time",
            feed_units=suite.units(batch),
            parent_window_ns=parent_window_ns,
            stamped=share.scenario == "mixed",
            audit=audit,
            exempt=None if audit else "no gate",
            latency_limits=suite.latency if share.scenario != "mixed" else None,
            conditions=conditions,
            completions=done,
        )

    def _metering(
        self, phase: str, before_ns: int, begin_ns: int, end_ns: int, played: list[schema.Share]
    ) -> schema.Metering:
        self.now_ns += SECOND // 10
        at = np.arange(before_ns, self.now_ns, SECOND // 20)
        working_s = np.clip(at - begin_ns, 0, end_ns - begin_ns) / SECOND
        busy = {share.route.device for share in played}
        joules = {
            domain.id: idle * at / SECOND + (load if domain.covers[0] in busy else 0) * working_s
            for domain, idle, load in ((PACKAGE, 30.0, 60.0), (BOARD, 40.0, 250.0))
        }
        return schema.Metering(
            phase=phase,
            begin_ns=before_ns,
            end_ns=self.now_ns,
            cpu_ns=1000,
            samples={id: schema.Samples(at, at + 40_000, values) for id, values in joules.items()},
        )


def write(folder: Path, result: schema.Result, outputs: Mapping[str, Any] | None = None) -> None:
    """Writes a finished result as a run does. outputs: arrays by the keys of records, in place of made-up ones."""
    header = but(result, records=(), meterings=(), finished=False)
    keeper = store.create(folder, header)
    records = []
    for record in result.records:
        if record.audit is not None and record.audit.feeds:
            shape = (len(record.audit.feeds), record.feed_units or 1, 3)
            made = (outputs or {}).get(record.key, np.full(shape, 0.5, np.float32))
            serials = np.array(record.audit.feeds)
            previous_digests = np.zeros((len(serials), 16), np.uint8)
            arrays = {"serials": serials, "previous_digests": previous_digests, "outputs": made}
            record = with_outputs(folder, record, **arrays)
        keeper.append(record)
        records.append(record)
    for metering in result.meterings:
        keeper.meter(metering)
    keeper.finish(but(result, records=tuple(records)))


def with_outputs(folder: Path, record: schema.Record, **arrays: np.ndarray[Any, Any]) -> schema.Record:
    """Writes the audited outputs of a record. Returns the record with their hash."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    (folder / "raw" / f"{record.key}.outputs.npz").write_bytes(content.getvalue())
    assert record.audit is not None
    audit = but(record.audit, sha256=hashlib.sha256(content.getvalue()).hexdigest())
    return but(record, audit=audit)


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alters result.json, and the hashes with it, as a careful forger would."""
    content = json.loads((folder / "result.json").read_text())
    change(content)
    rehash(folder, content)


def rehash(folder: Path, content: dict[str, Any]) -> None:
    """Writes this content as result.json, and the hashes of it and of the raw files."""
    (folder / store.SUMMARY).write_text(json.dumps(content))
    write_hashes(folder)


def write_hashes(folder: Path) -> None:
    """Writes SHA256SUMS for the files as they are."""
    raw = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "raw").glob("*.npz")}
    summary = hashlib.sha256((folder / store.SUMMARY).read_bytes()).hexdigest()
    (folder / store.SUMS).write_bytes(store.checksums(summary, raw))
