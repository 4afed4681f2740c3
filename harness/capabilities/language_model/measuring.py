"""What the auditor measures of a language model before the run: how far bf16 and a layer that is left out move it.

Random tokens follow a random prompt, so that one pass computes an output, as in the audit's teacher forcing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import significant
from mixmark.harness.contracts.protocols import Array
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.plugins import install
from mixmark.suites.weights import generator

if TYPE_CHECKING:
    from mixmark.harness.capabilities.language_model import LanguageModel

FEEDS = 16
TIMES = 2.0
"""The gate, in errors of the feed that bf16 moves most."""
FINER = 64
"""The gate in 16 bits, in gates for fp32: TF32 and fp16 keep 3 bits more than bf16, and fp32 keeps 16."""
FEW = 32
"""The tokens by which leaving out a layer is measured."""


def gates(suite: LanguageModel) -> dict[str, str]:
    """The facts of a model, as options of its suite. Raises UsageError if its weights cannot be read."""
    try:
        import torch
    except ImportError as error:
        raise UsageError("a language model is audited by torch", install.command("torch")) from error

    random = [generator(suite.name, "gate", number) for number in range(FEEDS)]
    feeds = [each.integers(suite.shape.vocabulary, size=suite.shape.context - 1) for each in random]
    with torch.inference_mode():
        network = _Network(suite, torch.bfloat16)
        outputs = [np.c_[logits.argmax(1), hidden].astype(np.float32) for hidden, logits in map(network, feeds)]
        network = _Network(suite, torch.float32)
        rights = (np.concatenate(network(ids), 1) for ids in feeds)
        errors = [suite.quality(each, right) for each, right in zip(outputs, rights, strict=True)]
        least = min(network.without_a_layer(feeds[0][:FEW]))
    gate = TIMES * max(errors)
    moved = f"bf16 moves outputs by {significant(max(errors))}, leaving out a layer by {significant(least)}"
    if not gate < least:
        return {"no gate": moved}
    return {"gate for 16 bits": repr(gate), "gate for fp32": repr(max(suite.fp32, gate / FINER)), "measured": moved}


class _Network:
    """A model's Teach, which is called with the tokens of a context."""

    def __init__(self, suite: LanguageModel, dtype: Any) -> None:
        import torch

        graph, weights, loaded = suite.reference().graphs()["teach"], suite.weights(), {}
        self.module: Any = graph.module()
        self.caches = [torch.zeros([int(size) for size in spec.shape], dtype=dtype) for spec in graph.state.values()]
        for name in self.module.state_dict():
            loaded[name] = torch.from_numpy(read_weight(weights, name)).to(dtype)
        self.module.load_state_dict(loaded, assign=True)

    def __call__(self, ids: Array) -> tuple[Array, Array]:
        """The hidden states and logits of the output's tokens, in fp32."""
        import torch

        logits, hidden = self.module(torch.from_numpy(ids), *self.caches)
        return hidden.float().numpy(), logits.float().numpy()

    def without_a_layer(self, ids: Array) -> Iterator[float]:
        """The relative error of the hidden states without each layer."""
        import torch

        model = self.module.model
        words = torch.from_numpy(ids), torch.zeros(1, dtype=torch.int64), *self.caches
        right = model(*words, rows=len(ids))
        for layer in model.layers:
            layer.forward = lambda x, *rest: x
            yield float((model(*words, rows=len(ids)) - right).norm() / right.norm())
            del layer.forward
