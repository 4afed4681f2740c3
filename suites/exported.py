"""Graphs as ONNX without their weights: shipped, cached, or exported from the module on demand.

Shipped are the smoke and edge tiers, so that an ONNX runtime works where torch is absent. After a change to a
module: `python -m suites.exported [SUITE …]` writes them again.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import lzma
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path

from harness.contracts import Graph, Spec, Suite
from harness.errors import Unsupported

if TYPE_CHECKING:
    from torch import nn

SUITES = (
    "suites.llm:Llm",
    "suites.diffusion:Diffusion",
    "suites.dlrm:Dlrm",
    "suites.resnet50:ResNet50",
    "suites.probe:Probe",
)
TIERS = ("smoke", "edge")
HERE = Path(__file__).parent
SHIPPED = HERE / "graphs"
OPSET = 18  # every onnxruntime since 1.14 reads it
PAGE = 4096  # an initialiser that starts on a page can be mapped into memory in place


def graph(
    suite: str,
    tier: str,
    name: str,
    inputs: Mapping[str, Spec],
    state: Mapping[str, Spec],
    outputs: Mapping[str, Spec],
    module: Callable[[], nn.Module],
) -> Graph:
    """A Graph whose `onnx` reads the shipped file, else the user's cache, else exports into that cache.

    A cached file is found again as long as the suite's sources and the shapes stay the same.
    Raises Unsupported where there is neither file nor exporter.
    """

    def onnx() -> bytes:
        shipped = SHIPPED / f"{suite}-{tier}-{name}.onnx.xz"
        if shipped.exists():
            return lzma.decompress(shipped.read_bytes())
        key = hashlib.sha256(repr((inputs, state, outputs)).encode() + _sources(suite)).hexdigest()[:16]
        cached = user_cache_path("mixmark") / "graphs" / f"{suite}-{tier}-{name}-{key}.onnx.xz"
        if not cached.exists():
            _write(cached, lzma.compress(export(built)))
        return lzma.decompress(cached.read_bytes())

    built = Graph(inputs, state, outputs, module, onnx)
    return built


def specs(suite: str, tier: str, graphs: Callable[[], Mapping[str, Graph]]) -> Mapping[str, Spec]:
    """Names and shapes of all weights, in the order of the graphs: as shipped, else asked of the modules."""
    shipped = SHIPPED / f"{suite}-{tier}.json"
    shapes = json.loads(shipped.read_text()) if shipped.exists() else shapes_of(graphs())
    return {name: Spec(tuple(shape)) for name, shape in shapes.items()}


def shapes_of(graphs: Mapping[str, Graph]) -> Mapping[str, tuple[int, ...]]:
    """Of every tensor in the modules' state dicts; a weight that two graphs share appears once."""
    return {
        name: tuple(tensor.shape) for each in graphs.values() for name, tensor in each.module().state_dict().items()
    }


