"""The networks of llm's parts, on llm's layers and weights. A KV cache is [tokens, layers, 2, kv_heads, head_dim]."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mixmark.suites.llm.network import Llama, LlamaLayer, rotary, rotate


class Prefill(Llama):
    """ids [tokens] int64, from the position 0 on -> their KV cache."""

    def forward(self, ids: Tensor) -> tuple[Tensor]:
        shape, x = self.shape, self.model.embed_tokens(ids)
        places = torch.arange(ids.shape[0], device=ids.device)
        rotation = rotary(shape, places, x.dtype)
        sides: list[Tensor] = []
        *before, last = cast(list[LlamaLayer], list(self.model.layers))
        for layer in before:
            sides += [x.new_zeros(shape.kv_heads, ids.shape[0], shape.head_dim) for _ in "kv"]
            x = layer(x, places, rotation, *sides[-2:])
        normed, attention = last.input_layernorm(x), last.self_attn  # nothing else of the last layer is needed
        k, v = (
            project(normed).view(-1, shape.kv_heads, shape.head_dim) for project in (attention.k_proj, attention.v_proj)
        )
        sides += [rotate(k, rotation).transpose(0, 1), v.transpose(0, 1)]
        whole = torch.stack(sides).view(shape.layers, 2, shape.kv_heads, -1, shape.head_dim)
        return (whole.permute(3, 0, 1, 2, 4).contiguous(),)


class Resume(Llama):
    """Decoding: ids [tokens] int64, position [1] int64, cache -> next token [1], next position [1], hidden state [1,
    width].

    cache: the keys and values of the first tokens, which are written into the caches of the state before the step.
    """

    def forward(self, ids: Tensor, position: Tensor, cache: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fill(cache, caches)
        hidden = self.model(ids, position, *caches)
        return self.logits(hidden).argmax(-1), position + ids.shape[0], hidden


class Teach(Llama):
    """Teacher forcing: ids [tokens_out] int64, the prompt's last token and the output without its last one, cache ->
    logits [tokens_out, vocabulary], hidden states [tokens_out, width]."""

    def forward(self, ids: Tensor, cache: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor]:
        fill(cache, caches)
        start = torch.full((1,), cache.shape[0], dtype=torch.int64, device=ids.device)
        hidden = self.model(ids, start, *caches, rows=self.shape.tokens_out)
        return self.logits(hidden), hidden


def fill(cache: Tensor, caches: tuple[Tensor, ...]) -> None:
    """Writes the keys and values of the first tokens. caches: as in llm's Step."""
    rows = torch.arange(cache.shape[0], device=cache.device)[None, :, None]
    for into, side in zip(caches, cache.flatten(1, 2).unbind(1), strict=True):
        into.scatter_(1, rows.expand(into.shape[0], -1, into.shape[2]), side.transpose(0, 1))
