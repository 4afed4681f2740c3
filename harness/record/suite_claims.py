"""What the suites' own code says of the records of a result, so that a folder need not be believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import Record, Result, Route
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.rules.consistency import Promise
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin

MAX_REASON = 200  # characters of what a suite's code raised


def promises(result: Result) -> tuple[Mapping[str, Promise], Mapping[str, str]]:
    """Returns what the suite of each record says of it, and for the other records why that is not known: their suite is
    not installed, has another version, or does not build. Both are by the record's key."""
    found = registry.find("suites")
    suites: dict[str, Suite | str] = {}
    promised, unknown = {}, {}
    for record in result.records:
        route = record.route
        if (
            named := repr((route.suite, route.suite_version, route.tier, route.weights, route.suite_options))
        ) not in suites:
            suites[named] = _suite(route, found)
        told = suites[named]
        promise = told if isinstance(told, str) else _promise(record, told)
        if isinstance(promise, str):
            unknown[record.key] = promise
        else:
            promised[record.key] = promise
    return promised, unknown


def _suite(route: Route, found: Mapping[str, Plugin]) -> Suite | str:
    """The suite as the route says it was built, or why there is none. A result tells only the name of a checkpoint, and
    nothing of it is read."""
    plugin = found.get(route.suite)
    if plugin is None:
        return f"the suite {plain(route.suite, MAX_REASON)} is not installed"
    plain_weights = route.hosted or route.weights == "synthetic"
    options = dict(route.suite_options) | ({} if plain_weights else {"weights": route.weights})
    try:
        loaded = plugin.load()
        if loaded.version != route.suite_version:
            ran = plain(route.suite_version, MAX_REASON)
            return f"it ran version {ran} of {route.suite}, and version {loaded.version} is installed"
        return cast(Suite, loaded(route.tier, options))
    except Exception as error:  # whatever a plugin raises
        return _told(route, error)


def _promise(record: Record, suite: Suite) -> Promise | str:
    route, batch = record.route, record.batch
    try:
        return Promise(
            unit=suite.unit,
            feed_units=None if batch is None else suite.units(batch),
            costs=() if batch is None or route.hosted else tuple(suite.costs(route.precision, batch)),
            gate=None if route.hosted else suite.gate(route.precision),
            latency_limits=suite.latency,
        )
    except Exception as error:  # as above
        return _told(route, error)


def _told(route: Route, error: Exception) -> str:
    return f"the suite {route.suite} does not build: {plain(f'{type(error).__name__}: {error}', MAX_REASON)}"
