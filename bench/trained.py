"""Trains llm's smoke network for some minutes on made-up text, for a checkpoint that is not exact at four bits.

    python -m bench.trained FOLDER [--minutes N]
    python -m bench.separation llm smoke --weights FOLDER

No public checkpoint was available on which to measure the effect of rounding and of cheats on trained weights. These
weights are trained, though briefly and on a toy source: unlike synthetic weights they have outliers, correlations and
unequal layers, but less pronounced ones than a large model has.
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

from mixmark.suites.llm import SHAPES, Shape

CLASSES, SUCCESSORS = 16, 6
BATCH, OUTPUT = 8, 64
RATE = 3e-3


def text(shape: Shape) -> Iterator[Tensor]:
    """Batches of token ids, [BATCH, tokens_in + OUTPUT] int64.

    After a random prompt each token is one of six; the classes of the last two tokens set their probabilities.
    """
    random = np.random.default_rng(0)
    size = CLASSES, CLASSES, SUCCESSORS
    successors = random.integers(shape.vocabulary, size=size)
    chances = np.exp(1.5 * random.standard_normal(size)).cumsum(-1)
    chances /= chances[..., -1:]
    while True:
        ids = random.integers(shape.vocabulary, size=(BATCH, shape.tokens_in + OUTPUT))
        for at in range(shape.tokens_in, ids.shape[1]):
            before = ids[:, at - 2] % CLASSES, ids[:, at - 1] % CLASSES
            chosen = (random.random((BATCH, 1)) > chances[before]).sum(-1)
            ids[:, at] = successors[before][np.arange(BATCH), chosen]
        yield torch.from_numpy(ids)


def llm(shape: Shape) -> tuple[Any, Iterator[Tensor]]:
    """A network in the public implementation, and its loss on the tokens after the prompt, batch by batch."""
    import transformers

    torch.manual_seed(0)
    public: Any = transformers  # Any, since its types differ between versions
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
            "rope_theta": shape.rope_theta,  # transformers 5 reads it here, earlier versions one level up
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
