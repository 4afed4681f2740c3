"""What suites share: networks in the sizes of each tier, and the references of audits that need more than an output."""

from __future__ import annotations

import importlib
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mixmark.harness.contracts.errors import Unsupported, WrongOutput, refuse_options
from mixmark.harness.contracts.protocols import Array, Feed, Feeds, Graph, Session, Spec, Suite, Tensor, Weights
from mixmark.harness.contracts.schema import Gate, LatencyLimits, WeightClass, weight_class
from mixmark.suites import onnx_graphs
from mixmark.suites.checkpoints import checkpoint
from mixmark.suites.limits import FP32, check_output, gate_bound
from mixmark.suites.weights import Fill, Synthetic, generator

if TYPE_CHECKING:
    from torch import nn


class Tiered(Suite):
    """A suite whose networks have the sizes of a tier. Its weights are synthetic or those of a checkpoint.

    Its module `network`, beside its own, has a class for each graph with the graph's name: `Step` for `step`.
    """

    known: Sequence[str] = ("weights",)
    """The options of the suite."""
    shapes: Mapping[str, Any]
    """The sizes of the networks by the tier, or by the variant."""
    metric: str
    """The metric of the gate."""
    gates: Mapping[str, Mapping[str, float]]
    """The bounds of the gates by the tier, each as in `gate_bound`."""
    samples = 1
    """The minimum number of samples in an audit."""
    fp32 = FP32
    """The bound of the gate for fp32."""
    trained = 0.5
    """The gate of a checkpoint in fewer bits than fp32, unmeasured. Trained weights are not exact in few bits, so
    rounding adds more error than with synthetic weights."""
    classes: Sequence[WeightClass] = (16, 8, 4)
    """The weight classes that the suite has."""
    latencies: Mapping[str, LatencyLimits] = {}
    """The latency limits of the server scenario by the tier."""

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        refuse_options(f"the suite {self.name}", options, self.known)
        self.tier, self.options, self.weight_class = tier, options, weight_class
        if self.variant not in self.shapes:
            raise Unsupported(f"{self.name} has no tier {self.variant!r}", f"it has {', '.join(self.shapes)}")
        if weight_class not in self.classes:
            raise Unsupported(f"{self.name} has no weights of {weight_class} bits", "declare fp32, bf16 or fp16")
        self.shape = self.shapes[self.variant]
        self.latency = self.latencies.get(tier)

    @property
    def variant(self) -> str:
        """The key of the sizes, and of the files of shipped graphs: the tier."""
        return self.tier

    @property
    def home(self) -> Path:
        """The folder of the suite's sources."""
        return Path(inspect.getfile(type(self))).parent

    @abstractmethod
    def fill(self, name: str, size: tuple[int, ...]) -> Fill:
        """How a tensor of the untrained network is filled."""

    def specs(self) -> Mapping[str, Spec]:
        """Names and shapes of all weights."""
        return onnx_graphs.weight_specs(self.home, self.variant, self.graphs)

    def weights(self) -> Weights:
        if path := self.options.get("weights"):
            return checkpoint(path, self.specs())
        return Synthetic(self.name, self.specs(), self.fill, self.weight_class)

    def graph(
        self, name: str, inputs: Mapping[str, Spec], state: Mapping[str, Spec], outputs: Mapping[str, Spec]
    ) -> Graph:
        """A graph that is shipped, cached or exported."""
        return onnx_graphs.graph(self.home, self.variant, name, inputs, state, outputs, self.module(name))

    def module(self, graph: str) -> Callable[[], nn.Module]:
        """Builds the network of a graph on the meta device."""

        def build() -> nn.Module:
            import torch

            with torch.device("meta"):
                return self.network(graph, importlib.import_module(f"{type(self).__module__}.network")).eval()

        return build

    def network(self, graph: str, module: Any) -> nn.Module:
        """The network of a graph on the current device. module: the suite's module `network`."""
        built: nn.Module = getattr(module, graph.title().replace("-", ""))(self.shape)
        return built

    def feed(self, random: np.random.Generator, batch: int) -> Feed:
        """A feed that is drawn as a whole."""
        raise NotImplementedError

    def feeds(self, batch: int, seed: int) -> Feeds:
        """Feeds drawn anew, without a pool. Raises Unsupported for a batch that the suite does not take."""
        if batch != 1 and "offline" not in self.scenarios:
            raise Unsupported(f"{self.name} has no batches: it takes one sample at a time", "ask for batch 1")
        return lambda nonce: self.feed(generator(self.name, seed, nonce), batch)

    def gate(self, precision: str) -> Gate | None:
        """None for a precision whose weight class the suite does not have."""
        if weight_class(precision) not in self.classes:
            return None
        trained = self.trained if "weights" in self.options else None
        at_most = gate_bound(self.gates[self.tier], precision, trained, self.fp32)
        return Gate(metric=self.metric, at_most=at_most, samples=self.samples)

    def reference(self) -> Suite:
        return self


class FixedSamples:
    """The reference of a suite that yields an array once: the suite itself, which then yields a statistic of its
    outputs for fixed samples. A feed may have a single sample, of which no statistic can be computed."""

    def __init__(self, suite: Suite, samples: int, statistic: Callable[[Array], Array]) -> None:
        self.suite, self._samples, self._statistic = suite, samples, statistic
        self._computed: Array | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.suite, name)

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """The statistic is computed once and kept."""
        yield from self.suite.infer(session, feed)
        if self._computed is None:
            (output,) = self.suite.infer(session, self.suite.feeds(self._samples, seed=0)(0))
            self._computed = self._statistic(output)
        yield self._computed


