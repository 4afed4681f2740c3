"""Speech recognition: greedy transcription of 30 seconds of audio at batch 1, in the shapes of Whisper.

The encoder reads the features of the whole audio. The decoder then writes a fixed number of tokens for each second:
there is no end token, no token is suppressed and no timestamp is written. The rate of three tokens a second is ours,
near that of read English in Whisper's vocabulary: 150 words a minute, 1.2 tokens a word.

The audit works as in llm: each token and its hidden state are compared with what the fp32 reference computes after the
same preceding tokens (teacher forcing).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from mixmark.harness.contracts.protocols import Array, Feed, Graph, Session, Spec, Tensor, Value
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, UnitNames
from mixmark.suites import llm
from mixmark.suites.limits import SECOND, own_limits
from mixmark.suites.tiered import Decoder
from mixmark.suites.weights import Draw, Fill

SECONDS = 30
"""The audio of a feed, and so its units. Whisper's encoder always takes 30 s."""
TOKENS = 3
"""The tokens of a second."""
BANDS, SYLLABLE = 4, 20
"""The bands and the frames of a patch of a feed: 20 frames of 10 ms are 0.2 s."""


@dataclass(frozen=True)
class WhisperShape:
    """A tier: the sizes of the network, and the prompt."""

    layers: int
    """The layers of the encoder, and of the decoder."""
    width: int
    heads: int
    mel: int
    vocabulary: int
    prompt: tuple[int, ...]
    """The tokens that start a transcript, name its language and task, and refuse timestamps."""
    positions: int = 1500
    """The rows of the encoder's output, one for two frames of features."""
    target_positions: int = 448
    """The rows of the decoder's position table."""

    @property
    def context(self) -> int:
        return len(self.prompt) + SECONDS * TOKENS

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


SHAPES = {
    "smoke": WhisperShape(3, 128, 4, 32, 2048, (2000, 2001, 2002, 2003), positions=300),
    "edge": WhisperShape(6, 512, 8, 80, 51_865, (50_258, 50_259, 50_359, 50_363)),  # whisper-base
    "server": WhisperShape(32, 1280, 20, 128, 51_866, (50_258, 50_259, 50_360, 50_364)),  # whisper-large-v3
}

BIAS = 0.125
"""The gain of biases."""
GAINS = {
    "encoder.conv1": 4.0,
    "encoder.conv2": 2.0,
    "encoder.embed_positions": 0.5,
    "encoder.*.out_proj": 0.5,
    "decoder.embed_positions": 2.0,
    "decoder.embed_tokens": 4.0,
    "decoder.*.q_proj": 2.0,
    "decoder.*.out_proj": 2.0,
}
"""Gains by the name of a weight: the first matching pattern counts; other weights have 1. The gain of a table is the
root mean square of its values."""

AT_MOST = {
    "smoke": {"16 bits": 0.026, "fp8": 0.27, "int8": 0.11, "int4": 0.11},
    "edge": {"16 bits": 0.033, "fp8": 0.36, "int8": 0.19, "int4": 0.19},
    "server": {"16 bits": 0.06, "fp8": 0.5, "int8": 0.3, "int4": 0.3},
}
"""Gates by the tier and the declared precision, from docs/capabilities/speech.md. The server tier's gates are
unmeasured."""

LATENCY = own_limits(first_ns=10 * SECOND, per_unit_ns=SECOND)
"""Limits of the server scenario at every tier: a transcript may be no slower than the speech. MLPerf Inference has no
server scenario for Whisper."""


