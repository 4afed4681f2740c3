"""CLIP's text encoder: token and position embeddings and a causal transformer, with the names of transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.suites.diffusion.shapes import PROMPT_TOKENS, TextShape
from mixmark.suites.weights import embedding


class TextEncoder(nn.Module):
    """ids [prompts, 77] int64 -> context [prompts, 77, width] and, with a projection, pooled [prompts, projection].

    The pooled embedding belongs to the first token with the highest id, which in CLIP's vocabulary is the end token.
    """

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.shape = shape
        self.text_model = TextModel(shape)
        if shape.projection is not None:
            self.text_projection = nn.Linear(shape.width, shape.projection, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        x, penultimate = self.text_model(ids)
        context = (penultimate if self.shape.penultimate else x).unflatten(0, (-1, PROMPT_TOKENS))
        if self.shape.projection is None:
            return (context,)
        prompts = torch.arange(ids.shape[0], device=ids.device)
        return context, self.text_projection(x[prompts * PROMPT_TOKENS + ids.argmax(-1)])


class TextModel(nn.Module):
    """ids [prompts, 77] int64 -> normed output and input of the last layer, both [prompts × 77, width].

    An encoder that needs no last layer returns the layer's input twice.
    """

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.penultimate_is_last = shape.penultimate and shape.projection is None
        self.embeddings = Embeddings(shape)
        layers = [EncoderLayer(shape) for _ in range(shape.layers - self.penultimate_is_last)]
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        if not self.penultimate_is_last:
            self.final_layer_norm = nn.LayerNorm(shape.width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = before = self.embeddings(ids).flatten(0, 1)
        for layer in self.encoder["layers"].children():
            x, before = layer(x), x
        return (x, x) if self.penultimate_is_last else (self.final_layer_norm(x), before)


class Embeddings(nn.Module):
    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.token_embedding = embedding(shape.vocabulary, shape.width)
        self.position_embedding = embedding(PROMPT_TOKENS, shape.width)

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.token_embedding(ids) + self.position_embedding.weight
        return x


class EncoderLayer(nn.Module):
    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(shape.width)
        self.self_attn = SelfAttention(shape)
        self.layer_norm2 = nn.LayerNorm(shape.width)
        self.mlp = ClipMlp(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        x = x + self.mlp(self.layer_norm2(x))
        return x


class SelfAttention(nn.Module):
    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(shape.width, shape.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(0, (-1, PROMPT_TOKENS)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out: Tensor = self.out_proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).flatten(0, 1)
        )
        return out


class ClipMlp(nn.Module):
    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        self.quick = shape.activation == "quick_gelu"
        self.fc1 = nn.Linear(shape.width, 4 * shape.width)
        self.fc2 = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.fc2(x * torch.sigmoid(1.702 * x) if self.quick else F.gelu(x))
        return x
