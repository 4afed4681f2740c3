"""A Mamba-2 decoder: state spaces whose decay is one number a head and a token, and that depend on their input.

It is state-dict compatible with transformers' Mamba2ForCausalLM. Tokens of a chunk attend to each other in the
quadratic form, and to all tokens before through a state of fixed size; a chunk of one token is the recurrence (Dao and
Gu, Transformers are SSMs, ICML 2024, section 6). Activations stay two-dimensional around linear layers, as in llm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mixmark.harness.capabilities.ssm import CHUNK, Mamba2Shape
from mixmark.suites.weights import embedding


class Mamba2(nn.Module):
    def __init__(self, shape: Mamba2Shape) -> None:
        super().__init__()
        self.shape = shape
        self.backbone = Mamba2Model(shape)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width] -> [rows, vocabulary]."""
        head = self.backbone.embeddings if self.shape.tied else self.lm_head
        return F.linear(hidden, head.weight)


class Step(Mamba2):
    """Prefill and decode: ids [tokens] int64 -> next token [1], hidden state [1, width].

    state: the window and the state of each layer in turn, as `Mamba2Mixer` has them, written in place.
    """

    def forward(self, ids: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.backbone(ids, *state)
        return self.logits(hidden).argmax(-1), hidden


class Teach(Mamba2):
    """Teacher forcing: ids [tokens_in + tokens_out - 1] int64 -> logits [tokens_out, vocabulary], hidden states
    [tokens_out, width].

    ids: a prompt and its output without the last token. The results have a row for each token of the output. state:
    like a Step's, all zero.
    """

    def forward(self, ids: Tensor, *state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.cat([self.backbone(chunk, *state, rows=CHUNK) for chunk in torch.split(ids, CHUNK)])
        hidden = hidden[-self.shape.tokens_out :]
        return self.logits(hidden), hidden


class Mamba2Model(nn.Module):
    def __init__(self, shape: Mamba2Shape) -> None:
        super().__init__()
        self.embeddings = embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Mamba2Layer(shape) for _ in range(shape.layers))
        self.norm_f = RmsNorm(shape.width, 1, shape.epsilon)

    def forward(self, ids: Tensor, *state: Tensor, rows: int = 1) -> Tensor:
        """The normed hidden states of the last `rows` tokens: [rows, width]. The sum of the branches is float32."""
        x = self.embeddings(ids).float()
        for i, layer in enumerate(self.layers):
            x = layer(x, state[2 * i], state[2 * i + 1])
        last: Tensor = self.norm_f(x[-rows:])
        return last


class Mamba2Layer(nn.Module):
    def __init__(self, shape: Mamba2Shape) -> None:
        super().__init__()
        self.norm = RmsNorm(shape.width, 1, shape.epsilon)
        self.mixer = Mamba2Mixer(shape)

    def forward(self, x: Tensor, window: Tensor, state: Tensor) -> Tensor:
        out: Tensor = x + self.mixer(self.norm(x), window, state)
        return out


class Mamba2Mixer(nn.Module):
    """window: the last kernel - 1 inputs of the convolution, [kernel - 1, channels].
    state: of each head, [groups, heads / groups, head_dim, state]; the heads of a group share B and C.
    """

    def __init__(self, shape: Mamba2Shape) -> None:
        super().__init__()
        self.shape = shape
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.zeros(shape.heads)) for _ in range(3))
        self.in_proj = nn.Linear(shape.width, shape.inner + shape.channels + shape.heads, bias=False)
        self.conv1d = nn.Conv1d(shape.channels, shape.channels, shape.kernel, groups=shape.channels)
        self.norm = RmsNorm(shape.inner, shape.groups, shape.epsilon)
        self.out_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor, window: Tensor, state: Tensor) -> Tensor:
        shape, tokens = self.shape, x.shape[0]
        gate, mixed, dt = torch.split(self.in_proj(x), [shape.inner, shape.channels, shape.heads], 1)
        sizes = [shape.inner, shape.groups * shape.state, shape.groups * shape.state]
        x, b, c = torch.split(self.convolved(mixed, window), sizes, 1)
        x = x.view(tokens, shape.groups, -1, shape.head_dim).permute(1, 2, 0, 3)  # [groups, heads, tokens, head_dim]
        b, c = (each.view(tokens, shape.groups, 1, shape.state).permute(1, 2, 0, 3) for each in (b, c))
        out = self.scanned(x, b, c, dt, state).permute(2, 0, 1, 3).reshape(tokens, shape.inner)
        projected: Tensor = self.out_proj(self.norm(out, gate))
        return projected

    def convolved(self, x: Tensor, window: Tensor) -> Tensor:
        """SiLU of the causal convolution of each channel, summed in float32: [tokens, channels].

        It is a sum of shifted rows, since a convolution of one channel a group is slow in many engines.
        """
        before, bias = self.shape.kernel - 1, self.conv1d.bias
        assert bias is not None
        rows = torch.cat((window, x))
        taps = self.conv1d.weight[:, 0].t().float()
        window.copy_(rows[-before:])
        shifted = (rows[tap : tap - before or None].float() * taps[tap] for tap in range(before + 1))
        return F.silu(sum(shifted, bias.float())).to(x.dtype)

    def scanned(self, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, state: Tensor) -> Tensor:
        """The state spaces' outputs, [groups, heads, tokens, head_dim] float32.

        h_i = exp(dt_i A) h_{i-1} + dt_i x_i Bᵢᵀ and y_i = h_i C_i + D x_i. So in a chunk token i sees token j through
        C_i·B_j with the decay exp(A Σ dt_k), j < k ≤ i. The decays are float32 at every precision. They are summed for
        each j anew, because the difference of two long sums would lose digits.
        """
        place, groups = torch.arange(x.shape[2], device=x.device), self.shape.groups
        dt = F.softplus(dt.float() + self.dt_bias.float()).t()
        dt = dt.unflatten(0, (groups, -1))  # type: ignore[no-untyped-call]  # torch gives it no types
        step = dt * -self.A_log.float().exp().view(groups, -1, 1)
        later, seen = place[:, None] > place, place[:, None] >= place
        sums = torch.where(later, step[..., None], 0.0).cumsum(2)
        decay = torch.where(seen, sums.exp(), 0.0)  # [groups, heads, tokens, tokens]
        kept = decay[..., :1] * step[..., :1, None].exp()  # of the incoming state
        added = (x * dt[..., None]).to(x.dtype)
        within = (c @ b.transpose(2, 3) * decay).to(x.dtype) @ added
        before = c @ state.transpose(2, 3)
        last = (added * decay[..., -1, :, None]).to(x.dtype)
        state.copy_(state * kept[..., -1:, :] + last.transpose(2, 3) @ b)
        return within + kept * before + x * self.D.view(groups, -1, 1, 1)


class RmsNorm(nn.Module):
    """RMS norm of each of `groups` parts of a row, computed in float32 at every precision. A gate comes before it."""

    def __init__(self, width: int, groups: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.groups, self.epsilon = groups, epsilon

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        wide = x.float()
        if gate is not None:
            wide = wide * F.silu(gate.float())
        wide = wide.unflatten(-1, (self.groups, -1))  # type: ignore[no-untyped-call]  # torch gives it no types
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        normed: Tensor = self.weight * wide.flatten(-2).to(self.weight.dtype)
        return normed