class Speech(Decoder):
    """A Whisper-style transcriber: greedy, batch 1, static KV cache.

    Feed: features [1, mel, frames] float32 and ids [4] int64, the prompt. One yield for each second of audio: the
    rows of its tokens, [1, 3, 1 + width] float32.
    """

    name = "speech"
    version = "4"
    unit = "second"
    unit_names = UnitNames(
        short="audio s",
        work="seconds of audio",
        first_unit="Time to the first second's words",
        per_unit="Time per second of audio",
    )
    scenarios: Sequence[str] = ("single-stream", "server")
    shapes, gates, latencies = SHAPES, AT_MOST, dict.fromkeys(SHAPES, LATENCY)
    metric = "relative error of the hidden states, or twice the worst mean regret of 10 seconds, if that is larger"
    window, row = 10 * TOKENS, (TOKENS,)
    shape: WhisperShape

    @property
    def config(self) -> Mapping[str, Value]:
        """As in WhisperConfig; the prompt is in each feed."""
        shape = self.shape
        sides = {"layers": shape.layers, "attention_heads": shape.heads, "ffn_dim": 4 * shape.width}
        return {
            "model_type": "whisper",
            "activation_function": "gelu",
            "d_model": shape.width,
            **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()},
            "num_mel_bins": shape.mel,
            "max_source_positions": shape.positions,
            "max_target_positions": shape.target_positions,
            "vocab_size": shape.vocabulary,
            "tie_word_embeddings": True,
            "scale_embedding": False,
            "decoder_start_token_id": shape.prompt[0],
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), shape.prompt[0] - 1),
        }

    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """The gain of each tensor of the untrained network. `llm.gains` explains the aims and most of the means.

        The decoder's attention is sharp in every layer: averages over the whole audio are alike for all tokens, and the
        output would fall into a cycle. So would it if all positions of the encoder had much in common, which is what
        its attention adds, so that branch is small. The encoder's attention averages over a few dozen positions; if it
        were sharp, it would amplify the rounding of all that follows. The second linear layers of the last quarter of
        the layers have twice the gain, since no later layer amplifies the effect of a missing layer.
        """
        path, kind = name.removeprefix("model.").rsplit(".", 1)
        if name == "model.decoder.layer_norm.weight":
            return Draw()
        if len(size) == 1:
            return 1.0 if kind == "weight" else Draw(BIAS)
        gain = next((gain for pattern, gain in GAINS.items() if fnmatchcase(path, pattern)), 1.0)
        if "embed" in path:
            gain *= math.sqrt(size[1])  # a look-up has a fan-in of 1
        if path.endswith("fc2") and int(path.split(".")[2]) >= 3 * self.shape.layers // 4:
            gain *= 2
        return Draw(gain)

    def graphs(self) -> Mapping[str, Graph]:
        shape = self.shape

        def each(rows: int, name: str) -> Mapping[str, Spec]:
            """The keys and values of each decoder layer in turn."""
            spec = Spec((shape.heads, rows, shape.head_dim))
            return {f"{name}{side}.{layer}": spec for layer in range(shape.layers) for side in "kv"}

        heard = each(shape.positions, "heard_")
        features = {"features": Spec((1, shape.mel, 2 * shape.positions))}
        inputs = {"ids": Spec(("tokens",), "int64"), "position": Spec((1,), "int64"), **heard}
        outputs = llm.STEP | {"hidden": Spec((1, shape.width))}
        return {
            "encode": self.graph("encode", features, {}, heard),
            "step": self.graph("step", inputs, each(shape.context, ""), outputs),
        }

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        """Features drawn as a whole, and the tier's prompt.

        Features are noise on patches of the size of a syllable's formant, within -1 to 1 as Whisper scales a spectrum.
        """
        mel, frames = self.shape.mel, 2 * self.shape.positions
        patches = random.standard_normal((mel // BANDS, frames // SYLLABLE), dtype=np.float32)
        noise = random.standard_normal((mel, frames), dtype=np.float32)
        loudness = 0.4 * patches.repeat(BANDS, 0).repeat(SYLLABLE, 1) + 0.2 * noise - 0.2
        return {"features": loudness.clip(-1, 1)[None], "ids": np.array(self.shape.prompt)}

    def encoded(self, session: Session, feed: Feed) -> Sequence[Tensor]:
        return session.run("encode", session.put(feed["features"]))

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """Yields the tokens of one second at a time. Tokens and position stay on the device between steps."""
        heard = self.encoded(session, feed)
        state = session.state("step")
        ids, position = session.put(feed["ids"]), session.put(np.zeros(1, np.int64))
        for _ in range(SECONDS):
            second = []
            for _ in range(TOKENS):
                ids, position, hidden = session.run("step", ids, position, *heard, state=state)
                second.append(self.yielded(session, ids, hidden))
            yield np.stack(second, axis=1)

    def units(self, batch: int) -> int:
        return SECONDS * batch

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        """The costs of the first second, with encoder and prompt, and of each later second at the mean context.

        FLOPs: convolutions, linear layers and attention, causal in the decoder; norms, softmax and other element-wise
        operations are not counted. Least FLOPs: the first convolution by Winograd's F(4, 3), which halves its
        multiplications; the decoder's last layer for the last token of the prompt only, apart from keys and values.
        Bytes: the encoder's weights once and the decoder's once a token, the looked-up rows, the keys and values of
        the encoder's output as they are written once and read for each token, and the KV cache. Scales of 4-bit
        weights are not counted.
        """
        shape = self.shape
        width, layers, positions, prompt = shape.width, shape.layers, shape.positions, len(shape.prompt)
        weight_bytes = BITS_PER_WEIGHT[precision] / 8
        entry = 2 * layers * width * (4 if precision == "fp32" else 2)  # bytes of a row's keys and values
        pair = 4.0 * width * layers  # FLOPs of one (query, key) pair in all layers
        square = width**2
        head = shape.vocabulary * width

        def step(tokens: int, context: float, seen: float) -> Array:
            """FLOPs, least FLOPs, bytes, streamed bytes. The arguments are those of the costs of llm."""
            flops = 2.0 * (tokens * layers * 14 * square + head) + pair * (seen + tokens * positions)
            unneeded = 2.0 * (tokens - 1) * 12 * square + pair / layers * (seen - context + (tokens - 1) * positions)
            matrices = (layers * 14 * square + head) * weight_bytes
            rows = (layers * 16 * width + 2 * width + tokens * 2 * width) * weight_bytes
            moved = entry * (tokens + context + positions) + 8 * (tokens + 1)
            return np.array([flops, flops - unneeded, matrices + rows + moved, matrices])

        conv1, conv2 = 3 * shape.mel * width, 3 * square
        flops = 2.0 * positions * (2 * conv1 + conv2 + layers * (12 + 2) * square) + pair * positions**2
        matrices = (conv1 + conv2 + layers * (12 + 2) * square) * weight_bytes
        vectors = (positions + 4 + 13 * layers) * width * weight_bytes
        moved = entry * positions + 2 * positions * shape.mel * (4 if precision == "fp32" else 2)
        encoder = np.array([flops, flops - 2.0 * positions * conv1, matrices + vectors + moved, matrices])

        first = encoder + step(prompt, prompt, prompt * (prompt + 1) / 2)
        first += sum(step(1, prompt + token, prompt + token) for token in range(1, TOKENS))
        mean = prompt + (TOKENS + SECONDS * TOKENS - 1) / 2  # mean of the context lengths of the later seconds' tokens
        later = TOKENS * step(1, mean, mean)

        def cost(name: str, work: Array, yields: int) -> Cost:
            flops, least, moved, streamed = map(float, work)
            return Cost(name=name, flops=flops, min_flops=least, bytes=moved, streamed_bytes=streamed, yields=yields)

        return (cost("encoder and first second", first, 1), cost("second", later, SECONDS - 1))
