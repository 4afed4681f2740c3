"""A language model of your own: the suite llm in the shape of a folder's config.json, in no rank.

Its weights are the folder's, or synthetic ones if it has none. Its gates are measured on the model itself before the
run, by the auditor, and stand in the options of the suite with its shape, so whoever judges a result opens no file.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Gate, WeightClass
from mixmark.harness.resources import memory
from mixmark.harness.worker.messages import Measured
from mixmark.suites.llm import SHAPES, Llm
from mixmark.suites.weights import Draw, Fill, philox_key


class LanguageModel(Llm):
    """A language model of your own: greedy, batch 1, static KV cache.

    Prompt and output have the tier's lengths. options: what `folder.section` makes of a folder, then what `measured`
    found; without them the shape is llm's.
    """

    name = "language-model"
    version = "1"
    classes: Sequence[WeightClass] = (16,)
    gates: Mapping[str, Mapping[str, float]] = {tier: {} for tier in SHAPES}
    imports = "numpy.random, torch.onnx"

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        self.known, self.tier = tuple(options), tier
        self._own = {name[6:]: json.loads(text) for name, text in sorted(options.items()) if name.startswith("shape.")}
        self.shapes = {self.variant: replace(SHAPES[tier], **self._own)} if tier in SHAPES else {}
        super().__init__(tier, options, weight_class)
        self.unit_names = self.unit_names.model_copy(update={"work": Llm.unit_names.work})  # of no tier's model

    @property
    def variant(self) -> str:
        """The tier and the shape: a graph that was exported is found again by both."""
        return f"{self.tier}-{philox_key(repr(self._own)):032x}"

    @property
    def home(self) -> Path:
        return Path(inspect.getfile(Llm)).parent

    @property
    def config(self) -> Mapping[str, Value]:
        """As llm's: an engine that implements Llama runs this network, unless it has what Llama has not."""
        plain = not (self.shape.biases or self.shape.head_norms)
        return {**super().config, "model_type": "llama" if plain else self.options["model_type"]}

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        return Draw(0.25) if name.endswith(".bias") else super().fill(name, size)

    def gate(self, precision: str) -> Gate | None:
        at_most = self.options.get(f"gate for {precision if precision == 'fp32' else '16 bits'}")
        known = at_most is not None and BITS_PER_WEIGHT[precision] >= 16
        return Gate(metric=self.metric, at_most=float(at_most or 0), samples=1) if known else None

    def measured(self) -> Measured:
        """Measures the gates, if the reference fits into memory. Raises UsageError."""
        from mixmark.harness.capabilities.language_model import measuring

        if "longest" not in self.options:
            raise UsageError("the model's folder is not known here", "give it with --model or in the file of a mix")
        shape, longest, free = self.shape, int(self.options["longest"]), memory.available_bytes()
        if shape.context > longest:
            why = f"the model takes {longest} tokens, and the tier {self.tier} has {shape.context}"
            raise UsageError(why, hint="take a smaller --tier")
        layer = 2 * shape.head_dim * (shape.heads + shape.kv_heads) + 3 * shape.hidden
        weights = shape.width * (shape.layers * layer + (2 - shape.tied) * shape.vocabulary)
        if 2 * weights > free:
            why = f"{filesize(2 * weights)} of weights in 16 bits, and {filesize(free)} of memory are free"
            raise UsageError(why, hint="take a smaller model")
        facts = {name: text for name, text in self.options.items() if name != "weights"}
        fits = 4 * (weights + 3 * shape.context * shape.vocabulary) < free
        facts |= measuring.gates(self) if fits else {"no gate": "the reference in fp32 does not fit into memory"}
        return Measured(options={"plugin": self.name, **facts}, weights="synthetic", scenarios=tuple(self.scenarios))
