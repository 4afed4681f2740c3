"""Whisper: an encoder of mel features, and a decoder with a static KV cache and attention to the encoder's output.

It is state-dict compatible with the public Hugging Face checkpoints. The batch is 1: activations stay two-dimensional,
[rows, width], so that a linear layer is exported as one Gemm on the untransposed weight. All three graphs are the same
network, and each uses a part of it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.harness.capabilities.speech import WhisperShape
from mixmark.suites.weights import embedding


class Whisper(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.shape = shape
        self.model = WhisperModel(shape)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] -> [rows, vocabulary]."""
        return F.linear(hidden, self.model.decoder.embed_tokens.weight)


class Encode(Whisper):
    """Encoding: features [1, mel, frames] -> the keys and values of each decoder layer in turn, [heads, positions,
    head_dim] each. So the decoder need not compute them again for each token."""

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        x, layers = self.model.encoder(features), cast(Any, self.model.decoder.layers)
        return tuple(tensor for layer in layers for tensor in layer.encoder_attn.keys_and_values(x))


class Step(Whisper):
    """Prefill and decode: ids [tokens] int64, position [1] int64 -> next token [1], next position [1], hidden state
    [1, width].

    position: the position of the first of `ids`. tensors: the outputs of Encode, then the caches: k and v of each layer
    in turn, [heads, context, head_dim], written in place. Trap: position + tokens must not exceed the context; nothing
    checks it.
    """

    def forward(self, ids: Tensor, position: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.model.decoder(ids, position, *tensors)
        return self.logits(hidden).argmax(-1), position + ids.shape[0], hidden


class Teach(Whisper):
    """Teacher forcing: ids [context - 1] int64 -> logits [tokens of an output, vocabulary], hidden states [tokens of an
    output, width].

    ids: a prompt and its output without the last token. tensors: like a Step's tensors; the caches are all zero.
    """

    def forward(self, ids: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        start = torch.zeros(1, dtype=torch.int64, device=ids.device)
        hidden = self.model.decoder(ids, start, *tensors, rows=self.shape.context - len(self.shape.prompt))
        return self.logits(hidden), hidden


class WhisperModel(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.encoder = WhisperEncoder(shape)
        self.decoder = WhisperDecoder(shape)


class WhisperEncoder(nn.Module):
    """features [1, mel, frames] -> [positions, width]."""

    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(shape.mel, shape.width, 3, padding=1)
        self.conv2 = nn.Conv1d(shape.width, shape.width, 3, stride=2, padding=1)
        self.embed_positions = embedding(shape.positions, shape.width)  # sinusoids in a public checkpoint
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, features: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(features))))
        x = x[0].transpose(0, 1) + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.layer_norm(x)
        return out


class WhisperDecoder(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.embed_tokens = embedding(shape.vocabulary, shape.width)
        self.embed_positions = embedding(shape.target_positions, shape.width)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.layer_norm = nn.LayerNorm(shape.width)

    def forward(self, ids: Tensor, position: Tensor, *tensors: Tensor, rows: int = 1) -> Tensor:
        """The normed hidden states of the last `rows` tokens: [rows, width]."""
        places = position + torch.arange(ids.shape[0], device=ids.device)
        x = self.embed_tokens(ids) + self.embed_positions(places)
        heard, caches = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        for i, layer in enumerate(self.layers):
            x = layer(x, places, *heard[2 * i : 2 * i + 2], *caches[2 * i : 2 * i + 2])
        last: Tensor = self.layer_norm(x[-rows:])
        return last


class EncoderLayer(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(shape.width)
        self.self_attn = Attention(shape)
        self.final_layer_norm = nn.LayerNorm(shape.width)
        self.fc1 = nn.Linear(shape.width, 4 * shape.width)
        self.fc2 = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.self_attn_layer_norm(x)
        x = x + self.self_attn(normed, *self.self_attn.keys_and_values(normed))
        return self.with_mlp(x)

    def with_mlp(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class DecoderLayer(EncoderLayer):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__(shape)
        self.encoder_attn_layer_norm = nn.LayerNorm(shape.width)
        self.encoder_attn = Attention(shape)

    def forward(  # type: ignore[override]  # an encoder's layer has no cache
        self, x: Tensor, places: Tensor, heard_k: Tensor, heard_v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Tensor:
        normed = self.self_attn_layer_norm(x)
        for cache, new in zip((k_cache, v_cache), self.self_attn.keys_and_values(normed), strict=True):
            cache.scatter_(1, places[None, :, None].expand(cache.shape[0], -1, cache.shape[2]), new)
        seen = torch.arange(k_cache.shape[1], device=x.device) <= places[:, None]
        x = x + self.self_attn(normed, k_cache, v_cache, seen)
        x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), heard_k, heard_v)
        return self.with_mlp(x)


class Attention(nn.Module):
    def __init__(self, shape: WhisperShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(shape.width, shape.width) for _ in range(3))
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The projections of x [rows, width]: [heads, rows, head_dim] each."""
        return self.by_head(self.k_proj(x)), self.by_head(self.v_proj(x))

    def by_head(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))  # type: ignore[no-untyped-call]  # torch gives it no types
        return heads.transpose(0, 1)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
        """x [rows, width] -> [rows, width]. seen [rows, keys]: what each row attends to; None for all."""
        q = self.by_head(self.q_proj(x))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen)[0]
        mixed: Tensor = self.out_proj(out.transpose(0, 1).flatten(1))
        return mixed
