"""Serves a phase by a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from mixmark.harness.capabilities.serving.contract import Policy
from mixmark.harness.capabilities.serving.process import PolicyProcess, policy_of
from mixmark.harness.capabilities.serving.request_queue import RequestQueue, Table
from mixmark.harness.contracts.schema import Int64s
from mixmark.harness.measure.dispatch import Source
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Attendant
from mixmark.harness.plan.placement import Planner
from mixmark.harness.plugins.registry import Plugin


class OfPolicy(Attendant):
    """Keeps the process of a policy while a phase is measured."""

    def __init__(self, policy: Callable[[Table, Table], Policy]) -> None:
        self.policy = policy

    def ready(self, stack: ExitStack, pids: list[int]) -> None:
        if isinstance(self.policy, PolicyProcess):
            stack.callback(self.policy.end)
            pids.append(self.policy.pid)


class ServedByPolicy(OfPolicy):
    """Lets a policy assign the requests of a phase of the mix."""

    def __init__(
        self,
        plugin: Plugin,
        request: PhaseRequest,
        due_ns: Mapping[str, Int64s] | None = None,
        units: Mapping[str, int] | None = None,
    ) -> None:
        """due_ns, units: see `RequestQueue`. Raises PluginError."""
        assert request.mix is not None  # its requests are of the mix
        super().__init__(policy_of(plugin))
        self._limits = request.mix.limits
        self._due_ns, self._units = due_ns, units

    def source(self, plan: Planner) -> Source:
        return partial(RequestQueue, policy=self.policy, limits=self._limits, due_ns=self._due_ns, units=self._units)
