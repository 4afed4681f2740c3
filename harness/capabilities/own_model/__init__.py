"""A model of your own: an ONNX file as a suite, in no rank.

Its reference is ONNX Runtime in fp32 on the CPU without any optimisation, in an auditor of its own. That process reads
the file before the first plugin runs and measures the gate; what it found stands in the options of the suite, so
whoever judges a result opens no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.capabilities.own_model import measuring, model, samples
from mixmark.harness.contracts.errors import Unsupported, UsageError, WrongOutput
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, GraphRunner, Session, Spec, Suite, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, Gate, UnitNames, WeightClass
from mixmark.harness.record.files import sha256_of
from mixmark.harness.worker.messages import Measured
from mixmark.suites.checkpoints import Checkpoint
from mixmark.suites.limits import SECOND, check_output, own_limits
from mixmark.suites.weights import generator

if TYPE_CHECKING:
    from torch import nn

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
    imports = "onnx, onnxruntime"

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        self.tier, self.options, self.weight_class = tier, options, weight_class
        if weight_class != 16:
            raise Unsupported("a model of your own has the weights of its file", hint="declare fp32, bf16 or fp16")
        if "outputs" in options and "batches" not in options:
            self.scenarios = ("single-stream", "server")

    def _of(self, kind: str) -> dict[str, str]:
        return {each.partition(".")[2]: text for each, text in self.options.items() if each.startswith(f"{kind}.")}

    @cached_property
    def _read(self) -> tuple[model.Model, samples.Samples]:
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

        read, _ = self._read
        outputs = {}
        for each in read.proto.graph.output:
            kind = helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
            outputs[each.name] = Spec(("any",), "float" if kind.kind == "f" else str(kind))
        return {GRAPH: Graph(read.inputs, {}, outputs, self._no_module, read.proto.SerializeToString)}

    def _no_module(self) -> nn.Module:
        raise Unsupported("the model is an ONNX file, and has no PyTorch module", "run it by onnxruntime or openvino")

    def feeds(self, batch: int, seed: int) -> Feeds:
        if batch != 1 and "offline" not in self.scenarios:
            raise Unsupported("the model takes one sample at a time", hint="ask for batch 1")
        draw = self._read[1].draw
        return lambda nonce: draw(generator("own model", seed, nonce), batch)

    def units(self, batch: int) -> int:
        return batch

    @cached_property
    def _compared(self) -> measuring.Compared:
        pairs = (each.split("=") for each in self.options["outputs"].split())
        return measuring.Compared(
            {int(at): int(size) for at, size in pairs}, [*map(float, self.options["scales"].split())]
        )

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """One yield: for each unit a row of the compared outputs."""
        read, _ = self._read
        outputs = session.run(GRAPH, *(session.put(feed[name]) for name in read.inputs))
        batch = len(feed[read.stacked[0]]) if read.stacked else 1
        yield self._compared.rows({at: session.get(outputs[at]) for at in self._compared.sizes}, batch)

    def gate(self, precision: str) -> Gate | None:
        at_most = self.options.get(f"gate for {precision if precision == 'fp32' else '16 bits'}")
        if not at_most or BITS_PER_WEIGHT[precision] < 16:
            return None
        return Gate(metric=METRIC, at_most=float(at_most), samples=4)

    def reference(self) -> Suite:
        return self

    @contextmanager
    def open_reference(self) -> Iterator[GraphRunner]:
        read, _ = self._read
        running = model.session(read.proto)

        def run(graph: str, *given: Array) -> Any:
            return measuring.outputs_of(running, dict(zip(read.inputs, given, strict=True)))

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
        read, rows = self._read
        feeds = [rows.draw(generator("own model", "gate", nonce), 1) for nonce in range(measuring.FEEDS)]
        pair = {name: np.concatenate([each[name] for each in feeds[:2]]) for name in read.stacked}
        facts = measuring.measured(read, feeds, pair and {**feeds[0], **pair}, rows.described)
        given = {name: text for name, text in self.options.items() if name.startswith(("dim.", "range."))}
        hashes = {str(path): sha256_of(path.resolve()) for path in read.files}
        weights = f"{read.files[0].name} sha256:{'+'.join(each[:16] for each in hashes.values())}"
        if inputs := self.options.get("inputs"):
            hashes[inputs] = sha256_of(Path(inputs).resolve())
            given["samples"] = f"{rows.count}, sha256 {hashes[inputs][:16]}"
        options = {"plugin": self.name, **given, **facts}
        scenarios = tuple(OnnxFile(self.tier, options).scenarios)
        return Measured(options=options, weights=weights, scenarios=scenarios, files=hashes)
