"""A suite's graphs as ONNX models without weights: shipped, cached, or exported from the PyTorch module on demand.

A suite ships the graphs of its smoke and edge tiers in the folder `graphs` beside its code, so an ONNX runtime
works without torch. After a change to a module, `python -m mixmark.suites.onnx_graphs
mixmark.suites.llm:Llm …` writes them again.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import logging
import lzma
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mixmark
from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.protocols import Graph, Spec, Suite
from mixmark.harness.plugins import install, model_cache

if TYPE_CHECKING:
    import torch
    from torch import nn

TIERS = ("smoke", "edge")  # the tiers whose graphs are shipped
OPSET = 18  # readable by every onnxruntime since 1.14
MODEL = "model.onnx.xz"
MOST_BYTES = 16 << 20  # the largest size of a compressed graph without its weights
PAGE = 4096  # the alignment of an initialiser that can be mapped into memory in place


def graph(
    home: Path,
    tier: str,
    name: str,
    inputs: Mapping[str, Spec],
    state: Mapping[str, Spec],
    outputs: Mapping[str, Spec],
    module: Callable[[], nn.Module],
) -> Graph:
    """A Graph whose `onnx` reads the shipped file, or the file in the user's cache, or else exports into the cache.

    home: the folder of the suite's sources, with the shipped files in its subfolder `graphs`; or the only file of a
    suite without shipped files. A cached file is reused until the sources or the shapes change. `onnx` raises
    Unsupported if there is neither a file nor an exporter, and MixmarkError if torch cannot export the network.
    """

    def onnx() -> bytes:
        shipped = graph_path(home, tier, name)
        if shipped.exists():
            return lzma.decompress(read_shipped(shipped))
        key = hashlib.sha256(repr((inputs, state, outputs)).encode() + _sources(home)).hexdigest()[:16]
        with model_cache.folder(f"{home.name}-{tier}-{name}-{key}", MOST_BYTES, write) as folder:
            return lzma.decompress((folder / MODEL).read_bytes())

    def write(folder: Path) -> None:
        (folder / MODEL).write_bytes(lzma.compress(export(built)))

    built = Graph(inputs, state, outputs, module, onnx)
    return built


def read_shipped(path: Path) -> bytes:
    """A file that is shipped beside the code. A worker reads it as it was when the run began, see `worker.sealed`."""
    loader: Any = mixmark.__loader__
    content: bytes = loader.get_data(str(path))
    return content


def graph_path(home: Path, tier: str, name: str) -> Path:
    """The path of a shipped graph. home: the folder of the suite's sources."""
    return home / "graphs" / f"{tier}-{name}.onnx.xz"


def weight_specs(home: Path, tier: str, graphs: Callable[[], Mapping[str, Graph]]) -> Mapping[str, Spec]:
    """Names and shapes of all weights, in the order of the graphs: from the shipped file, else from the modules."""
    shipped = home / "graphs" / f"{tier}.json"
    shapes = json.loads(read_shipped(shipped)) if shipped.exists() else weight_shapes(graphs())
    return {name: Spec(tuple(shape)) for name, shape in shapes.items()}


def weight_shapes(graphs: Mapping[str, Graph]) -> Mapping[str, tuple[int, ...]]:
    """The shape of every tensor in the modules' state dicts; a weight that two graphs share appears once."""
    return {
        name: tuple(tensor.shape) for graph in graphs.values() for name, tensor in graph.module().state_dict().items()
    }


