"""The train suite: equal to transformers and torch.optim, costed as counted, and nothing of a step can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest

from mixmark.harness.adapters.onnxruntime import OnnxRuntime
from mixmark.harness.adapters.openvino import OpenVino
from mixmark.harness.adapters.torch import Torch
from mixmark.harness.adapters.torch.counted import Counted
from mixmark.harness.capabilities.train import ADAMW, FOLDS, SEQUENCES, STEP, TABLES, Train, spread
from mixmark.harness.contracts.errors import Unsupported, WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed, Use
from mixmark.harness.measure.audit import CPU
from mixmark.harness.plugins import registry

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
separation = pytest.importorskip("bench.capabilities.train.separation")
SUITE = Train("smoke", {})
FEED = SUITE.feeds(1, 1)(0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def step(**settings: Any) -> Any:
    """The smoke tier's network, with the settings of a cheat."""
    module = separation.loaded(SUITE, SUITE.weights())
    for name, value in settings.items():
        setattr(module, name, value)
    return module


def output(module: Any, feed: Feed = FEED) -> Array:
    return np.concatenate(list(SUITE.infer(separation.Eager(module), feed)))


@pytest.fixture(scope="module")
def right() -> Array:
    return output(step())


def bound(precision: str = "bf16") -> float:
    gate = SUITE.gate(precision)
    assert gate is not None
    return gate.at_most


def test_equal_to_transformers_and_torch_optim(right: Array) -> None:
    """The losses and each projected change, computed by the public network and the public optimizer."""
    pytest.importorskip("transformers")
    from bench.capabilities.train.torch import public_llama

    peer = public_llama(SUITE)
    before = {name: peer.get_parameter(name).detach().clone() for name in SUITE.weights().names()}
    optimizer = torch.optim.AdamW(
        peer.parameters(),
        lr=ADAMW["lr"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["eps"],
        weight_decay=ADAMW["weight_decay"],
        foreach=False,
    )
    for name, tensor in ((name, peer.get_parameter(name)) for name in before):
        moments = {"exp_avg": torch.zeros_like(tensor), "exp_avg_sq": torch.full_like(tensor, spread(name) ** 2)}
        optimizer.state[tensor] = {"step": torch.tensor(float(STEP)), **moments}
    ids, (rows, columns) = torch.from_numpy(FEED["ids"]), torch.from_numpy(FEED["key"])
    logits = peer(ids[:, :-1]).logits.flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    losses.sum().backward()
    optimizer.step()
    expected = []
    in_ids = np.isin(np.arange(SUITE.shape.vocabulary), FEED["ids"])
    for name in before:
        tensor = peer.get_parameter(name)
        state = optimizer.state[tensor]
        kept = ADAMW["beta2"] * spread(name) ** 2
        for change in (tensor.detach() - before[name], state["exp_avg"], state["exp_avg_sq"] - kept):
            flat = change.reshape(-1, change.shape[-1]).double().numpy()
            for block in (in_ids, ~in_ids) if name in TABLES else (slice(None),):
                for row_signs, signs in zip(rows.double().numpy(), columns.double().numpy(), strict=True):
                    sums = row_signs[: len(flat)][block] @ flat[block] * signs[: flat.shape[1]]
                    expected += [sums[fold::FOLDS].sum() for fold in range(FOLDS)]
    padded = np.zeros(right[:, 1:].size)
    padded[: len(expected)] = expected
    table = np.concatenate((losses.detach().numpy()[:, None], padded.reshape(len(right), -1)), 1)
    assert SUITE.quality(right, table.astype(np.float32)) < bound("fp32") / 10


@pytest.mark.parametrize(("tier", "parameters"), [("edge", 134_515_008), ("server", 1_235_814_400)])
def test_the_tiers_have_the_size_of_the_public_models(tier: str, parameters: int) -> None:
    suite = Train(tier, {})
    weights = suite.weights()
    shapes = {name: weights.spec(name).shape for name in weights.names()}
    assert sum(prod(map(int, size)) for size in shapes.values()) == parameters
    module = suite.graphs()["step"].module()
    assert {name: tuple(tensor.shape) for name, tensor in module.named_parameters()} == shapes


def test_the_cost_is_what_the_counter_counts() -> None:
    """At the smoke tier, whose attention computes all pairs when it is counted."""
    found = {"flops": 0, "weights": 0}
    engine = Counted({"count": "true"})
    with engine.open(CPU, SUITE, "fp32", Use.of("single-stream")) as runner:
        list(runner(FEED))
        found = {name: int(runner.facts[name]) for name in found}
    (cost,) = SUITE.costs("fp32", 1)
    shape = SUITE.shape
    unseen = SEQUENCES * shape.tokens_in * (shape.tokens_in - 1) / 2
    assert cost.flops == found["flops"] - 3 * 4 * shape.heads * shape.head_dim * shape.layers * unseen
    assert found["weights"] == 721_792
    head = shape.vocabulary * shape.width
    assert cost.min_flops == cost.flops - 2 * (2 * SUITE.units(1) * head)
    matrices = 721_792 - 7 * shape.width
    assert cost.bytes == cost.streamed_bytes == 4 * (2 * matrices - head)
    assert SUITE.costs("bf16", 1)[0].bytes == 2 * (2 * matrices - head)


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [(torch.bfloat16, {}), (torch.float16, {}), (torch.bfloat16, {"cut": separation.Cut(least=2**-12)})],
    ids=["bf16", "fp16", "bf16 with Cut Cross-Entropy, whose products are not in min_flops"],
)
def test_sixteen_bits_pass_their_gate_and_not_that_of_fp32(dtype: Any, settings: Any, right: Array) -> None:
    assert bound("fp32") < SUITE.quality(output(step(**settings).to(dtype)), right) < bound() / 1.2


