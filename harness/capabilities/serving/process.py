"""The process of a policy: the class that serves its calls, and the parent's side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mixmark.harness.capabilities.serving.contract import DeviceLoad, Policy, Request
from mixmark.harness.capabilities.serving.policies import Seconds
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.plugins.registry import Plugin, PluginKind
from mixmark.harness.worker.messages import Setup
from mixmark.harness.worker.plugin_process import LOADING_S, PluginProcess
from mixmark.harness.worker.services import plugin_of

CHOOSING_S = 5.0  # a decision of a policy takes well below a millisecond


class PolicyService:
    """A policy, and the requests that wait. Its methods are the calls."""

    policy: Policy

    def __init__(self, setup: Setup, parent: object) -> None:
        self._class = plugin_of(setup).load()

    def load(self) -> None:
        """The class is loaded by now."""

    def construct(self, *, seconds: dict[str, dict[str, float]], plan: dict[str, dict[str, float]]) -> None:
        """Constructs the policy of a phase."""
        self.policy = self._class(seconds, plan)
        self._waiting: dict[int, Request] = {}

    def choose(
        self, *, arrived: tuple[Request, ...], gone: tuple[int, ...], devices: tuple[DeviceLoad, ...], now_ns: int
    ) -> tuple[int, str] | None:
        """The number of a waiting request and a device. arrived, gone: the requests that wait since the last call, and
        the numbers of those that no longer wait."""
        for number in gone:
            del self._waiting[number]
        for request in arrived:
            self._waiting[request.number] = request
        waiting = tuple(self._waiting[number] for number in sorted(self._waiting))
        choice: object = self.policy.choose(waiting, devices, now_ns)
        match choice:
            case None:
                return None
            case (Request() as request, device):
                return request.number, str(device)
        raise MixmarkError(f"it chose {choice!r:.80}, and not a request and a device")


class PolicyProcess(PluginProcess):
    """A policy, as `contract.Policy` describes it. To call it constructs the policy. Raises PluginError."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin)
        self.load(PolicyService.load)

    def __call__(self, seconds: Seconds, plan: Seconds) -> PolicyProcess:
        tables = ({suite: dict(row) for suite, row in table.items()} for table in (seconds, plan))
        self.call(PolicyService.construct, LOADING_S, seconds=next(tables), plan=next(tables))
        self._waiting: Mapping[int, Request] = {}
        """The requests that wait as far as the process knows, by number."""
        return self

    def choose(
        self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int
    ) -> tuple[Request, str] | None:
        known, self._waiting = self._waiting, {request.number: request for request in waiting}
        arrived = tuple(request for number, request in self._waiting.items() if number not in known)
        gone = tuple(number for number in known if number not in self._waiting)
        choice = self.call(
            PolicyService.choose, CHOOSING_S, arrived=arrived, gone=gone, devices=tuple(devices), now_ns=now_ns
        )
        if choice is None:
            return None
        number, device = choice
        if number not in self._waiting:
            raise MixmarkError(f"it chose request {number}, which does not wait")
        return self._waiting[number], device


def policy_of(plugin: Plugin) -> Callable[[Seconds, Seconds], Policy]:
    """Constructs the policy. Raises PluginError."""
    made: Callable[[Seconds, Seconds], Policy] = plugin.load() if plugin.built_in else PolicyProcess(plugin)
    return made


KIND = PluginKind(("choose",), (PolicyService, PolicyService))
