"""Four suites by two adapters on a made-up machine: one failure, one refusal, two probes, one absent adapter.

The processor and the GPU are metered, and a meter dies in the middle of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

import mixmark.reporters.data
import mixmark.reporters.report
from mixmark.harness.contracts import schema, seeds
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.statistics.timestamps import latencies_ns

FOLDER = Path(__file__).parent
REPORTERS: dict[str, Callable[[Assessment], str]] = {
    "report.txt": mixmark.reporters.report.console,
    "full.txt": mixmark.reporters.report.full,
    "report.md": mixmark.reporters.report.markdown,
    "report.csv": mixmark.reporters.data.as_csv,
    "report.json": mixmark.reporters.data.as_json,
}
MS = 1_000_000


def closed_loop(feeds: Sequence[Sequence[int]], units: int = 1, begin_ns: int = 1_000) -> schema.Completions:
    """One feed after the other; each is the list of its steps in ns, every step ends in a yield of that many units."""
    issued, ends, yields = [], [], []
    now = begin_ns
    for steps in feeds:
        issued.append(now)
        for step in steps:
            now += step
            yields.append(now)
        ends.append(len(yields))
    columns = (issued, issued, ends, yields, [units] * len(yields))
    return schema.Completions(*(np.array(column) for column in columns))


def system() -> schema.System:
    return schema.System(
        cpu_model="Acme Quartz 9000",
        cpu_cores=16,
        cpu_threads=32,
        microcode="0x1",
        firmware=None,
        governor="performance",
        clock_max_mhz=4200.0,
        memory_bytes=64 << 30,
        swap_bytes=0,
        kernel="6.12.0 x86_64",
        operating_system="Example Linux 12",
        virtualization=None,
        container=None,
        python="CPython 3.12.3",
        packages={"numpy": "2.1.0", "torch": "2.9.0"},
        mixmark="0.1.0",
        git_commit=None,
    )


RIGHT = schema.Audit(gate=schema.Gate(metric="error", at_most=0.001), finished=3, feeds=(0, 2), values=(0.0, 0.0))


def record(
    key: str,
    suite: str,
    unit: str,
    completions: schema.Completions | None = None,
    *,
    adapter: str = "torch",
    device: str = "cpu:0",
    scenario: schema.ScenarioName = "single-stream",
    precision: schema.Precision = "fp32",
    batch: int | None = 1,
    costs: tuple[schema.Cost, ...] = (),
    error: schema.Failure | None = None,
) -> schema.Record:
    route = schema.Route(
        suite=suite, tier="edge", suite_version="1", device=device, adapter=adapter, precision=precision
    )
    return schema.Record(
        key=key,
        phase=key,
        route=route,
        scenario=scenario,
        unit=unit,
        batch=batch,
        costs=costs,
        load_ns=4_200 * MS if completions else None,
        feed_units=int(completions.units[: completions.ends[0]].sum()) if completions else None,
        parent_window_ns=(int(completions.issued_ns[0]), int(completions.yielded_ns.max())) if completions else None,
        peak_pss_bytes=5 << 30 if completions else None,
        completions=completions,
        error=error,
        audit=RIGHT.model_copy(update={"finished": len(completions)}) if completions else None,
    )


def probe(
    key: str, gemm_ns: int, read_ns: int, device: str = "cpu:0", precision: schema.Precision = "fp32"
) -> schema.Record:
    """A multiplication of 10 GFLOP and a read of 4 GB."""
    costs = (schema.Cost(name="gemm", flops=1e10, bytes=1e8), schema.Cost(name="read", flops=1e9, bytes=4e9))
    done = closed_loop([[gemm_ns, read_ns]] * 3)
    return record(key, "probe", "kernel", done, scenario="probe", costs=costs, device=device, precision=precision)


SUITES = tuple(
    schema.SuiteFacts(name=name, version="1", unit=unit, unit_names=names)
    for name, unit, names in (
        (
            "llm",
            "token",
            schema.UnitNames(
                short="tok",
                work="LLM tokens",
                first_unit="Time to first token (TTFT)",
                per_unit="Time per token (TPOT)",
                taken_in=128,
            ),
        ),
        ("diffusion", "image", schema.UnitNames(short="img", work="images drawn")),
        ("dlrm", "sample", schema.UnitNames(short="samples", work="recommendations")),
        ("resnet50", "image", schema.UnitNames(short="img", work="pictures classified")),
    )
)


def phase(of: schema.Record, **limits: float) -> schema.Phase:
    """The phase that a record is of, as it was planned."""
    none = {"warmup_ns": 0, "search_ns": 0, "min_ns": 0, "max_ns": 1, "min_feeds": 1}
    bounds = schema.Limits.model_validate(none | limits)
    share = schema.Share(key=of.key, route=of.route, scenario=of.scenario, run=of.run, limits=bounds)
    purpose: schema.Purpose = "probe" if of.scenario == "probe" else "solo"
    return schema.Phase(name=of.phase, purpose=purpose, tasks=(schema.Task(device=of.route.device, shares=(share,)),))


def domain(id: str = "d", covers: tuple[str, ...] = ("cpu:0",), **fields: Any) -> schema.Domain:
    """A counter of the processor's joules, unless it is changed."""
    plain = {"meter": "m", "boundary": "devices", "quantity": "energy", "method": "counter", "source": "a test"}
    return schema.Domain.model_validate({"id": id, "covers": covers} | plain | fields)


