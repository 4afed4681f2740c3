"""Repetition in the llm's outputs: the distinct tokens and cycles of each output.

Run: python -m bench.llm_distinct TIER PROMPTS

It runs the suite's own module in float32 on the CPU and takes 5 GB of memory at edge, 33 GB at server. It exits with 1
where an output has fewer than 90 distinct tokens in its first 128, equals another output, or repeats with a period
below 32 over its last 64 tokens. Such outputs could be predicted without computing them.
"""

from __future__ import annotations

import sys

import torch

from mixmark.suites.llm import Llm


def main(tier: str, prompts: int) -> int:
    suite = Llm(tier, {})
    graph = suite.graphs()["step"]
    module = graph.module().to_empty(device="cpu")
    weights = suite.weights()
    for name, tensor in module.state_dict().items():
        weights.read(name, tensor.numpy())
    outputs = set()
    failed = False
    for feed in map(suite.feeds(1, 0), range(prompts)):
        caches = [torch.zeros([size for size in spec.shape if isinstance(size, int)]) for spec in graph.state.values()]
        ids, position = torch.from_numpy(feed["ids"]), torch.zeros(1, dtype=torch.int64)
        tokens: list[int] = []
        with torch.inference_mode():
            for _ in range(suite.shape.tokens_out):
                ids, position = module(ids, position, *caches)
                tokens.append(int(ids))
        distinct = len(set(tokens[:128]))
        cycle = next((p for p in range(1, 32) if tokens[-64 + p :] == tokens[-64:-p]), None)
        print(f"{distinct} distinct in 128, cycle {cycle}, begins {tokens[:6]}", flush=True)
        failed |= distinct < 90 or cycle is not None or tuple(tokens) in outputs
        outputs.add(tuple(tokens))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
