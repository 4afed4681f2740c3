"""The checks of a suite, in the order of docs/capabilities/kit/conformance.md: trials -> evidence.

The kit measures nothing of a suite's own code, so that code runs in its process. Only the last check runs it as a run
does: in workers, with audits.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from mixmark.harness.capabilities.kit import TIMEOUT_S, adapter
from mixmark.harness.capabilities.kit.adapter_trials import UNKNOWN_OPTION, AdapterTrials
from mixmark.harness.capabilities.kit.report import (
    Check,
    CheckFailed,
    NotChecked,
    Report,
    checked,
    chosen,
    fail_for,
    fail_if,
    trial,
)
from mixmark.harness.contracts.errors import PluginError, Unsupported, UsageError, WrongOutput
from mixmark.harness.contracts.numbers import counted, percent
from mixmark.harness.contracts.protocols import Adapter, Array, Feed, Runner, Suite, Use, Weights
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Precision, WeightClass, weight_class
from mixmark.harness.machine import config as configuration
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import Config
from mixmark.harness.measure.audit import CPU
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import load_generator

ENGINE = Plugin("adapters", "counted", "mixmark.harness.adapters.torch.counted:Counted", "")
ADAPTERS = ("torch", "onnxruntime")
"""The built-in adapters that run a suite as a run does."""
SEED = 1
FEEDS = 2  # that are compared with the reference, for each way to compute them
SAMPLES = 4  # at least, in a feed of a suite that takes batches
COMPUTED: Mapping[Precision, str] = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16", "int8": "bf16", "int4": "bf16"}
"""The type that torch computes in for a declared precision: with the weights of its class, exact in this type."""
NARROWER: Mapping[WeightClass, tuple[int, int | None]] = {16: (8, None), 8: (4, 32), 4: (3, 32)}
"""The bits of a cheat's weights, and how many share a scale along the contraction axis; None: a row."""
COUNT = 0.1  # the largest difference between the declared and the counted work, as a part of the declared


@dataclass(frozen=True)
class Narrowed:
    """Weights of fewer bits than their class has."""

    weights: Weights
    bits: int
    group: int | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.weights, name)

    def read(self, name: str, into: npt.NDArray[np.float32]) -> None:
        self.weights.read(name, into)
        if into.ndim > 1:
            into[...] = integers(into, self.bits, self.group)


@dataclass(frozen=True)
class Cheat:
    """A suite whose engine reads weights of fewer bits than its precision has."""

    suite: Suite

    def __getattr__(self, name: str) -> Any:
        return getattr(self.suite, name)

    def weights(self) -> Weights:
        return Narrowed(self.suite.weights(), *NARROWER[self.suite.weight_class])


def integers(values: npt.NDArray[np.float32], bits: int, group: int | None) -> npt.NDArray[np.float32]:
    """Values rounded to symmetric integers of these bits. The scale is absmax / (2^(bits−1) − 1) of a row, or absmax /
    2^(bits−1) of a group along the contraction axis (all axes after the first)."""
    rows = values.reshape(len(values), -1)
    width, top = group or rows.shape[1], 2 ** (bits - 1)
    groups = np.pad(rows, ((0, 0), (0, -rows.shape[1] % width))).reshape(len(rows), -1, width)
    scale = np.maximum(np.abs(groups).max(-1, keepdims=True) / (top if group else top - 1), 1e-30)
    whole = (groups / scale).round().clip(-top, top - 1) * scale
    return np.asarray(whole.reshape(len(rows), -1)[:, : rows.shape[1]].reshape(values.shape), np.float32)


