"""Computes each record's unit, cost model and gate from the installed suites, instead of trusting the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import BUILT_IN, Record, Result, Route
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.references import ReferenceScore
from mixmark.harness.judge.rules.consistency import SuiteClaim, SuiteClaims, contradictions
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.manifest import MODELS
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.messages import SuiteChoice
from mixmark.harness.worker.plugin_process import SuiteModel, suite_of

MAX_REASON = 200  # characters of what a suite's code raised


def models() -> dict[str, Plugin]:
    """The suites that only a section of the configuration makes, by the name that the section gives as `plugin`."""
    return {name: Plugin("suites", name, spec, BUILT_IN) for name, spec in MODELS.items()}


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
    plugins = registry.find("suites") | models()
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
    plugin = plugins.get(route.suite_options.get("plugin", route.suite))
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
            name=route.suite, spec=plugin.spec, tier=route.tier, options=options, weight_class=route.weight_class
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


def _not_built(route: Route, error: Exception) -> str:
    return f"the suite {route.suite} does not build: {plain(f'{type(error).__name__}: {error}', MAX_REASON)}"
