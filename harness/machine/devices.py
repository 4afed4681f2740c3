"""Finds the devices of this machine: each adapter lists the devices that it reaches, in a worker of its own."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import HOST_PROCESSOR, Absent, Device, Environment
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.machine.config import Config
from mixmark.harness.plan.phases import Target
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.calls import MAX_REASON
from mixmark.harness.plugins.registry import Identity, Plugin
from mixmark.harness.resources import memory, processor
from mixmark.harness.resources.files import MAX_TEXT
from mixmark.harness.worker import messages
from mixmark.harness.worker.failures import Misused, WorkerFailed
from mixmark.harness.worker.handle import Worker, why

TIMEOUT_S = 120.0  # a cold import of a vendor's framework from a slow disk


@dataclass(frozen=True)
class Found:
    """The devices of a machine, as the adapters reach them."""

    targets: tuple[Target, ...]
    absent: tuple[Absent, ...]
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """The software that each adapter runs in, by its name; an adapter that could not be asked is left out."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every device once, with the precisions of all its targets."""
        merged: dict[str, Device] = {}
        for target in self.targets:
            seen = merged.setdefault(target.device.id, target.device)
            merged[seen.id] = _merged(seen, target.device)
        return tuple(merged.values())


def discover(adapters: Mapping[str, Plugin], config: Config) -> Found:
    """Asks all adapters at once. One that breaks, hangs or finds nothing is in `absent` with its reason.

    Raises UsageError if an adapter refuses its options: without it, the run would measure something
    else than requested.
    """
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder, ThreadPoolExecutor(len(adapters) or 1) as pool:
        replies = list(pool.map(lambda adapter: _ask(adapter, config, Path(folder)), adapters.values()))
    targets: list[Target] = []
    absent: list[Absent] = []
    environments: dict[str, Environment] = {}
    for adapter, reply in zip(adapters.values(), replies, strict=True):
        if isinstance(reply, str):
            absent.append(Absent(kind="adapter", name=adapter.name, reason=reply))
            continue
        environments[adapter.name], reached = reply
        if not reached:
            absent.append(Absent(kind="adapter", name=adapter.name, reason="it finds no device here"))
        for device in reached:
            target = Target(device, adapter.name, config.adapter(adapter.name).options)
            if problem := unusable(target, [known for known in targets if known.device.id == device.id]):
                absent.append(Absent(kind="device", name=f"{device.id} by {adapter.name}", reason=problem))
            else:
                targets.append(target)
    return Found(tuple(targets), tuple(absent), environments)


def _ask(adapter: Plugin, config: Config, folder: Path) -> tuple[Environment, Sequence[Device]] | Reason:
    """The environment of the adapter and its devices, or the reason why there are none. Raises UsageError as `discover`
    does."""
    chosen = config.adapter(adapter.name)
    log = folder / f"{adapter.name}.log"
    identity = registry.identity(adapter, chosen.python)  # before its code runs
    try:
        with Worker(adapter, chosen.options, folder, log, chosen.python) as worker:
            reply = worker.call(messages.AdapterCalls.discover, TIMEOUT_S)()
            assert worker.hello is not None  # the reply comes after the hello
            return environment(identity, worker.hello, reply.vendor), [_named(device) for device in reply.devices]
    except Misused as misused:
        words = f"[adapter.{adapter.name}] in the configuration: {misused.failure.message}"
        raise UsageError(plain(words, MAX_REASON), plain(misused.failure.hint, MAX_REASON)) from misused
    except WorkerFailed as failed:
        return why(failed.failure, log)


def unusable(target: Target, earlier: Sequence[Target]) -> Reason | None:
    """The reason why a target cannot be measured. earlier: the targets on the same device that were listed before."""
    device = target.device
    if not device.precisions and not any(device.precisions_by_suite.values()):
        return "it offers no precision"
    if device.id == HOST_PROCESSOR and not device.on_host:
        return f"{HOST_PROCESSOR} is the host's processor, and not {_described(device)}"
    for known in earlier:
        if known.adapter == target.adapter:
            return "the adapter lists it twice"
        first, second = _described(known.device), _described(device)
        if first != second:
            return f"{known.adapter} says that it is {first}, and {target.adapter} that it is {second}"
    return None


def _described(device: Device) -> str:
    return f"of kind {device.kind} with the memory pool {device.memory_pool}"


def environment(identity: Identity, hello: messages.Hello, vendor: Mapping[str, str]) -> Environment:
    """The worker's software, cleaned. A folder in the spec may name a user, so only the file is kept."""
    return Environment(
        origin=plain(identity.origin, MAX_TEXT),
        spec=plain(re.split(r"[/\\]", identity.spec)[-1], MAX_TEXT),
        source=plain(identity.source, MAX_TEXT),
        sha256=identity.sha256,
        python=plain(hello.python, MAX_TEXT),
        mixmark=hello.mixmark,
        packages={plain(name, MAX_TEXT): plain(version, MAX_TEXT) for name, version in hello.packages.items()},
        vendor={plain(name, MAX_TEXT): plain(version, MAX_TEXT) for name, version in vendor.items()},
    )


def _merged(first: Device, second: Device) -> Device:
    """The same device with the precisions of both."""
    suites = (*first.precisions_by_suite, *second.precisions_by_suite)
    update = {
        "precisions": tuple(dict.fromkeys((*first.precisions, *second.precisions))),
        "precisions_by_suite": {
            suite: tuple(dict.fromkeys((*first.offers(suite), *second.offers(suite)))) for suite in suites
        },
    }
    return first.model_copy(update=update)


def _named(device: Device) -> Device:
    """The device with its name and memory, which the harness knows of the host's own processor."""
    if not device.on_host:
        return device
    return device.model_copy(
        update={"name": device.name or processor.name() or "", "memory_bytes": memory.total_bytes()}
    )
