"""Trains llm's smoke network for some minutes on a source made up here: a checkpoint, not exact in four bits.

    python -m bench.trained FOLDER [--minutes N]
    python -m bench.separation llm smoke --weights FOLDER

No public checkpoint was at hand to measure what rounding and cheats cost on trained weights. These are trained, if
briefly and on toys: they have the outliers, the correlations and the unequal layers that drawn weights have not, but
neither a large model's nor its size.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suites.llm import SHAPES, Shape

CLASSES, SUCCESSORS = 16, 6
BATCH, ANSWER = 8, 64
RATE = 3e-3


def text(shape: Shape) -> Iterator[Tensor]:
    """[BATCH, tokens_in + ANSWER]: random prompts, then each token one of six, by chances that the classes of the last
    two set."""
    random = np.random.default_rng(0)
    size = CLASSES, CLASSES, SUCCESSORS
    successors = random.integers(shape.vocabulary, size=size)
    chances = np.exp(1.5 * random.standard_normal(size)).cumsum(-1)
    chances /= chances[..., -1:]
    while True:
        ids = random.integers(shape.vocabulary, size=(BATCH, shape.tokens_in + ANSWER))
        for at in range(shape.tokens_in, ids.shape[1]):
            before = ids[:, at - 2] % CLASSES, ids[:, at - 1] % CLASSES
            chosen = (random.random((BATCH, 1)) > chances[before]).sum(-1)
            ids[:, at] = successors[before][np.arange(BATCH), chosen]
        yield torch.from_numpy(ids)


def llm(shape: Shape) -> tuple[Any, Iterator[Tensor]]:
    """A network in the public implementation, and its losses: of what follows the prompt."""
    import transformers

    torch.manual_seed(0)
    public: Any = transformers  # its types differ from version to version
    config = public.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.epsilon,
        tie_word_embeddings=shape.tied,
        rope_theta=shape.rope_theta,
        rope_scaling={
            "rope_type": "llama3",
            "rope_theta": shape.rope_theta,  # read from here since transformers 5, from beside before
            "factor": shape.rope_factor,
            "low_freq_factor": shape.rope_low,
            "high_freq_factor": shape.rope_high,
            "original_max_position_embeddings": shape.rope_original_context,
        },
    )
    network = public.LlamaForCausalLM(config)

    def losses() -> Iterator[Tensor]:
        for ids in text(shape):
            logits = network(ids[:, :-1]).logits[:, shape.tokens_in - 1 :]
            yield F.cross_entropy(logits.flatten(0, 1), ids[:, shape.tokens_in :].flatten())

    return network, losses()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    asked = parser.parse_args()
    network, losses = llm(SHAPES["smoke"])
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    begin, spent = time.monotonic(), 0.0
    for step, loss in enumerate(losses):
        spent = (time.monotonic() - begin) / 60 / asked.minutes
        if spent >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - spent)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f} nats a token", flush=True)
    print(f"step {step}: {loss.item():.3f} nats a token")
    network.save_pretrained(asked.folder)


if __name__ == "__main__":
    main()