class SuiteTrials:
    """The trials of one suite at the smoke tier. stack: closes what they open."""

    def __init__(self, plugin: Plugin, config: Config, stack: ExitStack) -> None:
        self.plugin, self.config, self._stack = plugin, config, stack
        self._references: dict[WeightClass, Runner] = {}

    def suite(self, bits: WeightClass = 16, tier: str = "smoke", more: Mapping[str, str] | None = None) -> Suite:
        """A new object of the suite."""
        options = {**self.config.suites.get(self.plugin.name, {}), **(more or {})}
        built: Suite = registry.build_suite(self.plugin.name, self.plugin.spec, tier, options, bits)
        return built

    @property
    def batch(self) -> int:
        """The samples of a feed: enough for an audit, or one if the suite's native scenario takes no batches."""
        suite = self.suite()
        gate = suite.gate("bf16")
        return max(SAMPLES, gate.samples if gate else 1) if suite.scenarios[0] == "offline" else 1

    def runner(self, suite: Suite, precision: str, count: bool = False) -> Runner:
        """The suite on torch, open until the kit ends. Raises NotChecked without torch."""
        try:
            engine: Adapter = ENGINE.load()({"count": "true"} if count else {})
        except PluginError as error:
            raise NotChecked("it needs torch, which computes the reference") from error
        return self._stack.enter_context(engine.open(CPU, suite, precision, Use.of("single-stream")))

    def reference(self, feed: Feed, output: Array, bits: WeightClass = 16) -> Array:
        """The reference of a feed and its output, which is computed as an audit does."""
        if bits not in self._references:
            self._references[bits] = self.runner(self.suite(bits).reference(), "fp32")
        return np.concatenate(_yields(self._references[bits], {**feed, "output": output}))

    def value(self, feed: Feed, output: Array, bits: WeightClass) -> float:
        """The gate's metric; infinite for an output that no correct run has."""
        try:
            return self.suite(bits).quality(output, self.reference(feed, output, bits))
        except WrongOutput:
            return np.inf

    def audited(self, suite: Suite, precision: str) -> float:
        """The largest value of the kit's feeds, as an audit of them finds it."""
        runner, feeds = self.runner(suite, precision), suite.feeds(self.batch, SEED)
        outputs = [(feed, np.concatenate(_yields(runner, feed))) for feed in map(feeds, range(FEEDS))]
        return max(self.value(feed, output, suite.weight_class) for feed, output in outputs)

    @trial
    def classes(self) -> Sequence[WeightClass]:
        """The weight classes that the suite has, 16 among them."""
        found: list[WeightClass] = [16]
        for bits in (8, 4):
            with suppress(Unsupported):
                found.append(self.suite(bits).weight_class)
        return found

    @trial
    def right(self) -> tuple[Feed, tuple[Array, ...], Mapping[str, str]]:
        """A feed, its yields in fp32, and what torch counted."""
        runner = self.runner(self.suite(), "fp32", count=True)
        feed = self.suite().feeds(self.batch, SEED)(0)
        return feed, _yields(runner, feed), runner.facts

    @trial
    def honest(self) -> Mapping[Precision, float]:
        """The value of each precision as torch rounds it."""
        computed = {each: of for each, of in COMPUTED.items() if weight_class(each) in self.classes}
        return {precision: self.audited(self.suite(weight_class(precision)), of) for precision, of in computed.items()}

    @trial
    def cheats(self) -> Mapping[WeightClass, float]:
        """The value of weights of fewer bits, computed in fp32, by the class that they should have."""
        return {bits: self.audited(Cheat(self.suite(bits)), "fp32") for bits in self.classes}

    def gates(self) -> Iterator[tuple[Precision, float]]:
        """The precisions that the kit compares, with the bounds of their gates. Raises NotChecked if there is none."""
        computed = [each for each in COMPUTED if weight_class(each) in self.classes]
        found = {each: gate.at_most for each in computed if (gate := self.suite(weight_class(each)).gate(each))}
        if not found:
            raise NotChecked("its outputs are not audited: it has no gate")
        yield from found.items()


def tiers_and_options_are_refused(trials: SuiteTrials) -> str:
    """An unknown tier raises Unsupported, an unknown option UsageError."""
    trials.suite()
    for refusal, how, tier, more in (
        (Unsupported, "an unknown tier", "mixmark-none", {}),
        (UsageError, "an unknown option", "smoke", {UNKNOWN_OPTION: "1"}),
    ):
        try:
            trials.suite(tier=tier, more=more)
        except refusal:
            continue
        raise CheckFailed(f"it took {how}: raise {refusal.__name__}")
    return "refused: an unknown tier, an unknown option"


def feeds_are_repeatable(trials: SuiteTrials) -> str:
    """Two objects of the suite make the same feed of a seed and a nonce, in C-contiguous arrays."""
    first, second = (trials.suite().feeds(trials.batch, SEED) for _ in range(2))
    second(0)  # the order of the nonces makes no difference
    feed = first(1)
    fail_if(_bytes(feed) != _bytes(second(1)), "the same seed and nonce gave another feed")
    broken = [name for name, array in feed.items() if not array.flags.c_contiguous]
    fail_if(broken, f"{', '.join(broken)} is not C-contiguous")
    return ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in feed.items())


