"""transformers' Mamba-2 in eager torch on the suite's weights, greedy, one token at a time from its cache."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mixmark.harness.capabilities.ssm import Ssm

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@contextmanager
def ssm(tier: str, precision: str) -> Iterator[Callable[[], float]]:
    """A function that decodes the tokens of one output after a prompt, and returns tokens per second without the
    prompt."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = importlib.import_module("transformers")
    suite = Ssm(tier, {})
    weights = suite.weights()
    config = {name: value for name, value in suite.config.items() if "." not in name}
    with torch.device("meta"):
        model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**config)).eval().requires_grad_(False)
    model.to_empty(device="cpu").tie_weights()
    state = model.state_dict()
    for name in weights.names():
        weights.read(name, state[name].numpy())
    model.to(DTYPES[precision])
    prompt = torch.from_numpy(suite.feeds(1, 0)(0)["ids"])[None]

    @torch.inference_mode()
    def output() -> float:
        out = model(prompt, use_cache=True)
        begin = time.monotonic()
        for _ in range(suite.shape.tokens_out - 1):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, cache_params=out.cache_params, use_cache=True)
        return (suite.shape.tokens_out - 1) / (time.monotonic() - begin)

    yield output