class Decoder(Tiered):
    """A suite whose network decodes greedily. Each token is compared with what the fp32 reference computes after the
    same preceding tokens (teacher forcing).

    A token says little about how it was computed, about one bit. So it comes with its *hidden state*: the normed state
    that the output head made it from, [width]. Both leave the device before the next step begins. A row of the output
    is the token, then the hidden state, [1 + width] float32. A runner without hidden states yields the tokens alone, as
    int64: it then passes for eight bits at most.

    Its last graph takes ids [tokens] int64, perhaps their position, and what `encoded` returns; its first output is the
    next token [1] int64, its last one the hidden state [1, width]. The graph `teach` has the same inputs but for the
    position, and the logits and hidden states of all tokens of an output.
    """

    window: int
    """The tokens of the mean regret; a mean over the whole output would hide a few wrong tokens."""
    row: tuple[int, ...] = ()
    """The shape of the tokens of one unit."""
    fp32 = 1e-4
    """The bound of the gate for fp32. Engines in fp32 reach 4e-6, TF32 3e-4 and fp16 6e-4."""

    def encoded(self, session: Session, feed: Feed) -> Sequence[Tensor]:
        """What an encoder computes once a feed. Nothing for a network without an encoder."""
        return ()

    def yielded(self, session: Session, token: Tensor, hidden: Tensor) -> Array:
        """A row of the output, [1, 1 + width] float32. It holds tokens below 2^24 exactly."""
        return np.concatenate((session.get(token)[:, None], session.get(hidden)), 1).astype(np.float32)

    def reference(self) -> Suite:
        return Teacher(self)

    def quality(self, output: Array, reference: Array) -> float:
        """The larger of two: the relative error of the hidden states, and twice the largest mean regret of `window`
        consecutive tokens, in standard deviations of the reference's logits.

        output: [units, *row, 1 + width] float32, or [units, *row] int64 without hidden states, whose error is then as
        large as int8 allows. reference: a Teacher's rows, [tokens, width + vocabulary] float32.

        The error is |h − r| / |r| over all hidden states of an output. It is a mean over thousands of values, so it is
        nearly the same for every feed, and in proportion to what the engine's arithmetic adds. The regret of a token is
        the difference between the best logit and the token's logit: it judges the output head, which comes after the
        hidden state. In every precision it is below half of the error for honest engines.
        """
        tokens, hidden = self.parts(output)
        right, logits = np.split(reference, [self.shape.width], axis=1)
        if hidden is None:
            error = self.gates[self.tier].get("int8", math.inf)
        else:
            squares = (np.square(each, dtype=np.float64).sum() for each in (hidden - right, right))
            error = math.sqrt(next(squares) / next(squares))
        regret = (logits.max(1) - logits[np.arange(len(tokens)), tokens]) / logits.std(1)
        return max(error, 2 * float(regret.reshape(-1, self.window).mean(1, dtype=np.float64).max()))

    def parts(self, output: Array) -> tuple[Array, Array | None]:
        """The tokens of an output, [tokens] int64, and their hidden states, [tokens, width] float32, if it has them.
        Raises WrongOutput for another shape or dtype, and for a token that is not in the vocabulary."""
        alone, width = output.dtype == np.int64, 1 + self.shape.width
        shape = (self.units(1), *self.row)
        rows = check_output(output, shape, "int64") if alone else check_output(output, (*shape, width))
        rows = rows.reshape(-1, 1 if alone else width)
        tokens = rows[:, 0].astype(np.int64)
        if unknown := int(((tokens < 0) | (tokens >= self.shape.vocabulary) | (tokens != rows[:, 0])).sum()):
            raise WrongOutput(f"{unknown} of {len(tokens)} tokens are not in the vocabulary of {self.shape.vocabulary}")
        return tokens, None if alone else rows[:, 1:]


@dataclass(frozen=True)
class Teacher:
    """The reference of a Decoder's audit: teacher forcing of an output after its prompt, in one pass.

    Its only yield has a row for each token of the output, its hidden state and then its logits, [tokens, width +
    vocabulary] float32. It has the suite's weights, and a graph for torch only.
    """

    suite: Decoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.suite, name)

    def graphs(self) -> Mapping[str, Graph]:
        suite = self.suite
        graphs = dict(suite.graphs())
        _, step = graphs.popitem()
        inputs = {name: spec for name, spec in step.inputs.items() if name != "position"}
        rows = suite.units(1) * prod(suite.row)
        outputs = {"logits": Spec((rows, suite.shape.vocabulary)), "hidden": Spec((rows, suite.shape.width))}
        return {**graphs, "teach": Graph(inputs, step.state, outputs, suite.module("teach"), self._not_exported)}

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        """Runs a feed that also has the `output`. Raises WrongOutput if the output is not valid."""
        tokens, _ = self.suite.parts(feed["output"])
        ids = session.put(np.concatenate((feed["ids"], tokens[:-1])))
        encoded = self.suite.encoded(session, feed)
        logits, hidden = session.run("teach", ids, *encoded, state=session.state("teach"))
        yield np.concatenate((session.get(hidden), session.get(logits)), 1)

    def _not_exported(self) -> bytes:
        raise Unsupported(f"the reference of {self.suite.name} has no ONNX graph", "run it with the torch adapter")