Model = TypeVar("Model", bound=BaseModel)


def but(of: Model, /, **changes: object) -> Model:
    """The model with other values; `route__device` is the field `device` of its field `route`."""
    for path, value in changes.items():
        name, _, inside = path.partition("__")
        of = of.model_copy(update={name: but(getattr(of, name), **{inside: value}) if inside else value})
    return of


def altered(whole: schema.Result, where: Callable[[schema.Record], bool], **changes: object) -> schema.Result:
    """The result with other values in the records that meet a condition."""
    return but(whole, records=tuple(but(each, **changes) if where(each) else each for each in whole.records))


def later(of: schema.Record, by_ns: int) -> schema.Record:
    """The same record, measured so much later."""
    done, bracket = of.completions, of.parent_window_ns
    blocks = (each.model_copy(update=_shifted(each, by_ns)) for each in of.conditions)
    if done is not None:
        due_ns, issued_ns, yielded_ns = (at_ns + by_ns for at_ns in (done.due_ns, done.issued_ns, done.yielded_ns))
        done = schema.Completions(due_ns, issued_ns, done.ends, yielded_ns, done.units)
    moved = bracket and (bracket[0] + by_ns, bracket[1] + by_ns)
    return of.model_copy(update={"completions": done, "parent_window_ns": moved, "conditions": tuple(blocks)})


def metered_later(of: schema.Metering, by_ns: int) -> schema.Metering:
    samples = {
        id: schema.Samples(read.before_ns + by_ns, read.after_ns + by_ns, read.values)
        for id, read in of.samples.items()
    }
    idle_ns = tuple((begin_ns + by_ns, end_ns + by_ns) for begin_ns, end_ns in of.idle_ns)
    return of.model_copy(update={**_shifted(of, by_ns), "idle_ns": idle_ns, "samples": samples})


def _shifted(of: schema.Conditions | schema.Metering, by_ns: int) -> dict[str, int]:
    return {"begin_ns": of.begin_ns + by_ns, "end_ns": of.end_ns + by_ns}


def apart(whole: schema.Result) -> schema.Result:
    """The same as a folder has it: planned, each phase an hour after the one before it, the suites of a version that is
    not installed, since their costs are made up."""
    shift_ns = {measured.phase: number * 3600 * SECOND for number, measured in enumerate(whole.records)}
    records = [but(later(each, shift_ns[each.phase]), route__suite_version="0") for each in whole.records]
    meterings = (metered_later(each, shift_ns[each.phase]) for each in whole.meterings)
    devices = tuple(device.model_copy(update={"precisions": ("fp32", "bf16", "int8")}) for device in whole.devices)
    facts = {"devices": devices, "records": tuple(records), "meterings": tuple(meterings)}
    return whole.model_copy(update={**facts, "phases": tuple(map(phase, records))})


