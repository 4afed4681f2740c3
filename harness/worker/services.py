"""What a worker holds if its plugin is no adapter: a meter, a watcher or a suite.

Each class serves the calls of its kind by the plugin's own methods. `plugin_process` is the parent's side.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from mixmark.harness.contracts.errors import PluginError
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import Cost, Gate, LatencyLimits, Precision
from mixmark.harness.contracts.weights import checked
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import messages
from mixmark.harness.worker.messages import SuiteCalls, SuiteChoice


def plugin_of(setup: messages.Setup) -> Plugin:
    """The plugin to load. Raises PluginError if this interpreter has no plugin of that name."""
    if setup.spec:
        return Plugin(setup.kind, setup.name, setup.spec, "")
    found = registry.find(setup.kind)
    if setup.name not in found:
        kind = registry.singular(setup.kind)
        raise PluginError(
            f"the interpreter {sys.executable} has no {kind} {setup.name}, it has {', '.join(found)}",
            hint=f"install the {kind}'s package there, with an entry point of the group mixmark.{setup.kind}",
        )
    return found[setup.name]


class PluginService:
    """A meter, a watcher or another simple plugin. Its calls are the methods of its protocol, and `load`."""

    def __init__(self, setup: messages.Setup, parent: object) -> None:
        self._class = plugin_of(setup).load()
        self._options = (setup.options,) if setup.kind == "meters" else ()
        self._built: list[Any] = []

    def load(self) -> bool:
        if not self._options:
            self._plugin()
        return bool(getattr(self._class, "needs_section", False))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            value = getattr(self._plugin(), name)(*arguments.values())
            return tuple(value) if isinstance(value, Iterator) else value  # its errors are the plugin's own

        return call

    def _plugin(self) -> Any:
        if not self._built:
            self._built.append(self._class(*self._options))
        return self._built[0]


class SuiteService(SuiteCalls):
    """A suite, built once for each tier and each set of options."""

    def __init__(self, setup: messages.Setup, parent: object) -> None:
        self._class = plugin_of(setup).load()
        self._built: dict[str, Suite] = {}

    def _of(self, choice: SuiteChoice) -> Suite:
        key = choice.model_dump_json()
        if key not in self._built:
            self._built[key] = registry.build_suite(**dict(choice))
        return self._built[key]

    def describe(self) -> messages.SuiteDescription:
        return described(self._class)

    def build(self, *, suite: SuiteChoice) -> LatencyLimits | None:
        return self._of(suite).latency

    def units(self, *, suite: SuiteChoice, batch: int) -> int:
        return int(self._of(suite).units(batch))

    def costs(self, *, suite: SuiteChoice, precision: Precision, batch: int) -> tuple[Cost, ...]:
        return tuple(self._of(suite).costs(precision, batch))

    def gate(self, *, suite: SuiteChoice, precision: Precision) -> Gate | None:
        return self._of(suite).gate(precision)

    def check_weights(self, *, suite: SuiteChoice) -> tuple[str, tuple[str, ...]]:
        weights = self._of(suite).weights()
        return checked(weights, suite.options["weights"]), tuple(getattr(weights, "unused", ()))


def described(suite: Any) -> messages.SuiteDescription:
    """The facts of a suite's class."""
    documented = (suite.__doc__ or "").strip().splitlines()
    return messages.SuiteDescription(
        version=suite.version,
        unit=suite.unit,
        unit_names=suite.unit_names,
        scenarios=tuple(suite.scenarios),
        continues=getattr(suite, "continues", ""),
        summary=documented[0] if documented else "",
    )
