"""llama.cpp's loop on the suite's weights, as llama-bench measures text generation: one token at a growing context.

It uses the same GGUF file from the cache, chooses no token and reads no logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from bench.overhead import Bare
from bench.routes import RouteRow
from mixmark.harness.capabilities.llamacpp import LlamaCpp, LlamaCppRunner
from mixmark.harness.contracts.protocols import Array, Graph, Use
from mixmark.suites.llm import Llm

PEER = "bench.capabilities.llamacpp"
ROWS = {
    "llm-fp16": RouteRow("llm", "single-stream", "llamacpp", "fp16", PEER, "fp16", 1.0),
    "llm-bf16": RouteRow("llm", "single-stream", "llamacpp", "bf16", PEER, "bf16", 1.0),
    "llm-bf16-torch": RouteRow("llm", "single-stream", "torch", "bf16", PEER, "fp16", 1.0),
    "llm-bf16-openvino": RouteRow("llm", "single-stream", "openvino", "bf16", PEER, "fp16", 1.0),
    "llm-fp32": RouteRow("llm", "single-stream", "llamacpp", "fp32", PEER, "fp32", 1.0),
    "llm-int8": RouteRow("llm", "single-stream", "llamacpp", "int8", PEER, "int8", 1.1),
    "llm-int8-onnxruntime": RouteRow("llm", "single-stream", "onnxruntime", "int8", PEER, "int8", 1.1),
    "llm-int8-openvino": RouteRow("llm", "single-stream", "openvino", "int8", PEER, "int8", 1.1),
    "llm-int4": RouteRow("llm", "single-stream", "llamacpp", "int4", PEER, "int4", 1.2),
    "llm-int4-onnxruntime": RouteRow("llm", "single-stream", "onnxruntime", "int4", PEER, "int4", 1.2),
    "llm-int4-openvino": RouteRow("llm", "single-stream", "openvino", "int4", PEER, "int4", 1.2),
}


@contextmanager
def llm(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    """A function that decodes the tokens of one output after a prompt, and returns tokens per second without the
    prompt."""
    import llama_cpp

    suite = Llm(tier, {})
    adapter = LlamaCpp({})
    device = next(each for each in adapter.discover() if each.kind == "cpu")
    ids = suite.feeds(1, 0)(0)["ids"]
    with adapter.open(device, suite, precision, Use.of("single-stream")) as runner:
        assert isinstance(runner, LlamaCppRunner)
        context = runner.context
        prompt = (llama_cpp.llama_token * len(ids))(*ids.tolist())
        token = (llama_cpp.llama_token * 1)(int(ids[0]))

        def output() -> float:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(prompt, len(prompt)))
            llama_cpp.llama_synchronize(context)
            begin = time.monotonic()
            for _ in range(suite.shape.tokens_out - 1):
                llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(token, 1))
                llama_cpp.llama_synchronize(context)
            return (suite.shape.tokens_out - 1) / (time.monotonic() - begin)

        yield output


def bare(runner: Any, graphs: Mapping[str, Graph]) -> Bare:
    library, context = runner._library, runner.context
    tokens = (library.llama_token * library.llama_n_ctx(context))()
    words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(library.llama_get_model(context)))

    def zeros(graph: str) -> Any:
        library.llama_memory_clear(library.llama_get_memory(context), True)

    def call(graph: str, state: Any, ids: Array, position: Any) -> Sequence[Any]:
        tokens[: len(ids)] = ids.tolist()
        library.llama_decode(context, library.llama_batch_get_one(tokens, len(ids)))
        logits = np.ctypeslib.as_array(library.llama_get_logits_ith(context, -1), (words,))
        return np.array([logits.argmax()]), position

    return Bare(lambda array: array, zeros, call, lambda array: array, nullcontext)