def test_sums_in_bf16_pass(right: Array) -> None:
    with separation.SumsInBf16():
        found = output(step().to(torch.bfloat16))
    assert SUITE.quality(found, right) < bound() / 1.2


@pytest.mark.parametrize("group", [None, 32, 16])
def test_weights_of_eight_bits_fail_though_all_else_is_in_fp32(group: int | None, right: Array) -> None:
    from bench.separation import integers

    module = separation.loaded(SUITE, SUITE.weights(), partial(integers, bits=8, group=group))
    assert SUITE.quality(output(module), right) > bound() * 1.2


LAST = f"model.layers.{SUITE.shape.layers - 1}.mlp.down_proj.weight"


@pytest.mark.parametrize(
    "settings",
    [
        {"kept": lambda _: False},
        {"sequences": slice(None, None, 2)},
        {"kept": lambda name: not name.startswith("model.layers.0.")},
        {"kept": lambda name: name != LAST},
        {"stale": lambda name: name == "model.norm.weight"},
        {"stale": lambda name: name == LAST},
        {"decay": False},
        {"second_moment": False},
        {"rows_left_out": 0.2},
    ],
    ids=["backward", "half", "layer", "tensor", "norm's step", "tensor's step", "decay", "second moment", "rows"],
)
def test_a_part_of_the_step_that_is_left_out_fails(right: Array, settings: dict[str, Any]) -> None:
    assert SUITE.quality(output(step(**settings)), right) > 10 * bound()


@pytest.mark.parametrize("cut", separation.CUTS.values(), ids=separation.CUTS)
def test_a_part_of_the_output_head_that_is_left_out_fails(right: Array, cut: Any) -> None:
    assert SUITE.quality(output(step(cut=cut)), right) > 100 * bound()


@pytest.mark.parametrize("at", range(SUITE.shape.layers))
def test_a_skipped_layer_fails(right: Array, at: int) -> None:
    module = step()
    for name, tensor in module.model.layers[at].state_dict().items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    assert SUITE.quality(output(module), right) > 10 * bound()


def test_an_output_of_nothing_of_another_feed_or_with_one_wrong_loss_fails(right: Array) -> None:
    one_loss = right.copy()
    one_loss[5, 0] = right[:, 0].mean() + 2 * right[:, 0].std()
    for wrong in (np.zeros_like(right), output(step(), SUITE.feeds(1, 1)(1)), one_loss):
        assert SUITE.quality(wrong, right) > 10 * bound()
    assert SUITE.quality(right, right) == 0
    for odd in (right[:-1], right.astype(np.float64), np.full_like(right, np.nan)):
        with pytest.raises(WrongOutput):
            SUITE.quality(odd, right)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_session_of_torch_starts_each_feed_from_the_published_state(precision: str, right: Array) -> None:
    """In inference mode, and eagerly where modules are otherwise fused."""
    adapter = Torch({"threads": "1"})
    cpu = next(device for device in adapter.discover() if device.id == CPU.id)
    if precision not in cpu.precisions:
        pytest.skip("this processor multiplies no bf16")
    with adapter.open(cpu, SUITE, precision, Use.of("single-stream")) as runner:
        outputs = [np.concatenate(list(runner(feed))) for feed in (FEED, SUITE.feeds(1, 1)(1), FEED)]
    assert SUITE.quality(outputs[0], right) < bound(precision)
    assert (outputs[0] == outputs[2]).all()


def test_steps_share_memory_and_a_step_that_failed_leaves_nothing_to_the_next(
    right: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mixmark.harness.capabilities.train.network import Step

    module = step()
    module.__class__ = Step
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(module, "updated", lambda name, gradient: 1 / 0)
        output(module)
    assert (output(module) == right).all()
    memory = {name: state.data_ptr() for name, state in module.states.items()}
    assert (output(module, SUITE.feeds(1, 1)(1)) != right).any()
    assert memory == {name: state.data_ptr() for name, state in module.states.items()}
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_step_is_not_traced_for_onednn_which_would_lose_its_gradients() -> None:
    from mixmark.harness.adapters.torch.fused import fused

    assert fused(SUITE.graphs()["step"].module(), ["ids", "key"]) is None


COMPILED = [plugin.load()({"cpu": "yes"}) for name, plugin in registry.find("adapters").items() if name == "inductor"]


@pytest.mark.parametrize("adapter", [*COMPILED, OnnxRuntime({}), OpenVino({})], ids=lambda each: each.name)
def test_an_adapter_without_a_backward_pass_says_unsupported(adapter: Any) -> None:
    cpu = next(device for device in adapter.discover() if device.id == CPU.id)
    with (
        pytest.raises(Unsupported, match=r"no ONNX graph|cannot compile"),
        adapter.open(cpu, SUITE, "fp32", Use.of("single-stream")) as runner,
    ):
        list(runner(FEED))


def test_what_train_cannot_do_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="no weights of 8 bits"):
        Train("smoke", {}, 8)
    with pytest.raises(Unsupported, match="no ONNX graph"):
        SUITE.graphs()["step"].onnx()
    assert SUITE.gate("int8") is None


@pytest.mark.parametrize("tier", ["smoke", "edge", "server"])
def test_the_last_norm_has_one_magnitude_that_is_exact_in_sixteen_bits(tier: str) -> None:
    norm = torch.empty(Train(tier, {}).shape.width)
    Train(tier, {}).weights().read("model.norm.weight", norm.numpy())
    assert len(norm.abs().unique()) == 1
    for dtype in (torch.bfloat16, torch.float16):
        assert (norm.to(dtype).float() == norm).all()
