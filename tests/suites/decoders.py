"""What holds of every suite that decodes: honest arithmetic passes its gates, and an output that was not computed from
the feed does not. A suite's tests subclass `DecoderAudit`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

from bench.separation import GROUP, integers
from bench.separation.networks import Network
from mixmark.harness.contracts.errors import Unsupported, WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed
from mixmark.harness.contracts.schema import WeightClass
from tests.fakes.audits import at_most


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


class Eager(Network):
    """A session on the suite's only module, with its synthetic weights."""

    @property
    def module(self) -> Any:
        (module,) = self.modules.values()
        return module


def cycle(tokens: Sequence[int]) -> int | None:
    """The period below 32 with which the last 64 tokens repeat."""
    return next((period for period in range(1, 32) if tokens[-64 + period :] == tokens[-64:-period]), None)


def test_a_cycle_is_seen() -> None:
    assert cycle([*range(100), *[5, 6, 7] * 30]) == 3
    assert cycle([*range(100), 5, 5]) is None


Audit = tuple[Any, Network, Network, Feed]
"""A suite of smoke, its network, the teacher's, and a feed."""


def audited(suite: Any) -> Audit:
    return suite, Eager(suite), Eager(suite.reference()), suite.feeds(1, 0)(0)


def judged(audit: Audit, output: Array | None = None) -> float:
    """The value of an output, or of the network's own."""
    suite, network, teacher, feed = audit
    output = network(feed) if output is None else output
    return float(suite.quality(output, teacher({**feed, "output": output})))


class DecoderAudit:
    """Needs a fixture `audit`: what `audited` returns of the suite's class at smoke."""

    suite: Any
    """The suite's class."""
    longer: Any = None
    """A shape of smoke with longer outputs, for the test of cycles. None for the tier's own."""

    def rounding(self, network: Any, precision: str) -> AbstractContextManager[Any]:
        """Rounds the activations of a network."""
        raise NotImplementedError

    def prompts(self, suite: Any) -> list[Feed]:
        """Three feeds, which differ in two tokens."""
        feeds = list(map(suite.feeds(1, 0), range(3)))
        return [{"ids": np.append(feed["ids"][:2], feeds[0]["ids"][2:])} for feed in feeds]

    def test_outputs_cannot_be_guessed(self) -> None:
        suite = self.suite("smoke", {})
        suite.shape = self.longer or suite.shape
        network = Eager(suite)
        outputs = [network(feed)[..., 0].ravel().tolist() for feed in self.prompts(suite)]
        assert min(len(set(output)) for output in outputs) > 0.55 * len(outputs[0])
        assert {cycle(output) for output in outputs} == {None}
        for one, other in itertools.combinations(outputs, 2):
            assert np.mean(np.array(one) == np.array(other)) < 0.2  # even if two prompts differ in little

    def test_the_teacher_would_have_answered_the_same(self, audit: Audit) -> None:
        suite, network, teacher, feed = audit
        yields = list(suite.infer(network, feed))
        assert {each.shape for each in yields} == {(1, *suite.row, 1 + suite.shape.width)}
        assert sum(map(len, yields)) == suite.units(1)
        assert 0 < judged(audit, np.concatenate(yields)) < 1e-5  # not 0: the order of the sums differs
        referee: Any = teacher.suite
        assert referee.weights().names() == suite.weights().names()
        with pytest.raises(Unsupported, match="no ONNX graph"):
            referee.graphs()["teach"].onnx()

    @pytest.mark.parametrize("precision", ["int8", "int8-tensor"])
    def test_int8_activations_pass_in_8_and_4_bits(self, audit: Audit, precision: str) -> None:
        with self.rounding(audit[1], precision):
            value = judged(audit)
        assert 0 < value < min(at_most(audit[0], "int8"), at_most(audit[0], "int4"))

    def test_bf16_passes(self, audit: Audit) -> None:
        suite, _, teacher, feed = audit
        assert judged((suite, Eager(suite, torch.bfloat16), teacher, feed)) < at_most(suite, "bf16")

    def test_fp8_passes_and_rounds_much_more_than_bf16(self, audit: Audit) -> None:
        """So it has a gate of its own. Whether a feed of fp8 passes bf16's gate depends on the processor."""
        suite, network, teacher, _ = audit
        worst = {}
        for precision in ("bf16", "fp8"):
            with self.rounding(network, precision):
                outputs = [(feed, network(feed)) for feed in map(suite.feeds(1, 0), range(3))]
            worst[precision] = max(judged((suite, network, teacher, feed), output) for feed, output in outputs)
        assert 5 * worst["bf16"] < worst["fp8"] < at_most(suite, "fp8")

    @pytest.mark.parametrize(
        ("weight_class", "declared", "bits", "times"), [(16, "bf16", 8, 1.1), (16, "bf16", 4, 2), (8, "int8", 4, 2)]
    )
    def test_weights_of_fewer_bits_than_declared_fail(
        self, weight_class: WeightClass, declared: str, bits: int, times: float
    ) -> None:
        audit = audited(self.suite("smoke", {}, weight_class))
        suite, network, _, feed = audit
        weights: Mapping[str, Any] = network.weights
        for weight in weights.values():
            weight.copy_(integers(weight, bits, None if bits == 8 else GROUP) if weight.dim() == 2 else weight)
        assert judged(audit, network(feed)) > times * at_most(suite, declared)

    def test_what_was_not_computed_from_this_feed_fails(self, audit: Audit) -> None:
        suite, network, _, feed = audit
        output = network(feed)
        made_up = output.copy()
        made_up.reshape(-1, made_up.shape[-1])[17, 0] = 7
        first = output.reshape(-1, output.shape[-1])[0]
        for wrong in (network(suite.feeds(1, 0)(1)), np.full_like(output, first), made_up):
            assert judged(audit, wrong) > at_most(suite, "int4")

    def test_what_is_no_output_is_told(self, audit: Audit) -> None:
        suite, network, _, feed = audit
        output = network(feed)
        for wrong in (output[:-1], output[..., :-1], output + suite.shape.vocabulary, output - suite.shape.vocabulary):
            with pytest.raises(WrongOutput):
                judged(audit, wrong)
