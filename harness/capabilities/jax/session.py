"""The graphs of a suite on one of jax's devices."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import jax
import numpy as np
import onnx
from jax import numpy as jnp

from mixmark.harness.capabilities.jax.devices import DTYPES
from mixmark.harness.capabilities.jax.operators import Program
from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.protocols import Array, Graph, Suite
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.plugins import model_cache

COMPILED_BYTES = 1 << 30


class State(list[Any]):
    """The state of a graph. Each run replaces its arrays, whose memory it reuses."""


class JaxSession:
    """The suite's graphs on one device. facts: receives `elsewhere` if outputs are on another device."""

    def __init__(self, suite: Suite, device: Any, precision: str, facts: dict[str, str]) -> None:
        self._device, self._facts, self._dtype = device, facts, jnp.dtype(DTYPES[precision])
        self._graphs: dict[str, Graph] = dict(suite.graphs())
        models = {name: onnx.load_from_string(graph.onnx()) for name, graph in self._graphs.items()}
        programs = {name: Program(models[name], len(graph.state), self._dtype) for name, graph in self._graphs.items()}
        weights, names = suite.weights(), dict.fromkeys(each for one in programs.values() for each in one.weights)
        loaded = {name: self.put(read_weight(weights, name).astype(self._dtype)) for name in names}
        self._weights = {name: {each: loaded[each] for each in program.weights} for name, program in programs.items()}
        self._compiled = {name: jax.jit(program, donate_argnums=1) for name, program in programs.items()}

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        self._weights.clear()
        self._compiled.clear()
        gc.collect()

    def put(self, array: Array) -> Any:
        return jax.device_put(array, self._device)

    def state(self, graph: str) -> State:
        specs = self._graphs[graph].state.values()
        dtypes = [self._dtype if spec.dtype == "float" else spec.dtype for spec in specs]
        return State(self.put(np.zeros(tuple(map(int, s.shape)), d)) for s, d in zip(specs, dtypes, strict=True))

    def run(self, graph: str, *inputs: Any, state: State | None = None) -> Sequence[Any]:
        """Runs a graph, which takes the memory of its state. Raises MixmarkError if a failed call has lost the state,
        Unsupported if a shape depends on data."""
        state = State() if state is None else state
        if any(array.is_deleted() for array in state):
            raise MixmarkError(f"a call of {graph} failed and lost the state")
        try:
            outputs: Sequence[Any]
            outputs, state[:] = self._compiled[graph](self._weights[graph], list(state), *inputs)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            why = str(error).splitlines()[0][:200]
            raise Unsupported(f"jax cannot trace {graph}: {why}", "use another adapter") from error
        if strays := {str(place) for output in outputs for place in output.devices() if place != self._device}:
            self._facts["elsewhere"] = f"the outputs of {graph} are on {', '.join(sorted(strays))}"
        return outputs

    def get(self, tensor: Any) -> Array:
        return np.array(tensor)


@contextmanager
def compilations_kept(place: Any, on_host: bool) -> Iterator[None]:
    """Lets jax keep what it compiles for an accelerator in the model cache, if there is room."""
    with ExitStack() as stack:
        name = f"jax-{jax.__version__}-{place.platform}-{place.device_kind}-compiled"
        with suppress(Unsupported, OSError):
            if not on_host:
                folder = stack.enter_context(model_cache.folder(name, COMPILED_BYTES, lambda folder: None))
                jax.config.update("jax_compilation_cache_dir", str(folder))
        yield