def export(graph: Graph) -> bytes:
    """The module as an ONNX model; parameters become external initialisers named as in its state dict.

    They are laid out in `weights.bin` in the order of the model's initialisers, each on a page of its own. An
    adapter writes that file, or takes the initialisers out. Constants of the network itself stay inside.
    """
    try:
        import onnx_ir as ir
        import onnxscript.optimizer
        import torch
    except ImportError as error:
        raise Unsupported(f"exporting a graph needs {error.name}", "pip install 'mixmark[export]'") from error

    module = graph.module().requires_grad_(False)  # else a write with out= is refused
    entering = {**graph.inputs, **graph.state}
    axes = {axis: torch.export.Dim(axis) for spec in entering.values() for axis in spec.shape if isinstance(axis, str)}
    sizes = {axis: size for size, axis in enumerate(axes, start=3)}  # all different, none 0 or 1, which are special
    dynamic = [
        {index: axes[axis] for index, axis in enumerate(spec.shape) if isinstance(axis, str)}
        for spec in entering.values()
    ]
    examples = tuple(
        torch.empty(
            [sizes[axis] if isinstance(axis, str) else axis for axis in spec.shape],
            dtype=torch.float32 if spec.dtype == "float" else torch.int64,
            device="meta",
        )
        for spec in entering.values()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter uses what its own next version deprecates
        program = torch.onnx.export(
            module,
            examples,
            dynamic_shapes=dict(inspect.signature(module.forward).bind(*dynamic).arguments),
            dynamo=True,
            optimize=False,  # would fold parameters, and those on the meta device have no values
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None and program.exported_program is not None  # None only from the old exporter
        model: Any = program.model
        _name_ends(model.graph, graph, program.exported_program.graph_signature.user_inputs_to_mutate)
        parameters = module.state_dict().keys() & model.graph.initializers.keys()
        for name in parameters:
            model.graph.initializers[name].const_value = None  # unknown, so that nothing folds it
        onnxscript.optimizer.optimize(model)  # leftover Expand and CastLike would keep batch norms from fusing

    offset = 0
    for name, value in model.graph.initializers.items():
        if name in parameters:
            size = 4 * prod(value.shape.numpy())
            value.const_value = ir.ExternalTensor(
                "weights.bin", offset, size, ir.DataType.FLOAT, shape=value.shape, name=name
            )
            offset += -(-size // PAGE) * PAGE
    _strip(model)
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _name_ends(network: Any, graph: Graph, written: Mapping[str, str]) -> None:
    """Inputs and outputs by the names of the Graph; `written` maps the last value of a state to its input."""
    state_of = dict(zip((value.name for value in network.inputs), (*graph.inputs, *graph.state), strict=True))
    last = {state_of[name]: value for value, name in written.items()}
    values = {value.name: value for node in network for value in node.outputs}
    network.outputs.extend(values[last[state]] for state in graph.state)
    for value, name in zip(network.inputs, state_of.values(), strict=True):
        value.name = name
    for value, name in zip(network.outputs, (*graph.outputs, *(f"{state}.out" for state in graph.state)), strict=True):
        value.name = name


def _strip(model: Any) -> None:
    """Drops stack traces and paths, which would make the file large and name the machine that exported it."""
    model.metadata_props.clear()
    model.doc_string = model.producer_name = model.producer_version = None
    for part in (model.graph, *model.functions.values()):
        part.metadata_props.clear()
        part.doc_string = None
        values = [*part.inputs, *part.initializers.values()] if part is model.graph else [*part.inputs]
        for node in part.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            values += node.outputs
        for value in values:
            value.metadata_props.clear()
            value.doc_string = None


def _sources(suite: str) -> bytes:
    files = sorted(path for path in HERE.rglob("*.py") if path.relative_to(HERE).parts[0] in (suite, f"{suite}.py"))
    return b"".join(path.read_bytes() for path in (Path(__file__), *files))


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, also when two workers export at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)


def ship(suite: Suite, folder: Path) -> None:
    """Exports a suite's graphs and the shapes of its weights into `folder`, in place of what was there."""
    graphs = suite.graphs()
    stem = f"{suite.name}-{suite.tier}"
    shapes = [f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in shapes_of(graphs).items()]
    models = {name: lzma.compress(export(graph), preset=9) for name, graph in graphs.items()}
    for old in folder.glob(f"{stem}-*.onnx.xz"):
        old.unlink()
    _write(folder / f"{stem}.json", ("{\n" + ",\n".join(shapes) + "\n}\n").encode())
    for name, model in models.items():
        _write(folder / f"{stem}-{name}.onnx.xz", model)
        print(f"{stem}-{name}: {len(model) / 1024:.0f} KiB")


if __name__ == "__main__":
    for module, _, attribute in (place.partition(":") for place in SUITES):
        suite = getattr(importlib.import_module(module), attribute)
        if suite.name in sys.argv[1:] or not sys.argv[1:]:
            for tier in TIERS:
                ship(suite(tier, {}), SHIPPED)
