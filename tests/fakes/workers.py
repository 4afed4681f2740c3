"""Real workers of the fake adapter, and the calls that most tests make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Limits, ScenarioName
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import AdapterCalls, Opened, Prepared, SuiteChoice
from mixmark.harness.worker.outputs import Commitments
from tests.fakes.acme import DEVICE

FAKES = Path(__file__).parent
ROOT = FAKES.parent.parent
ACME = Plugin("adapters", "acme", f"{FAKES / 'acme.py'}:Acme", "test")
NULL = SuiteChoice(name="null", spec=f"{FAKES / 'null.py'}:Null", tier="smoke")
SEED = 7
"""The seed of the window."""
LIMITS = Limits(warmup_ns=0, search_ns=10**8, min_ns=0, max_ns=10**9, min_feeds=3)


def worker(tmp_path: Path, mode: str = "fine", plugin: Plugin = ACME, **options: str) -> Worker:
    return Worker(plugin, {"mode": mode, **options}, tmp_path, tmp_path / "log")


def opened(worker: Worker, suite: SuiteChoice = NULL, free_bytes: int | None = None, key: str = "a") -> Opened:
    return worker.call(AdapterCalls.open, 30)(
        key=key, device=DEVICE, suite=suite, precision="fp32", scenario="offline", free_bytes=free_bytes
    )


def measured(
    worker: Worker,
    tmp_path: Path,
    timeout_s: float = 30,
    scenario: ScenarioName = "single-stream",
    batch: int | None = 1,
    rate_per_s: float | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    **limits: int,
) -> Prepared:
    """Prepares and measures; leaves stamps.npz, and outputs.npz with what was handed over."""
    bounds = LIMITS.model_copy(update=limits)
    prepare = worker.call(AdapterCalls.prepare, timeout_s, on_stage)
    prepared = prepare(key="a", scenario=scenario, batch=batch, rate_per_s=rate_per_s, seed=1, limits=bounds)
    worker.call(AdapterCalls.begin, timeout_s)(key="a", pool=seeds.pool(SEED))
    for turn in range(1000 if scenario == "server" else 0):
        worker.send(AdapterCalls.reveal, key="a", turn=turn, secret=seeds.secret(SEED, turn))
    measure = worker.call(AdapterCalls.measure, timeout_s, on_stage, window=Commitments())
    measure(key="a", seed=SEED, limits=bounds, out=str(tmp_path / "stamps.npz"))
    worker.call(AdapterCalls.hand_over, timeout_s, on_stage)(key="a", outputs=str(tmp_path / "outputs.npz"))
    return prepared
