"""Devices that nobody measured: bounds from a datasheet by hand, declared rates, the shipped table."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.plan import assumed
from mixmark.harness.capabilities.plan.assumed import Batch, Workload, workload
from mixmark.harness.capabilities.plan.machine import Basis, Kind
from mixmark.harness.capabilities.plan.prices import Declared, datasheets
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Cost
from mixmark.harness.plugins import registry

COSTS = (
    Cost(name="prefill", flops=4e12, min_flops=3.2e12, bytes=1e9),
    Cost(name="decode", flops=1e9, bytes=1e10, streamed_bytes=1e10, yields=9),
)
WORK = Workload([Batch("bf16", 10, COSTS), Batch("int8", 10, COSTS)], {"bf16": 8_000_000_000, "int8": 4_000_000_000})
SHEET = Declared(source="a datasheet", memory_gb=8, gb_per_s=1000, tflops={"bf16": 4}, watts=300, idle_watts=50)


def made(sheet: Declared, work: Workload | str = WORK, fraction: float = 0.5) -> Kind:
    return assumed.kind("Acme Opal", sheet, {"llm": work}, fraction)


def test_a_datasheet_bounds_a_rate_by_its_peak_and_its_bandwidth() -> None:
    """The prefill takes 1 s of 4 TFLOP/s, and 0.8 s by the most economical algorithm; each of 9 decodes takes 10 ms of
    1,000 GB/s: 10 tokens in 1.09 s, and in 0.89 s at best."""
    kind = made(SHEET)
    usual, at_most = 10 / 1.09, 10 / (0.8 + 9 * 0.01)
    (speed,) = kind.speeds
    assert kind.name == "Acme Opal (assumed)"
    assert (speed.suite, speed.extra_watts, speed.memory_bytes) == ("llm", 250, 8_000_000_000)
    assert speed.units_per_s == Estimate(usual / 2, usual / 2, at_most)
    assert kind.idle_watts == 50
    assert kind.assumption is not None
    assert kind.assumption.suites == {"llm": Basis(usual / 2, at_most, "compute in bf16", 8_000_000_000)}


def test_a_declared_rate_replaces_the_bound() -> None:
    assert made(SHEET.model_copy(update={"rates": {"llm": 7.5}})).speeds[0].units_per_s == Estimate(7.5)


def test_the_fastest_precision_that_has_a_peak_is_the_bound() -> None:
    both = SHEET.model_copy(update={"tflops": {"bf16": 4.0, "int8": 40.0}})
    assert made(both, fraction=1.0).speeds[0].units_per_s.estimate == pytest.approx(10 / 0.19)
    basis = made(both).assumption
    assert basis is not None
    assert basis.suites["llm"].limit == "compute in int8"
    fast = made(SHEET.model_copy(update={"tflops": {"bf16": 4000.0}})).assumption
    assert fast is not None
    assert fast.suites["llm"].limit == "memory in bf16"


@pytest.mark.parametrize(
    ("sheet", "work", "message"),
    [
        (SHEET.model_copy(update={"source": None}), WORK, "has no source"),
        (SHEET.model_copy(update={"memory_gb": 7.9}), WORK, "nothing gives it a rate"),
        (SHEET.model_copy(update={"gb_per_s": None}), WORK, "nothing gives it a rate"),
        (SHEET.model_copy(update={"tflops": {"fp8": 4}}), WORK, "nothing gives it a rate"),
        (SHEET, "its cost model is not of Mixmark: give its rate", "nothing gives it a rate"),
        (Declared(source="s", rates={"lmm": 4}), WORK, "there is no suite in the mix 'lmm'"),
    ],
)
def test_an_assumption_without_a_source_or_a_rate_is_refused(
    sheet: Declared, work: Workload | str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        made(sheet, work)


def test_a_shipped_datasheet_is_used_only_when_it_is_named_and_a_users_figures_replace_its_own() -> None:
    work = {"llm": WORK}
    assert list(assumed.kinds([], {}, work, ["Acme Quartz"], 0.5)) == []
    assert list(assumed.kinds(["Acme Quartz"], {"Acme Beryl": Declared(price=3)}, work, ["Acme Quartz"], 0.5)) == []
    (named,) = assumed.kinds(["NVIDIA L4"], {}, work, ["Acme Quartz"], 0.5)
    (priced,) = assumed.kinds([], {"NVIDIA L4": Declared(price=2500, watts=60)}, work, ["Acme Quartz"], 0.5)
    assert (named.price, named.idle_watts, priced.price, priced.idle_watts) == (None, 72, 2500, 60)
    assert named.speeds[0].units_per_s == priced.speeds[0].units_per_s
    with pytest.raises(UsageError, match="'H100'; a file can describe it: --prices ") as caught:
        list(assumed.kinds(["H100"], {}, work, ["Acme Quartz"], 0.5))
    assert caught.value.hint.startswith("did you mean NVIDIA H100 SXM?")


def test_every_shipped_datasheet_has_a_public_source_and_bounds_the_suites_of_a_mix() -> None:
    works = {suite: workload(suite, "edge", 16) for suite in ("llm", "resnet50")}
    sheets = datasheets()
    assert {"NVIDIA H100 SXM", "NVIDIA B200", "AMD Instinct MI300X", "Cerebras WSE-3 (CS-3)"} <= sheets.keys()
    for name, sheet in sheets.items():
        assert "https://" in (sheet.source or ""), name
        kind = assumed.kind(name, sheet, works, 1.0)
        assert {speed.suite for speed in kind.speeds} == ({"resnet50"} if "Groq" in name else {"llm", "resnet50"}), name


def test_the_bound_of_an_answer_is_that_of_its_suites_own_cost_model() -> None:
    """A prompt's 2.51e11 FLOPs at 989.5 TFLOP/s, then 127 tokens of 2.47 GB at 3,350 GB/s. The llm has batch 1."""
    work = workload("llm", "edge", 16)
    assert isinstance(work, Workload)
    assert {batch.units for batch in work.batches} == {128}
    found = assumed.bound(datasheets()["NVIDIA H100 SXM"], work)
    assert found is not None
    (prefill, decode) = next(batch.costs for batch in work.batches if batch.precision == "bf16")
    took_s = max(prefill.flops / 989.5e12, prefill.streamed_bytes / 3350e9) + 127 * decode.streamed_bytes / 3350e9
    assert found.at_most == pytest.approx(128 / took_s)
    assert found.at_most == pytest.approx(1353, rel=0.01)


def test_the_work_of_another_packages_suite_is_unknown() -> None:
    assert workload("speechnet", "edge", 16) == "its cost model is not of Mixmark: give its rate"


@pytest.mark.slow
@pytest.mark.skipif("train" not in registry.BUILT_IN["suites"], reason="no suite without 8 bits is installed")
def test_a_plan_takes_the_classes_that_a_suite_has() -> None:
    planned = workload("train", "smoke", 4)
    assert not isinstance(planned, str)
    assert set(planned.memory_bytes) == {"fp32", "bf16", "fp16"}
    assert {batch.precision for batch in planned.batches} == {"fp32", "bf16", "fp16"}
