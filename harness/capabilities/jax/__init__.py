"""jax: runs graphs on every device that has a PJRT plug-in, by operators of ONNX in jax.numpy (`operators.py`).

It ran on the CPU and, for four minutes, on an NVIDIA H100. docs/capabilities/jax.md lists the plug-ins.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

from mixmark.harness.adapters.devices import cores, cpu, multiplies_bf16, threads_option
from mixmark.harness.capabilities.jax import devices
from mixmark.harness.contracts.errors import PluginError, Unsupported, UsageError, refuse_options
from mixmark.harness.contracts.protocols import GraphRunner, Runner, Suite, Use
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Device
from mixmark.harness.plugins import install

MOST_VIRTUAL = 64
IN_FLIGHT = 2
"""Feeds in flight on an accelerator in all scenarios but single-stream: one is copied while the other runs."""


class Jax:
    """Graphs by jax.

    options: `threads`, the size of the CPU's thread pool; by default one thread a core. `cpu`: `yes` for the CPU; a
    number for so many virtual devices on it, which are simulated.
    """

    name = "jax"

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_options("adapter jax", options, ["threads", "cpu"])
        self._threads = threads_option("jax", {k: v for k, v in options.items() if k == "threads"}) or cores()
        given = options.get("cpu", "no")
        self._on_cpu, self._virtual = given == "yes", int(given) if given.isdecimal() else 0
        if given not in ("yes", "no") and not 1 <= self._virtual <= MOST_VIRTUAL:
            raise UsageError(f"adapter jax: cpu is {given!r}", f"give yes, no or a number from 1 to {MOST_VIRTUAL}")

    def discover(self) -> Iterable[Device]:
        _require()
        found = [cpu(("bf16", "fp32") if multiplies_bf16() else ("fp32",))] if self._on_cpu else []
        found += [*devices.virtual(self._virtual), *(devices.accelerators() if devices.has_plugin() else ())]
        if not found:
            raise PluginError("jax finds no accelerator", 'cpu = "yes" takes the processor')
        return found

    def disclose(self) -> Mapping[str, str]:
        """The versions of jaxlib and of the plug-ins."""
        plugins = {each.dist.name for each in importlib.metadata.entry_points(group="jax_plugins") if each.dist}
        return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", *sorted(plugins))}

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        _require()
        if precision not in (offered := device.offers(suite.name)):
            raise Unsupported(f"jax computes {suite.name} on {device.id} in {', '.join(offered)} only")
        from mixmark.harness.capabilities.jax.session import JaxSession, compilations_kept

        on_host = device.id == HOST_PROCESSOR or device.kind == "simulated"
        place = devices.claim(device, self._threads, self._virtual, on_host)
        facts = {"jax": importlib.metadata.version("jax"), "device": place.device_kind, "dtype": precision}
        facts |= {"threads": str(self._threads)} if on_host else {}
        several = use.in_flight is None and suite.scenarios[0] == "offline" and not on_host
        with compilations_kept(place, on_host), closing(JaxSession(suite, place, precision, facts)) as session:
            yield GraphRunner(suite, session, concurrency=IN_FLIGHT if several else 1, facts=facts)


def _require() -> None:
    """Raises PluginError if a package is absent."""
    for package in ("jax", "onnx"):
        if importlib.util.find_spec(package) is None:
            raise PluginError(f"{package} is not installed", install.command("jax"))
