"""llama.cpp's loop on the suite's weights, as llama-bench measures text generation: one token at a growing context.

It uses the same GGUF file from the cache, chooses no token and reads no logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mixmark.harness.adapters.llamacpp import LlamaCpp, LlamaCppRunner
from mixmark.harness.contracts.protocols import Use
from mixmark.suites.llm import Llm


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
