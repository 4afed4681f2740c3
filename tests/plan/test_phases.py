"""What is measured, in which order, for how long."""

from __future__ import annotations

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Device, Phase, Precision, Share, Tier
from mixmark.harness.plan import presets
from mixmark.harness.plan.phases import Target, Workload, solo
from mixmark.harness.plan.presets import PRESETS, PROBING, SMOKE

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host", precisions=("fp32",))
GPU = Device(id="gpu:GPU-4f", kind="gpu", memory_pool="gpu:GPU-4f", precisions=("bf16", "fp32"))
LLM = Workload("llm", "1", ("single-stream",))
DLRM = Workload("dlrm", "1", ("offline", "single-stream"), {"rows": "full"}, "a.safetensors sampled-sha256:00")
PROBE = Workload("probe", "1", ("probe",))
TARGETS = (
    Target(CPU, "torch", {"threads": "2"}),
    Target(CPU, "onnxruntime", {}),
    Target(GPU, "torch", {"threads": "2"}),
)


def cells(phases: tuple[Phase, ...]) -> list[tuple[str, ...]]:
    routes = [(share.route, share.scenario) for share in shares(phases)]
    return [(it.device, it.adapter, it.suite, it.precision, scenario) for it, scenario in routes]


def shares(phases: tuple[Phase, ...]) -> list[Share]:
    return [phase.tasks[0].shares[0] for phase in phases]


def test_quick_is_the_native_scenario_of_each_suite_between_two_probes() -> None:
    probe = ("probe", "fp32", "probe")
    rows = [probe, ("llm", "fp32", "single-stream"), ("dlrm", "fp32", "offline"), probe]
    expected = [("cpu:0", adapter, *row) for adapter in ("torch", "onnxruntime") for row in rows]
    assert cells(solo(TARGETS, (LLM, DLRM), "edge", PRESETS["quick"], probe=PROBE))[:8] == expected


def test_standard_is_all_scenarios_and_a_device_runs_its_best_precision() -> None:
    """A share holds the options and the weights. Only the offline scenario searches for its batch."""
    phases = solo(TARGETS[2:], (DLRM,), "edge", PRESETS["standard"])
    assert cells(phases) == [
        ("gpu:GPU-4f", "torch", "dlrm", "bf16", "offline"),
        ("gpu:GPU-4f", "torch", "dlrm", "bf16", "single-stream"),
    ]
    assert [share.batch for share in shares(phases)] == [None, 1]
    route = shares(phases)[0].route
    assert (route.options, route.suite_options) == ({"threads": "2"}, {"rows": "full"})
    assert route.weights == "a.safetensors sampled-sha256:00"


def test_a_run_in_few_bits_has_a_wide_probe_also_if_a_suite_is_not_offered_in_them() -> None:
    mixed = CPU.model_copy(update={"precisions": ("fp32", "int8"), "precisions_by_suite": {"dlrm": ("fp32",)}})
    phases = solo((Target(mixed, "torch", {}),), (LLM, DLRM), "edge", PRESETS["quick"], ("int8",), probe=PROBE)
    assert [cell[2:4] for cell in cells(phases)][:3] == [("probe", "fp32"), ("probe", "int8"), ("llm", "int8")]


def test_a_server_is_measured_where_it_is_asked_for() -> None:
    server = Workload("llm", "1", ("single-stream", "server"))
    assert [c[-1] for c in cells(solo(TARGETS[:1], (server,), "edge", PRESETS["standard"]))] == ["single-stream"]
    (share,) = shares(solo(TARGETS[:1], (server,), "edge", PRESETS["quick"], (), ("server",), rate_per_s=2.5))
    assert (share.scenario, share.rate_per_s, share.batch) == ("server", 2.5, 1)


@pytest.mark.parametrize(("precision", "needed_gib"), [("fp32", 16), ("bf16", 32)])
def test_a_probe_streams_nothing_where_its_matrices_would_take_more_than_a_quarter_of_the_memory(
    precision: Precision, needed_gib: int
) -> None:
    """Four times a cache of 1 GiB, which the reference holds in fp32."""
    probe = Workload("probe", "1", ("probe",), {"cache_bytes": str(1 << 30)})

    def streamed(memory_bytes: int) -> str:
        device = CPU.model_copy(update={"memory_bytes": memory_bytes, "precisions": (precision,)})
        first, *_ = shares(solo((Target(device, "torch", {}),), (LLM,), "edge", PRESETS["quick"], probe=probe))
        return first.route.suite_options["cache_bytes"]

    assert streamed(needed_gib << 30) == str(1 << 30)
    assert streamed((needed_gib << 30) - 16) == "0"