def result(*records: schema.Record, finished: bool = True, absent: tuple[schema.Absent, ...] = ()) -> schema.Result:
    return schema.Result(
        created_utc="2026-01-02T03:04:05+00:00",
        tier="edge",
        preset="quick",
        command=("mixmark", "run"),
        system=system(),
        devices=(
            schema.Device(id="cpu:0", kind="cpu", name="Acme Quartz 9000", memory_pool="host", memory_bytes=64 << 30),
            schema.Device(id=GPU, kind="gpu", name="Acme Topaz", memory_pool=GPU, memory_bytes=24 << 30),
        ),
        environments={
            "torch": schema.Environment(
                origin="built in",
                spec="mixmark.harness.adapters.torch:Torch",
                python="CPython 3.12.3",
                mixmark="0.1.0",
                packages={"numpy": "2.1.0", "torch": "2.9.0"},
                vendor={"CUDA": "13.0", "NVIDIA driver": "580.1"},
            )
        },
        absent=absent,
        suites=SUITES,
        records=records,
        finished=finished,
    )


GPU = "gpu:GPU-5d1cae40-0000-4000-8000-0123456789ab"


DOMAINS = (
    domain("rapl/intel-rapl:0", meter="rapl", wrap_joules=262_143.0),
    domain("nvml/GPU-5d1cae40/energy", (GPU,), meter="nvml"),
    domain("nvml/GPU-5d1cae40/power", (GPU,), meter="nvml", quantity="power", method="integrated"),
)
SECOND = 1_000 * MS


