"""A Llama decoder: grouped-query attention, rotary positions, RMS norm, SwiGLU, static KV cache; and, if the shape has
them, the biases of Qwen2 and the norms of Qwen3.

It is state-dict compatible with the public Hugging Face checkpoints. Activations stay two-dimensional, [tokens, width],
so that a linear layer is exported as one Gemm on the untransposed weight.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.llm import LlamaShape
from mixmark.suites.weights import embedding


class Llama(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = LlamaModel(shape)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] -> [rows, vocabulary]."""
        head = self.model.embed_tokens if self.shape.tied else self.lm_head
        return F.linear(hidden, head.weight)


class Step(Llama):
    """Prefill and decode: ids [tokens] int64, position [1] int64 -> next token [1], next position [1], hidden state
    [1, width].

    position: the position of the first of `ids`. caches: k and v of each layer in turn, [kv_heads, context, head_dim],
    written in place. Trap: position + tokens must not exceed the context; nothing checks it.
    """

    def forward(self, ids: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.model(ids, position, *caches)
        return self.logits(hidden).argmax(-1), position + ids.shape[0], hidden


class Teach(Llama):
    """Teacher forcing: ids [tokens_in + tokens_out - 1] int64 -> logits [tokens_out, vocabulary], hidden states
    [tokens_out, width].

    ids: a prompt and its output without the last token. The results have a row for each token of the output. caches:
    like a Step's caches, all zero.
    """

    def forward(self, ids: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor]:
        start = torch.zeros(1, dtype=torch.int64, device=ids.device)
        hidden = self.model(ids, start, *caches, rows=self.shape.tokens_out)
        return self.logits(hidden), hidden


class LlamaModel(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, shape.epsilon)

    def forward(self, ids: Tensor, position: Tensor, *caches: Tensor, rows: int = 1) -> Tensor:
        """The normed hidden states of the last `rows` tokens: [rows, width]."""
        x = self.embed_tokens(ids)
        places = position + torch.arange(ids.shape[0], device=ids.device)
        rotation = rotary(self.shape, places, x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, places, rotation, caches[2 * i], caches[2 * i + 1])
        last: Tensor = self.norm(x[-rows:])
        return last


class LlamaLayer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.width, shape.epsilon)
        self.self_attn = LlamaAttention(shape)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.epsilon)
        self.mlp = LlamaMlp(shape)

    def forward(self, x: Tensor, places: Tensor, rotation: tuple[Tensor, Tensor], k: Tensor, v: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), places, rotation, k, v)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LlamaAttention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, queries, bias=shape.biases)
        self.k_proj = nn.Linear(shape.width, keys, bias=shape.biases)
        self.v_proj = nn.Linear(shape.width, keys, bias=shape.biases)
        self.o_proj = nn.Linear(queries, shape.width, bias=False)
        if shape.head_norms:
            self.q_norm, self.k_norm = (RmsNorm(shape.head_dim, shape.epsilon) for _ in range(2))

    def forward(
        self, x: Tensor, places: Tensor, rotation: tuple[Tensor, Tensor], k_cache: Tensor, v_cache: Tensor
    ) -> Tensor:
        tokens, kv, dim = x.shape[0], self.shape.kv_heads, self.shape.head_dim
        share = self.shape.heads // kv
        q, k = self.q_proj(x).view(tokens, kv * share, dim), self.k_proj(x).view(tokens, kv, dim)
        if self.shape.head_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, rotation), rotate(k, rotation).transpose(0, 1)
        v = self.v_proj(x).view(tokens, kv, dim).transpose(0, 1)
        into = places[None, :, None].expand(kv, -1, dim)
        k_cache.scatter_(1, into, k)
        v_cache.scatter_(1, into, v)
        # Queries that share a head of the KV cache become rows of one head, so the cache is not repeated.
        q = q.view(tokens, kv, share, dim).permute(1, 2, 0, 3).reshape(1, kv, share * tokens, dim)
        seen = torch.arange(k_cache.shape[1], device=x.device) <= places[:, None]
        out = F.scaled_dot_product_attention(q, k_cache[None], v_cache[None], attn_mask=seen.repeat(share, 1))
        out = out.view(kv, share, tokens, dim).permute(2, 0, 1, 3)
        mixed: Tensor = self.o_proj(out.reshape(tokens, kv * share * dim))
        return mixed


class LlamaMlp(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class RmsNorm(nn.Module):
    """RMS norm, computed in float32 at every precision."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


def rotary(shape: LlamaShape, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The cosines and sines of the rotary angles, [tokens, 1, head_dim / 2] each, computed in float32.

    Llama 3's scaling: a frequency of fewer than `rope_low` turns within the original context is divided by
    `rope_factor`, a frequency of more than `rope_high` turns is kept, and frequencies between them are blended linearly
    in the number of turns.
    """
    half = torch.arange(0, shape.head_dim, 2, device=places.device, dtype=torch.float32)
    frequency = 1 / shape.rope_theta ** (half / shape.head_dim)
    turns = shape.rope_original_context * frequency / (2 * math.pi)
    blend = ((turns - shape.rope_low) / (shape.rope_high - shape.rope_low)).clamp(0, 1)
    frequency = frequency * (blend + (1 - blend) / shape.rope_factor)
    angle = (places.float()[:, None] * frequency)[:, None, :]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Applies the rotary angles to x [tokens, heads, head_dim], with pairs half a head apart as in Hugging Face's
    checkpoints."""
    cos, sin = rotation
    one, other = x.chunk(2, dim=-1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)