@pytest.mark.parametrize(
    ("kind", "memory_gib", "tier", "size"),
    [("cpu", 512, "edge", None), ("gpu", 15, "edge", None), ("gpu", 16, "edge", "large"), ("gpu", 80, "smoke", None)],
)
def test_a_gpu_with_much_memory_has_a_probe_that_fills_it(
    kind: str, memory_gib: int, tier: Tier, size: str | None
) -> None:
    device = CPU.model_copy(update={"kind": kind, "memory_bytes": memory_gib << 30})
    first, *_ = shares(solo((Target(device, "torch", {}),), (LLM,), tier, PRESETS["quick"], probe=PROBE))
    assert first.route.suite_options.get("size") == size


def test_runs_of_a_cell_lie_apart() -> None:
    phases = solo(TARGETS[:2], (LLM,), "edge", PRESETS["quick"], runs=2)
    runs = [(route[1], share.run) for route, share in zip(cells(phases), shares(phases), strict=True)]
    assert runs == [(adapter, run) for run in (1, 2) for adapter in ("torch", "onnxruntime")]
    assert len({share.key for share in shares(phases)}) == 4


def test_keys_are_unique_and_safe_as_file_names() -> None:
    keys = [share.key for share in shares(solo(TARGETS, (LLM, DLRM), "edge", PRESETS["standard"], probe=PROBE))]
    assert len(set(keys)) == len(keys)
    assert keys[-1] == "014.probe.torch.gpu-gpu-4f.bf16.probe"


def test_limits_follow_preset_tier_and_probe() -> None:
    def of(tier: Tier) -> list[object]:
        return [s.limits for s in shares(solo(TARGETS[:1], (LLM,), tier, PRESETS["quick"], probe=PROBE))]

    assert of("edge") == [PROBING, PRESETS["quick"].limits, PROBING]
    assert of("smoke") == [PROBING, SMOKE, PROBING]


def test_a_device_runs_each_suite_in_what_it_offers_to_that_suite() -> None:
    engine = CPU.model_copy(update={"precisions_by_suite": {"llm": ("int4", "int8"), "resnet50": ()}})
    resnet50 = Workload("resnet50", "1", ("offline",))
    targets, suites = [Target(engine, "acme", {})], (LLM, DLRM, resnet50)
    assert [c[2:4] for c in cells(solo(targets, suites, "edge", PRESETS["quick"], probe=PROBE, bits=4))] == [
        ("llm", "int4"),  # the probe is not offered in it
        ("llm", "int8"),
        ("probe", "fp32"),
        ("dlrm", "fp32"),
        ("probe", "fp32"),
    ]
    asked = solo(targets, suites, "edge", PRESETS["quick"], ("int8", "fp32"))
    assert [c[2:4] for c in cells(asked)] == [("llm", "int8"), ("dlrm", "fp32")]
    with pytest.raises(UsageError, match="nothing is left to run"):
        solo(targets, (resnet50,), "edge", PRESETS["quick"])


def test_a_suite_of_a_section_is_offered_what_its_plugin_is_and_may_have_precisions_of_its_own() -> None:
    file = Workload("Qwen3", "1", ("single-stream",), {"plugin": "gguf-file"}, precisions=("as-file",))
    engine = CPU.model_copy(update={"precisions": (), "precisions_by_suite": {"gguf-file": ("as-file",)}})
    phases = solo([*TARGETS, Target(engine, "llamacpp", {})], (file, LLM), "edge", PRESETS["quick"])
    assert [cell for cell in cells(phases) if "llm" not in cell] == [
        ("cpu:0", "llamacpp", "Qwen3", "as-file", "single-stream")
    ]


@pytest.mark.parametrize(
    ("seconds", "mixed", "tier", "words"),
    [
        (40, True, "edge", "--preset quick is long enough"),
        (130, True, "edge", "--preset official is long enough"),
        (400, True, "edge", "--preset quick may be long enough"),
        (2_400, True, "edge", "--preset official may be long enough"),
        (4_000, True, "edge", "no preset is long enough"),
        (30, False, "edge", "--preset standard is long enough"),
        (9, True, "smoke", "--tier edge --preset quick is long enough"),
    ],
)
def test_the_first_preset_whose_windows_are_long_enough(seconds: int, mixed: bool, tier: str, words: str) -> None:
    assert presets.long_enough(seconds * presets.SECOND, mixed, tier) == words
