"""What the installed suites say: each record's unit, cost model and gate, so that a result folder need not be trusted;
and the work of a suite, for the planner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mixmark.harness.contracts.errors import ResultError, Unsupported
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Record, Result, Route, Tier, WeightClass, weight_class
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.references import ReferenceScore
from mixmark.harness.judge.rules.consistency import SuiteClaim, SuiteClaims, contradictions
from mixmark.harness.plan.assumed import Batch, Workload
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.messages import SuiteChoice
from mixmark.harness.worker.plugin_process import SuiteModel, suite_of

SIZES = tuple(2**power for power in range(13))
"""The batch sizes of a suite's workload."""
MAX_REASON = 200  # characters of what a suite's code raised


def judge_stored(result: Result, against: Sequence[ReferenceScore] = ()) -> Assessment:
    """The assessment of a result that is stored in a folder. It is invalid if the facts contradict each other or the
    installed suites."""
    return judge(result, against, claims(result))


def refuse_contradictions(result: Result) -> None:
    """Raises ResultError if a result that was read from a folder contradicts itself or the installed suites."""
    if problem := next(contradictions(result, claims(result)), None):
        hint = "it was edited or damaged; copy the result folder again, or run again"
        raise ResultError(f"the result contradicts itself: {problem}", hint)


def claims(result: Result) -> SuiteClaims:
    """The claim of each record's suite. There is none if the suite is not installed, has another version, or does not
    build."""
    plugins = registry.find("suites")
    suites: dict[str, SuiteModel | str] = {}
    known: dict[str, SuiteClaim] = {}
    unknown: dict[str, str] = {}
    for record in result.records:
        route = record.route
        built = repr(
            (route.suite, route.suite_version, route.tier, route.weight_class, route.weights, route.suite_options)
        )
        if built not in suites:
            suites[built] = _suite(route, plugins)
        suite = suites[built]
        claim = suite if isinstance(suite, str) else _claim(record, suite)
        if isinstance(claim, str):
            unknown[record.key] = claim
        else:
            known[record.key] = claim
    return SuiteClaims(known, unknown)


def _suite(route: Route, plugins: Mapping[str, Plugin]) -> SuiteModel | str:
    """The suite as the route says it was built, or why there is none. A result holds only the name of a checkpoint, so
    no file is read."""
    plugin = plugins.get(route.suite)
    if plugin is None:
        return f"the suite {plain(route.suite, MAX_REASON)} is not installed"
    own_weights = route.hosted or route.weights == "synthetic"
    options = dict(route.suite_options) | ({} if own_weights else {"weights": route.weights})
    try:
        source = suite_of(plugin)
        installed = source.describe().version
        if installed != route.suite_version:
            ran = plain(route.suite_version, MAX_REASON)
            return f"it ran version {ran} of {route.suite}, and version {installed} is installed"
        choice = SuiteChoice(
            name=route.suite,
            spec=plugin.spec,
            tier=route.tier,
            options=options,
            weight_class=route.weight_class,
        )
        return source.build(choice)
    except Exception as error:  # a plugin may raise anything
        return _not_built(route, error)


def _claim(record: Record, suite: SuiteModel) -> SuiteClaim | str:
    route, batch = record.route, record.batch
    try:
        return SuiteClaim(
            unit=suite.unit,
            feed_units=None if batch is None else suite.units(batch),
            costs=() if batch is None or route.hosted else tuple(suite.costs(route.precision, batch)),
            gate=None if route.hosted else suite.gate(route.precision),
            latency_limits=suite.latency,
        )
    except Exception as error:  # as above
        return _not_built(route, error)


def workload(suite: str, tier: Tier, bits: int) -> Workload | Reason:
    """A suite's work in each precision of at least `bits` bits and each batch size, or why it is unknown."""
    batches: list[Batch] = []
    memory_bytes: dict[str, int] = {}
    for precision, width in BITS_PER_WEIGHT.items():
        if (own := weight_class(precision)) < bits:
            continue
        try:
            built = _built_in(suite, tier, own)
        except Unsupported:  # it has no weights of this class
            continue
        if built is None:
            return "its cost model is not of Mixmark: give its rate"
        weights = built.weights()
        values = sum(math.prod(map(int, weights.spec(name).shape)) for name in weights.names())
        memory_bytes[precision] = values * width // 8
        for size in SIZES if "offline" in built.scenarios else (1,):
            batches.append(Batch(precision, built.units(size), tuple(built.costs(precision, size))))
    return Workload(batches, memory_bytes)


def answer_units(suite: str, tier: Tier) -> int:
    """The units of one feed with one sample: the tokens of an answer. 1 if it is unknown."""
    built = _built_in(suite, tier, 16)
    return 1 if built is None else built.units(1)


def _built_in(suite: str, tier: Tier, own: WeightClass) -> Suite | None:
    """A suite of Mixmark: no other package's code runs for a plan."""
    plugin = registry.find("suites").get(suite)
    return registry.load_suite(suite, tier, weight_class=own) if plugin and plugin.built_in else None


def _not_built(route: Route, error: Exception) -> str:
    return f"the suite {route.suite} does not build: {plain(f'{type(error).__name__}: {error}', MAX_REASON)}"
