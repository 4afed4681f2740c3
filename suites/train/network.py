"""A training step of a Llama decoder in PyTorch: the backward pass is autograd's, the optimizer torch.optim's AdamW.

The network is llm's, state-dict compatible with the public Hugging Face checkpoints. Attention has no cache here, and
sequences are an axis of a batch: [sequences, tokens, width].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adamw import adamw

from mixmark.suites.llm.network import Llama, LlamaAttention, LlamaLayer, rotary, rotate
from mixmark.suites.train import ADAMW, STEP, spread


class Step(Llama):
    """One step: ids [sequences, tokens + 1] int64, key [2, probes, longest axis] of ±1 -> losses [sequences · tokens]
    float32, changes [3 · tensors, probes] float32."""

    def forward(self, ids: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradients = self.backward(ids)
        return losses, self.projected(self.updated(gradients), key)

    def backward(self, ids: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of each token, and the gradient of their sum for each parameter, in the parameters' precision.

        Of the sum, since gradients of the mean would be too small for fp16; AdamW takes either. A session calls a
        module in inference mode, where autograd records nothing.
        """
        self.requires_grad_()
        with torch.inference_mode(False), torch.enable_grad():
            losses = self.losses(ids)
            gradients = torch.autograd.grad(losses.sum(), [*self.parameters()])
        return losses.detach(), gradients

    def losses(self, ids: Tensor) -> Tensor:
        """The cross-entropy of each token but the first, after the tokens before it: [sequences · tokens] float32."""
        head = self.model.embed_tokens if self.shape.tied else self.lm_head
        logits = F.linear(self.hidden(ids[:, :-1]), head.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")

    def hidden(self, ids: Tensor) -> Tensor:
        """The normed hidden states: [sequences, tokens, width]."""
        _, tokens = ids.shape
        x = self.model.embed_tokens(ids)
        rotation = rotary(self.shape, torch.arange(tokens, device=ids.device), x.dtype)
        for layer in self.model.layers:
            assert isinstance(layer, LlamaLayer)
            x = x + attended(layer.self_attn, layer.input_layernorm(x), rotation)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        normed: Tensor = self.model.norm(x)
        return normed

    @torch.no_grad()
    def updated(self, gradients: Sequence[Tensor]) -> list[list[Tensor]]:
        """The three changes of each parameter by a step from the published state, in fp32."""
        names, parameters = zip(*self.named_parameters(), strict=True)
        weights = [parameter.to(torch.float32, copy=True) for parameter in parameters]
        first = [torch.zeros_like(weight) for weight in weights]
        second = [torch.full_like(weight, spread(name) ** 2) for name, weight in zip(names, weights, strict=True)]
        steps = [torch.tensor(float(STEP), device=weight.device) for weight in weights]
        wide = [gradient.float() for gradient in gradients]
        settings: dict[str, Any] = {**ADAMW}
        adamw(weights, wide, first, second, [], steps, fused=True, amsgrad=False, maximize=False, **settings)
        changes = zip(names, parameters, weights, first, second, strict=True)
        return [
            [weight - parameter.float(), moment, squared - ADAMW["beta2"] * spread(name) ** 2]
            for name, parameter, weight, moment, squared in changes
        ]

    @torch.no_grad()
    def projected(self, changes: Sequence[Sequence[Tensor]], key: Tensor) -> Tensor:
        """Each change between the key's vectors: Σ rows[i] · change[i, j] · columns[j] for each probe."""
        rows, columns = key.float()
        flat = [change.reshape(len(change), -1) for of_a_tensor in changes for change in of_a_tensor]
        return torch.stack(
            [((x @ columns[:, : x.shape[1]].T) * rows[:, : x.shape[0]].T).sum(0) for x in flat],
        )


def attended(part: LlamaAttention, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Causal attention over x [sequences, tokens, width]."""

    def heads(projected: Tensor) -> Tensor:
        return projected.view(*x.shape[:2], -1, part.shape.head_dim)

    share = part.shape.heads // part.shape.kv_heads
    q = rotate(heads(part.q_proj(x)), rotation).transpose(1, 2)
    k = rotate(heads(part.k_proj(x)), rotation).transpose(1, 2).repeat_interleave(share, 1)
    v = heads(part.v_proj(x)).transpose(1, 2).repeat_interleave(share, 1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mixed: Tensor = part.o_proj(out.transpose(1, 2).flatten(2))
    return mixed
