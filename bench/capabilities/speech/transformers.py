"""transformers' Whisper in eager torch on the suite's weights, greedy, with a dynamic KV cache."""

from __future__ import annotations

import importlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mixmark.harness.capabilities.speech import SECONDS, TOKENS, Speech
from mixmark.harness.contracts.protocols import Array, Feed

LEAST_S = 4
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@contextmanager
def speech(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    """The seconds of audio per second."""
    suite = Speech(tier, {})
    transcribe, feed = transcriber(suite, DTYPES[precision]), suite.feeds(1, seed=1)
    nonces = itertools.count()

    def rate() -> float:
        begin, done = time.perf_counter(), 0
        while (took_s := time.perf_counter() - begin) < LEAST_S:
            transcribe(feed(next(nonces)))
            done += SECONDS
        return done / took_s

    yield rate


def transcriber(suite: Speech, dtype: torch.dtype) -> Callable[[Feed], Array]:
    """A function that returns the tokens of a feed [90] from the library's own generation, without the rules that
    Whisper's adds for timestamps and silence."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = importlib.import_module("transformers")
    model: Any = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**suite.config))
    weights, own = suite.weights(), model.state_dict()
    for name in weights.names():
        weights.read(name, own[name].numpy())
    model = model.to(dtype).eval().requires_grad_(False)
    count = SECONDS * TOKENS

    @torch.inference_mode()
    def transcribe(feed: Feed) -> Array:
        features, ids = torch.from_numpy(feed["features"]).to(dtype), torch.from_numpy(feed["ids"])[None]
        tokens = transformers.GenerationMixin.generate(
            model, features, decoder_input_ids=ids, min_new_tokens=count, max_new_tokens=count, do_sample=False
        )
        output: Array = tokens[0, -count:].numpy()
        return output

    return transcribe