def export(graph: Graph) -> bytes:
    """The module as an ONNX model in fp32 whose parameters are external initialisers, named as in its state dict.

    The model expects them in the file weights.bin in the order of its initialisers, each at the start of a page. An
    adapter writes the file or removes the initialisers. Constants of the network stay inside the model.
    """
    try:
        import onnx_ir as ir
        import onnxscript.optimizer
        import torch
        from onnx_ir.passes.common import RemoveUnusedNodesPass
    except ImportError as error:
        raise Unsupported(f"exporting a graph needs {error.name}", install.command("export")) from error

    # torch refuses to write to a parameter with out= while it requires a gradient
    module = graph.module().requires_grad_(False).float()
    own = module.forward
    # What is written in place is in the graph only if it is returned or read once more.
    module.forward = lambda *tensors: (*own(*tensors), *tensors[len(graph.inputs) :])
    examples, dynamic = _examples(graph)
    with _quiet():
        try:
            program = torch.onnx.export(
                module,
                examples,
                dynamic_shapes=dict(inspect.signature(module.forward).bind(*dynamic).arguments),
                input_names=[*graph.inputs, *graph.state],
                output_names=[*graph.outputs, *(f"{state}.out" for state in graph.state)],  # the state's last values
                dynamo=True,
                optimize=False,  # folding needs values, which parameters on the meta device lack
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:  # torch wraps the cause in errors of many lines that do not name it
            raise MixmarkError(f"torch cannot export the network: {_cause(error)!r}") from error
        assert program is not None  # only the old exporter returns None
        model: Any = program.model
        parameters = module.state_dict().keys() & model.graph.initializers.keys()
        for name in parameters:
            model.graph.initializers[name].const_value = None  # an unknown value is not folded into a constant
        onnxscript.optimizer.optimize(model)  # removes Expand and CastLike, which would keep batch norms from fusing
        RemoveUnusedNodesPass()(model)

    offset = 0
    for name, value in model.graph.initializers.items():
        if name in parameters:
            size = 4 * prod(value.shape.numpy())
            value.const_value = ir.ExternalTensor(
                "weights.bin", offset, size, value.dtype, shape=value.shape, name=name
            )
            offset += -(-size // PAGE) * PAGE
    _strip(model)
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def _cause(error: BaseException) -> BaseException:
    return _cause(error.__cause__) if error.__cause__ else error


def _examples(graph: Graph) -> tuple[tuple[torch.Tensor, ...], list[dict[int, torch.export.Dim]]]:
    """A tensor on the meta device for each input and state of a graph, and the symbolic axes of each by their index.

    The exporter treats sizes 0 and 1 as constants and equal sizes as one axis, so each axis gets its own size.
    """
    import torch

    specs = (*graph.inputs.values(), *graph.state.values())
    names = dict.fromkeys(axis for spec in specs for axis in spec.shape if isinstance(axis, str))
    axes = {name: torch.export.Dim(name) for name in names}
    sizes = {name: size for size, name in enumerate(names, start=3)}
    examples = tuple(
        torch.empty(
            [sizes[axis] if isinstance(axis, str) else axis for axis in spec.shape],
            dtype=torch.float32 if spec.dtype == "float" else getattr(torch, spec.dtype),
            device="meta",
        )
        for spec in specs
    )
    dynamic = [{index: axes[axis] for index, axis in enumerate(spec.shape) if isinstance(axis, str)} for spec in specs]
    return examples, dynamic


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's exporter, which calls deprecated functions and logs each tensor without a value."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _strip(model: Any) -> None:
    """Removes stack traces and paths, which would enlarge the file and reveal the exporting machine."""
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


def _sources(home: Path) -> bytes:
    own = [home] if home.is_file() else sorted(home.rglob("*.py"))
    return b"".join(path.read_bytes() for path in (Path(__file__), *own))


def ship(suite: Suite, home: Path) -> None:
    """Exports a suite's graphs and the shapes of its weights into `home`/graphs."""
    graphs = suite.graphs()
    folder = home / "graphs"
    shapes = [f"{json.dumps(name)}: {json.dumps(shape)}" for name, shape in weight_shapes(graphs).items()]
    models = {name: lzma.compress(export(graph), preset=9) for name, graph in graphs.items()}
    folder.mkdir(exist_ok=True)
    (folder / f"{suite.tier}.json").write_text("{\n" + ",\n".join(shapes) + "\n}\n")
    for name, model in models.items():
        graph_path(home, suite.tier, name).write_bytes(model)
        print(f"{suite.name}, {suite.tier}, {name}: {len(model) / 1024:.0f} KiB")


if __name__ == "__main__":
    for module_name, _, class_name in (argument.partition(":") for argument in sys.argv[1:]):
        suite_class = getattr(importlib.import_module(module_name), class_name)
        for tier in TIERS:
            ship(suite_class(tier, {}), Path(inspect.getfile(suite_class)).parent)
