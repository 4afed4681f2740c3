"""A model of your own: an ONNX file as a suite, in no rank.

Its reference is ONNX Runtime in fp32 on the CPU without any optimisation, in an auditor of its own. That process reads
the file before the first plugin runs and measures the gate; what it found stands in the options of the suite, so
whoever judges a result opens no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.contracts.errors import Unsupported, UsageError, WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, GraphRunner, Session, Spec, Suite, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, Gate, UnitNames, WeightClass
from mixmark.harness.worker.messages import Measured
from mixmark.suites.checkpoints import Checkpoint
from mixmark.suites.limits import SECOND, check_output, own_limits
from mixmark.suites.weights import generator

if TYPE_CHECKING:
    from torch import nn

    from mixmark.harness.capabilities.own_model.measuring import Compared
    from mixmark.harness.capabilities.own_model.model import Model
    from mixmark.harness.capabilities.own_model.samples import Samples

IMPORTS = """
try:
    import onnx, onnxruntime
except ImportError:
    pass  # `measured` says so
"""
GRAPH = "model"
METRIC = "error in units of the median difference between two feeds"


class OnnxFile(Suite):
    """A model of your own, an ONNX file.

    options: `file`, `inputs`, an archive of samples; `dim.NAME`, the size of a symbolic axis; `range.INPUT`, LOW:HIGH;
    all others are what `measured` found.
    """

    name = "onnx-file"
    version = "1"
    unit = "inference"
    unit_names = UnitNames(short="inf", work="inferences")
    scenarios: Sequence[str] = ("offline", "single-stream", "server")
    latency = own_limits(total_ns=SECOND)
    imports = IMPORTS

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        self.tier, self.options, self.weight_class = tier, options, weight_class
        if weight_class != 16:
            raise Unsupported("a model of your own has the weights of its file", hint="declare fp32, bf16 or fp16")
        if "outputs" in options and "batches" not in options:
            self.scenarios = ("single-stream", "server")

    def _of(self, kind: str) -> dict[str, str]:
        return {each.partition(".")[2]: text for each, text in self.options.items() if each.startswith(f"{kind}.")}

    @cached_property
    def _read(self) -> tuple[Model, Samples]:
        from mixmark.harness.capabilities.own_model import model, samples

        if "file" not in self.options:
            raise UsageError("the model's file is not known here", hint="give it with --model")
        arrays = samples.read(Path(self.options["inputs"])) if "inputs" in self.options else {}
        sizes = {name: int(text) if text.isdecimal() else 0 for name, text in self._of("dim").items()}
        if 0 in sizes.values():
            raise UsageError("--dim gives a size that is no whole number above 0", hint="give it as --dim NAME=8")
        found = model.load(Path(self.options["file"]), sizes, {name: array.shape for name, array in arrays.items()})
        return found, samples.Samples(found, arrays, self._of("range"))

    @property
    def config(self) -> Mapping[str, Value]:
        return {}

    def weights(self) -> Checkpoint:
        return Checkpoint({}, {})  # they are in the graph

    def graphs(self) -> Mapping[str, Graph]:
        from onnx import helper

        model, _ = self._read
        outputs = {}
        for each in model.proto.graph.output:
            kind = helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
            outputs[each.name] = Spec(("any",), "float" if kind.kind == "f" else str(kind))
        return {GRAPH: Graph(model.inputs, {}, outputs, self._no_module, model.proto.SerializeToString)}

    def _no_module(self) -> nn.Module:
        raise Unsupported("the model is an ONNX file, and has no PyTorch module", "run it by onnxruntime or openvino")

    def feeds(self, batch: int, seed: int) -> Feeds:
        if batch != 1 and "offline" not in self.scenarios:
            raise Unsupported("the model takes one sample at a time", hint="ask for batch 1")
        _, samples = self._read
        return lambda nonce: samples.draw(generator("own model", seed, nonce), batch)

    def units(self, batch: int) -> int:
        return batch

    @cached_property
    def _compared(self) -> Compared:
        from mixmark.harness.capabilities.own_model.measuring import Compared

        pairs = (each.split("=") for each in self.options["outputs"].split())
        return Compared({int(at): int(size) for at, size in pairs}, [*map(float, self.options["scales"].split())])

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """One yield: for each unit a row of the compared outputs."""
        outputs = session.run(GRAPH, *(session.put(feed[name]) for name in self._read[0].inputs))
        yield self._compared.rows({at: session.get(outputs[at]) for at in self._compared.sizes}, self._batch(feed))

    def _batch(self, feed: Feed) -> int:
        stacked = self._read[0].stacked
        return len(feed[stacked[0]]) if stacked else 1

    def gate(self, precision: str) -> Gate | None:
        at_most = self.options.get(f"gate for {precision if precision == 'fp32' else '16 bits'}")
        if not at_most or BITS_PER_WEIGHT[precision] < 16:
            return None
        return Gate(metric=METRIC, at_most=float(at_most), samples=4)

    def reference(self) -> Suite:
        return self

    @contextmanager
    def open_reference(self) -> Iterator[GraphRunner]:
        from mixmark.harness.capabilities.own_model.measuring import outputs_of
        from mixmark.harness.capabilities.own_model.model import session

        model, _ = self._read
        running = session(model.proto)

        def run(graph: str, *given: Array) -> Any:
            return outputs_of(running, dict(zip(model.inputs, given, strict=True)))

        engine: Any = SimpleNamespace(put=np.asarray, run=run, get=np.asarray)
        yield GraphRunner(self, engine, concurrency=1, facts={})

    def quality(self, output: Array, reference: Array) -> float:
        """The largest error of a compared output of a unit."""
        if not len(output):
            raise WrongOutput("there is no unit")
        check_output(output, (len(output), sum(self._compared.sizes.values())))
        return self._compared.error(output, reference)

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """None if some of the work is not known."""
        if "flops" not in self.options:
            return ()
        floats = int(self.options["weights in floats"]) * BITS_PER_WEIGHT[precision] / 8
        moved = floats + int(self.options["other bytes"])
        return [Cost(name="inference", flops=float(self.options["flops"]) * batch, bytes=moved, streamed_bytes=floats)]

    def measured(self) -> Measured:
        """Reads the file and its samples, and measures the gate. Raises UsageError."""
        from mixmark.harness.capabilities.own_model import measuring

        model, samples = self._read
        feeds = [samples.draw(generator("own model", "gate", nonce), 1) for nonce in range(measuring.FEEDS)]
        pair = {name: np.concatenate([each[name] for each in feeds[:2]]) for name in model.stacked}
        facts = measuring.measured(model, feeds, pair and {**feeds[0], **pair}, samples.described)
        given = {name: text for name, text in self.options.items() if name.startswith(("dim.", "range."))}
        if "inputs" in self.options:
            given["samples"] = f"{samples.count}, sha256 {_sha256(self.options['inputs'])}"
        file = Path(self.options["file"])
        options = {"plugin": self.name, **given, **facts}
        scenarios = tuple(OnnxFile(self.tier, options).scenarios)
        weights = f"{file.name}, sha256 {_sha256(file)}"
        return Measured(options=options, weights=weights, scenarios=scenarios)


def _sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