def feeds_are_independent(trials: SuiteTrials) -> str:
    """Feeds of other seeds or nonces are other feeds, and so are feeds of other batches of a seed."""
    made = {(seed, nonce): trials.suite().feeds(trials.batch, seed)(nonce) for seed in (1, 2) for nonce in (0, 1)}
    fail_if(len({_bytes(feed) for feed in made.values()}) < len(made), "two seeds or nonces gave the same feed")
    rows = [row.tobytes() for feed in made.values() for row in _samples(feed, trials.batch)]
    fail_if(len(set(rows)) < len(rows), "two samples are equal: an output could be kept")
    return f"{len(made)} feeds, no two alike"


def units_are_counted(trials: SuiteTrials) -> str:
    """`units` is the number of rows of a feed, and the costs are in the order of its yields."""
    _, yields, _ = trials.right
    suite, rows = trials.suite(), sum(map(len, yields))
    fail_if(
        suite.units(trials.batch) != rows, f"a feed yielded {rows} rows, and `units` says {suite.units(trials.batch)}"
    )
    costed = sum(cost.yields for cost in suite.costs("fp32", trials.batch))
    fail_if(costed != len(yields), f"a feed yielded {len(yields)} times, and `costs` has {costed} yields")
    limits = "server" in suite.scenarios, suite.latency is not None
    fail_if(limits[0] != limits[1], "a suite has latency limits if it has the scenario server, and else None")
    return f"{counted(rows, 'row')} in {counted(len(yields), 'yield')}"


def the_reference_has_no_error(trials: SuiteTrials) -> str:
    """`quality` is 0 for an output of the reference, up to fp32's rounding."""
    feed, yields, _ = trials.right
    value, gate = trials.value(feed, np.concatenate(yields), 16), trials.suite().gate("fp32")
    if gate is None:
        raise NotChecked("its outputs are not audited: it has no gate")
    fail_if(value > gate.at_most, f"its value is {value:.2g}, and fp32 may have {gate.at_most:g}")
    return f"{value:.2g}"


def wrong_outputs_are_refused(trials: SuiteTrials) -> str:
    """`quality` raises WrongOutput for another number of rows, another dtype, and values that are not finite."""
    feed, yields, _ = trials.right
    output = np.concatenate(yields)
    reference, taken = trials.reference(feed, output), []
    wrong = {"a row less": output[:-1], "float64": output.astype(np.float64)}
    if output.dtype.kind == "f":
        wrong["NaN"] = np.full_like(output, np.nan)
    for what, made in wrong.items():
        try:
            trials.suite().quality(made, reference)
            taken.append(what)
        except WrongOutput:
            pass
    fail_if(taken, f"`quality` took {', '.join(taken)}: raise WrongOutput")
    return f"refused: {', '.join(wrong)}"


def gates_allow_honest_rounding(trials: SuiteTrials) -> str:
    """Weights of the class in bf16 and fp16, as torch computes, pass the gate."""
    gates = dict(trials.gates())
    values = {each: trials.honest[each] for each in gates}
    fail_for([f"{each}: {values[each]:.2g}, above {gates[each]:g}" for each in gates if values[each] > gates[each]])
    return ", ".join(f"{each}: {values[each]:.2g} of {gates[each]:g}" for each in gates)


def gates_catch_fewer_bits(trials: SuiteTrials) -> str:
    """Weights rounded to fewer bits than the class has fail the gate, and so does bf16 that is declared as fp32."""
    found = []
    fp32 = trials.suite().gate("fp32")
    fail_if(fp32 and trials.honest["bf16"] <= fp32.at_most, "fp32: bf16 passes its gate")
    for precision, at_most in trials.gates():
        bits, value = NARROWER[weight_class(precision)][0], trials.cheats[weight_class(precision)]
        found.append(f"{precision}: {value:.2g} by weights of {bits} bits, {at_most:g} allowed")
        fail_if(value <= at_most, f"{found[-1]}: lower the gate, or let more of the output depend on the weights")
    return ", ".join(found)


def gates_catch_garbage(trials: SuiteTrials) -> str:
    """Zeros and the output of another feed fail every gate."""
    feed, yields, _ = trials.right
    output = np.concatenate(yields)
    other = np.concatenate(_yields(trials.runner(trials.suite(), "fp32"), trials.suite().feeds(trials.batch, SEED)(1)))
    least = min(trials.value(feed, garbage, 16) for garbage in (np.zeros_like(output), other))
    fail_for(
        [f"{each}: {least:.2g} by garbage, {at_most:g} allowed" for each, at_most in trials.gates() if least <= at_most]
    )
    return f"{least:.2g} at least"