def metering(of: schema.Record, lost: bool = False) -> schema.Metering:
    """Five seconds idle, the record, five seconds idle: 35 W and 95 W of the processor, 40 W and 310 W of the GPU."""
    assert of.completions is not None
    end_ns = int(of.completions.yielded_ns.max())
    at_ns = np.arange(-6 * SECOND, end_ns + 6 * SECOND, 100 * MS)
    working_s = np.clip(at_ns, 0, end_ns) / 1e9
    on_gpu = of.route.device == GPU
    host = 35 * at_ns / 1e9 + (20 if on_gpu else 60) * working_s + 260_000
    board = 40 * at_ns / 1e9 + (270 if on_gpu else 0) * working_s + 9_000
    watts = np.where((at_ns > 0) & (at_ns < end_ns) & on_gpu, 310.0, 40.0) + np.sin(at_ns / 4e8)
    columns = dict(zip((domain.id for domain in DOMAINS), (host % 262_143.0, board, watts), strict=True))
    read = {id: len(at_ns) // 2 if lost and id == DOMAINS[0].id else len(at_ns) for id in columns}
    return schema.Metering(
        phase=of.phase,
        begin_ns=int(at_ns[0]),
        end_ns=int(at_ns[-1]),
        cpu_ns=len(at_ns) * 120_000,
        idle_ns=((int(at_ns[0]), -SECOND), (end_ns + SECOND, int(at_ns[-1]))),
        samples={
            id: schema.Samples(at_ns[: read[id]], at_ns[: read[id]] + 40_000, columns[id][: read[id]]) for id in columns
        },
        lost={DOMAINS[0].id: "OSError: No such device"} if lost else {},
    )


def sample() -> schema.Result:
    measured = unmetered()
    done = [solo for solo in measured.records if solo.completions and solo.scenario != "probe"]
    meterings = tuple(metering(solo, lost=solo.key.startswith("007")) for solo in done)
    return measured.model_copy(update={"domains": DOMAINS, "meterings": meterings})


def unmetered() -> schema.Result:
    prefill, fast_prefill = (schema.Cost(name="prefill", flops=3e11, bytes=size) for size in (4.5e9, 2.5e9))
    decode, fast_decode = (schema.Cost(name="decode", flops=2.5e9, bytes=size, yields=127) for size in (4.5e9, 2.5e9))
    llm = [[1_710 * MS, *[243 * MS + 7 * feed] * 127] for feed in range(3)]
    fast_llm = closed_loop([[61 * MS, *[4_100_000 + 900 * feed] * 127] for feed in range(70)])
    dlrm = closed_loop([[380 * MS + 1_000 * feed] for feed in range(700)], units=2048)
    slow_dlrm = closed_loop([[560 * MS]] * 80, units=2048)
    resnet50 = closed_loop([[113 * MS]] * 8 + [[140 * MS]] * 70)
    on_cpu = partial(record, costs=(prefill, decode))
    batched = partial(
        record, scenario="offline", batch=2048, costs=(schema.Cost(name="forward", flops=4e10, bytes=2e9),)
    )
    killed = schema.Failure(
        kind="out of memory",
        message="the kernel killed the worker at 61.2 GiB while it was loading",
        hint="free memory, or choose --tier smoke",
    )
    refused = schema.Failure(kind="refused", message="64.2 GiB needed, 12.0 GiB of memory pool host are free")
    gpu: dict[str, Any] = {"device": GPU, "precision": "bf16"}
    onnx: dict[str, Any] = {"adapter": "onnxruntime"}
    forward = (schema.Cost(name="forward", flops=8.2e9, bytes=1e8),)
    return result(
        probe("000.probe.torch.cpu-0.fp32", 70 * MS, 210 * MS),
        on_cpu("001.llm.torch.cpu-0.fp32", "llm", "token", closed_loop(llm)),
        on_cpu("002.llm.onnxruntime.cpu-0.fp32", "llm", "token", closed_loop(llm[:1]), **onnx),
        record("003.llm.torch.gpu.bf16", "llm", "token", fast_llm, costs=(fast_prefill, fast_decode), **gpu),
        record("004.diffusion.torch.cpu-0.fp32", "diffusion", "image", closed_loop([[11_300 * MS]] * 4)),
        record("005.diffusion.onnxruntime.cpu-0.fp32", "diffusion", "image", error=killed, **onnx),
        batched("006.dlrm.torch.cpu-0.fp32", "dlrm", "sample", dlrm),
        batched("007.dlrm.onnxruntime.cpu-0.fp32", "dlrm", "sample", slow_dlrm, **onnx),
        record("008.resnet50.torch.cpu-0.fp32", "resnet50", "image", resnet50, costs=forward),
        record("009.resnet50.onnxruntime.cpu-0.int8", "resnet50", "image", precision="int8", error=refused, **onnx),
        probe("010.probe.torch.cpu-0.fp32", 80 * MS, 212 * MS),
        probe("011.probe.torch.gpu.bf16", 100_000, 4 * MS, **gpu),
        absent=(schema.Absent(kind="adapter", name="openvino", reason="No module named 'openvino'"),),
    )


SEED = 7
LIMITS = schema.LatencyLimits(percentile=0.9, total_ns=10**9, source="test")


def server(done: schema.Completions, rate_per_s: float = 5.0, **others: Any) -> schema.Result:
    """A server that takes as long for each feed as the closed loop did; its seed says when they are due."""
    due = seeds.schedule(rate_per_s, seeds.arrivals(SEED), len(done))
    ends = [0]
    for when, took in zip(due.tolist(), latencies_ns(done).tolist(), strict=True):
        ends.append(max(when, ends[-1]) + took)
    issued = np.array(ends[1:]) - latencies_ns(done)
    served = schema.Completions(
        due, issued, np.arange(1, len(due) + 1), np.array(ends[1:]), np.ones(len(due), np.int64)
    )
    made = record("a", "llm", "token", served, scenario="server")
    facts = {"rate_per_s": rate_per_s, "seed": SEED, "latency_limits": LIMITS, "parent_window_ns": (0, ends[-1])}
    return result(made.model_copy(update={**facts, **others}))
