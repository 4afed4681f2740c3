"""The adapters, suites and devices with which the phases of a run are measured."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import Device, Route, Share
from mixmark.harness.discover.config import Config
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import messages
from mixmark.harness.worker.handle import Worker


@dataclass(frozen=True)
class Equipment:
    """The adapters, suites and devices with which the phases of a run are measured."""

    adapters: Mapping[str, Plugin]
    suites: Mapping[str, Plugin]
    suite_options: Mapping[str, Mapping[str, str]]
    """The options that each suite is built with. They include a checkpoint's path, which no record discloses."""
    units: Mapping[str, str]
    """The name of each suite's unit."""
    devices: Mapping[tuple[str, str], Device]
    """A device as an adapter sees it, by (device id, adapter)."""
    config: Config
    seed: int | None
    """The seed from which all others follow; None: each seed is drawn when it is needed."""
    timeout_s: float
    """How long a worker may be silent beyond what a share's limits allow, before it counts as hung."""

    def choice(self, route: Route) -> messages.SuiteChoice:
        """A route's suite, as a worker builds it."""
        options = {**self.suite_options.get(route.suite, {}), **route.suite_options}
        return messages.SuiteChoice(
            name=route.suite, spec=self.suites[route.suite].spec, tier=route.tier, options=options
        )

    def suite(self, route: Route) -> Suite:
        """A suite built in this process, out of reach of the adapters."""
        return cast(Suite, registry.build_suite(**dict(self.choice(route))))

    def drawn(self, share: Share, use: str) -> int:
        """A seed that is unknown before this call, unless the run has a seed. It differs between shares and between
        uses, so that outputs which an engine cached are never requested again."""
        return secrets.randbits(63) if self.seed is None else seeds.derived(self.seed, use, share.key)

    def worker(self, route: Route, scratch: Path, log: Path) -> Worker:
        """A fresh process for the route, pinned to its cores if the device is a slice. Raises WorkerFailed."""
        chosen, device = self.config.adapter(route.adapter), self.devices[route.device, route.adapter]
        return Worker(self.adapters[route.adapter], chosen.options, scratch, log, chosen.python, device.cores)
