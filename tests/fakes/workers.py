"""Real workers of the fake adapter, and the requests that most tests send them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Limits, ScenarioName
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import messages
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.outputs import Commitments
from tests.fakes.acme import DEVICE

FAKES = Path(__file__).parent
ROOT = FAKES.parent.parent
ACME = Plugin("adapters", "acme", f"{FAKES / 'acme.py'}:Acme", "test")
NULL = messages.SuiteChoice(name="null", spec=f"{FAKES / 'null.py'}:Null", tier="smoke")
SEED = 7
"""The seed of the window."""
LIMITS = Limits(warmup_ns=0, search_ns=10**8, min_ns=0, max_ns=10**9, min_feeds=3)


def worker(tmp_path: Path, mode: str = "fine", plugin: Plugin = ACME, **options: str) -> Worker:
    return Worker(plugin, {"mode": mode, **options}, tmp_path, tmp_path / "log")


def opened(
    worker: Worker, suite: messages.SuiteChoice = NULL, free_bytes: int | None = None, key: str = "a"
) -> messages.Opened:
    request = messages.Open(
        key=key, device=DEVICE, suite=suite, precision="fp32", scenario="offline", free_bytes=free_bytes
    )
    return worker.call(request, 30)


def measured(
    worker: Worker,
    tmp_path: Path,
    timeout_s: float = 30,
    scenario: ScenarioName = "single-stream",
    batch: int | None = 1,
    rate_per_s: float | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    **limits: int,
) -> messages.Prepared:
    """Prepares and measures; leaves stamps.npz, and outputs.npz with what was handed over."""
    bounds = LIMITS.model_copy(update=limits)
    request = messages.Prepare(key="a", scenario=scenario, batch=batch, rate_per_s=rate_per_s, seed=1, limits=bounds)
    prepared = worker.call(request, timeout_s, on_stage)
    worker.call(messages.Begin(key="a", pool=seeds.pool(SEED)), timeout_s)
    measure = messages.Measure(key="a", seed=SEED, limits=bounds, out=str(tmp_path / "stamps.npz"))
    worker.call(measure, timeout_s, on_stage, on_window=Commitments().receive)
    worker.call(messages.HandOver(key="a", outputs=str(tmp_path / "outputs.npz")), timeout_s, on_stage)
    return prepared