def flops_are_counted(trials: SuiteTrials) -> str:
    """The declared FLOPs of a feed are those that torch counts, within 10 %."""
    *_, facts = trials.right
    costs = trials.suite().costs("fp32", trials.batch)
    declared, done = sum(cost.flops * cost.yields for cost in costs), int(facts["flops"])
    message = f"{declared:.4g} FLOPs declared, {done:.4g} counted"
    fail_if(abs(done - declared) > COUNT * declared, f"{message}: at most {percent(COUNT)} apart")
    fail_if(any((cost.min_flops or 0) > cost.flops for cost in costs), "`min_flops` is above `flops`")
    return message


def bytes_hold_the_weights(trials: SuiteTrials) -> str:
    """The declared bytes of a feed hold each weight once that torch reads as a whole, in the bits of the precision."""
    *_, facts = trials.right
    for precision in (each for each in get_args(Precision) if weight_class(each) in trials.classes):
        costs = trials.suite(weight_class(precision)).costs(precision, trials.batch)
        declared = sum(cost.bytes * cost.yields for cost in costs)
        needed = int(facts["weights"]) * BITS_PER_WEIGHT[precision] / 8
        fail_if(
            declared < (1 - COUNT) * needed, f"{precision}: {declared:.4g} bytes, and the weights have {needed:.4g}"
        )
        fail_if(any(cost.streamed_bytes > cost.bytes for cost in costs), "`streamed_bytes` is above `bytes`")
    return f"{facts['weights']} weights"


def runs_are_audited(trials: SuiteTrials) -> str:
    """The suite runs on torch and ONNX Runtime in workers as in a run, and its outputs pass their audits."""
    named = [trials.plugin.spec] if trials.plugin.origin == "command line" else []
    suites = setup.load_suites(trials.config, "smoke", specs=named)
    only = replace(suites, workloads=[each for each in suites.workloads if each.name == trials.plugin.name])
    checks = (supported, adapter.claims_run, adapter.yields_fit_the_table, adapter.outputs_pass_their_gates)
    ran, unknown = [], []
    for name in ADAPTERS:
        with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
            plugin = registry.find("adapters")[name]
            runs = AdapterTrials(plugin, trials.config, only, Path(folder) / "kit", TIMEOUT_S, CPU.id)
            for check in checks:
                try:
                    check(runs)
                except CheckFailed as failed:
                    raise CheckFailed(f"{name}: {failed}") from failed
                except NotChecked as reason:
                    unknown.append(f"{name}: {reason}")
                    break
            else:
                ran.append(name)
    if not ran:
        raise NotChecked("; ".join(unknown))
    return "; ".join((f"by {' and '.join(ran)}", *unknown))


def supported(trials: AdapterTrials) -> str:
    """Raises NotChecked if the adapter supports the suite in no precision."""
    errors = [record.error for record in trials.claimed]
    if errors and all(error and error.kind == "unsupported" for error in errors):
        raise NotChecked(str(errors[0] and errors[0].message))
    return "supported"


CHECKS: tuple[Check[SuiteTrials], ...] = (
    tiers_and_options_are_refused,
    feeds_are_repeatable,
    feeds_are_independent,
    units_are_counted,
    the_reference_has_no_error,
    wrong_outputs_are_refused,
    gates_allow_honest_rounding,
    gates_catch_fewer_bits,
    gates_catch_garbage,
    flops_are_counted,
    bytes_hold_the_weights,
    runs_are_audited,
)
"""Every check, in the order of the report."""


def report(suite: str, config: Path | None, on_check: Callable[[str], None]) -> Report:
    """See `kit.check_suite`."""
    plugin, configured = chosen("suites", suite), configuration.load(config)
    with ExitStack() as stack:
        trials = SuiteTrials(plugin, configured, stack)
        return checked(plugin, sys.executable, (), CHECKS, trials, on_check, runs_here=True)


def _yields(runner: Runner, feed: Feed) -> tuple[Array, ...]:
    return tuple(load_generator.host_array(out) for out in runner(feed))


def _bytes(feed: Feed) -> bytes:
    return b"".join(array.tobytes() for array in feed.values())


def _samples(feed: Feed, batch: int) -> Iterable[Array]:
    """The samples of a feed's largest array, if its first axis is that of the samples."""
    largest = max(feed.values(), key=lambda array: array.nbytes)
    return largest if batch > 1 and len(largest) == batch else ()
