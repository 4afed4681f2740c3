"""A training step of a Llama decoder in PyTorch: the backward pass is autograd's, the optimizer torch.optim's AdamW.

The network is llm's, state-dict compatible with the public Hugging Face checkpoints. Attention has no cache here, and
sequences are an axis of a batch: [sequences, tokens, width].
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adamw import adamw

from mixmark.harness.capabilities.train import ADAMW, CHANGES, FOLDS, STEP, TABLES, spread
from mixmark.suites.llm import LlamaShape
from mixmark.suites.llm.network import Llama, LlamaAttention, LlamaLayer, rotary, rotate


class Step(Llama):
    """One step: ids [sequences, tokens + 1] int64, key [2, probes, longest axis] of ±1 -> losses [sequences · tokens]
    float32, changes [3 · blocks, probes · folds] float32.

    The optimizer steps a parameter as soon as the backward pass has its gradient, so gradients are not in memory all at
    once. Trap: two threads must not run one module, since steps share the memory of the optimizer's state.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__(shape)
        self.states: dict[str, Tensor] = {}
        """The memory of each parameter's fp32 master weight and two moments, [3, …]. Each step writes it anew: the
        first touch of fresh memory takes longer than the step's arithmetic."""

    @torch.inference_mode(False)
    def forward(self, ids: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """A session calls a module in inference mode, where autograd records nothing."""
        changes: dict[str, Tensor] = {}
        key = key.float()
        in_ids = torch.zeros(1, self.shape.vocabulary, device=ids.device)
        in_ids[:, ids.flatten()] = 1
        blocks = torch.cat((in_ids, 1 - in_ids))

        def use(name: str, gradient: Tensor) -> None:
            of_name = blocks if name in TABLES else torch.ones(1, 1, device=ids.device)
            changes[name] = projected(self.updated(name, gradient), key, of_name)

        losses = self.backward(ids, use)
        return losses, torch.cat([changes[name] for name, _ in self.named_parameters()])

    def backward(self, ids: Tensor, use: Callable[[str, Tensor], None]) -> Tensor:
        """The loss of each token. `use` gets the gradient of their sum for each parameter, in the parameter's
        precision, and may keep it.

        Of the sum, since gradients of the mean would be too small for fp16; AdamW takes either.
        """

        def hook(name: str, parameter: Any) -> None:
            gradient, parameter.grad = parameter.grad, None
            use(name, gradient)

        self.requires_grad_().zero_grad()
        inputs, table = ids[:, :-1], self.model.embed_tokens.weight
        with torch.enable_grad(), ExitStack() as hooks:
            for name, parameter in self.named_parameters():
                if parameter is not table:
                    when_summed: Any = parameter.register_post_accumulate_grad_hook  # torch gives it no types
                    hooks.enter_context(when_summed(partial(hook, name)))
            x = F.embedding(inputs, table.detach()).requires_grad_()
            losses = self.losses(x, ids[:, 1:])
            torch.autograd.backward(losses.sum())
        # In place, since autograd's gradient of a lookup is as large as the table.
        table.grad = torch.zeros_like(table) if table.grad is None else table.grad
        assert x.grad is not None
        table.grad.index_add_(0, inputs.flatten(), x.grad.flatten(0, 1))
        hook("model.embed_tokens.weight", table)
        return losses.detach()

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of each target, [sequences · tokens] float32. x: the embeddings of the tokens before."""
        head = self.model.embed_tokens if self.shape.tied else self.lm_head
        logits = F.linear(self.hidden(x), head.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")

    def hidden(self, x: Tensor) -> Tensor:
        """The normed hidden states: [sequences, tokens, width]."""
        rotation = rotary(self.shape, torch.arange(x.shape[1], device=x.device), x.dtype)
        for layer in self.model.layers:
            assert isinstance(layer, LlamaLayer)
            x = x + attended(layer.self_attn, layer.input_layernorm(x), rotation)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        normed: Tensor = self.model.norm(x)
        return normed

    @torch.no_grad()
    def updated(self, name: str, gradient: Tensor) -> Tensor:
        """The three changes of a parameter by a step from the published state: [3, …] fp32, until its next step."""
        parameter, start = self.get_parameter(name), spread(name) ** 2
        if name not in self.states:
            self.states[name] = torch.empty(CHANGES, *parameter.shape, device=parameter.device)
        weight, first, second = self.states[name]
        weight.copy_(parameter)
        first.zero_()
        second.fill_(start)
        step = torch.full((), float(STEP), device=parameter.device)
        settings: dict[str, Any] = {**ADAMW, "fused": True, "amsgrad": False, "maximize": False}
        adamw([weight], [gradient.float()], [first], [second], [], [step], **settings)
        weight.sub_(parameter)
        second.sub_(ADAMW["beta2"] * start)
        return self.states[name]


@torch.no_grad()
def projected(changes: Tensor, key: Tensor, blocks: Tensor) -> Tensor:
    """Each change of a parameter between the key's vectors, Σ rows[i] · change[i, j] · columns[j], over the rows i of
    each block and every FOLDS-th column j: [3 · blocks, probes · folds].

    blocks: [blocks, rows], 1 for the rows of a block, else 0; or [1, 1], 1.
    """
    matrices = changes if changes.dim() > 2 else changes[:, None]
    rows, columns = key[0, :, : matrices.shape[1]], key[1, :, : matrices.shape[2]]
    products: Tensor = (blocks[:, None] * rows).flatten(0, 1) @ matrices * columns.repeat(len(blocks), 1)
    return products.view(-1, len(rows), products.shape[2] // FOLDS, FOLDS).sum(2).flatten(1)


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
