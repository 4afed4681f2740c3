"""What the phases of a run are measured with."""

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
    """What the phases of a run are measured with."""

    adapters: Mapping[str, Plugin]
    suites: Mapping[str, Plugin]
    suite_options: Mapping[str, Mapping[str, str]]
    """What each suite is built with, a checkpoint's path included, which no record discloses."""
    units: Mapping[str, str]
    """The name of each suite's unit."""
    devices: Mapping[tuple[str, str], Device]
    """A device as an adapter sees it, by (device id, adapter)."""
    config: Config
    seed: int | None
    """The seed that was given, from which all others follow; None: each is drawn when it is needed."""
    timeout_s: float
    """How long a worker may be silent beyond what a share's limits allow, before it counts as hung."""

    def choice(self, route: Route) -> messages.SuiteChoice:
        """A route's suite, as a worker builds it."""
        options = {**self.suite_options.get(route.suite, {}), **route.suite_options}
        return messages.SuiteChoice(
            name=route.suite, spec=self.suites[route.suite].spec, tier=route.tier, options=options
        )

    def suite(self, route: Route) -> Suite:
        """A suite built in this process, which no adapter gets into its hands."""
        return cast(Suite, registry.build_suite(**dict(self.choice(route))))

    def drawn(self, share: Share, use: str) -> int:
        """A seed that nobody knew before this call, unless a seed was given. No two shares and no two uses have the
        same one, so that answers which an engine kept are asked for by none."""
        return secrets.randbits(63) if self.seed is None else seeds.derived(self.seed, use, share.key)

    def worker(self, route: Route, scratch: Path, log: Path) -> Worker:
        """A fresh process for the route's way onto its device, pinned where that is a slice. Raises WorkerFailed."""
        chosen, device = self.config.adapter(route.adapter), self.devices[route.device, route.adapter]
        return Worker(self.adapters[route.adapter], chosen.options, scratch, log, chosen.python, device.cores)
