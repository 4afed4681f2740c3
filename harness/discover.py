"""What silicon is here, and by which adapters it is reached. Each adapter is asked in a worker of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness import wire
from harness.config import Config
from harness.failures import WorkerFailed
from harness.plan import Way
from harness.plugins import Plugin
from harness.schema import Absent, Device
from harness.watch import memory, processor
from harness.worker import Worker

TIMEOUT_S = 120.0  # a cold import of a vendor's framework from a slow disk


@dataclass(frozen=True)
class Found:
    ways: tuple[Way, ...]
    absent: tuple[Absent, ...]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each piece of silicon once, with the precisions of all ways onto it."""
        merged: dict[str, Device] = {}
        for way in self.ways:
            seen = merged.setdefault(way.device.id, way.device)
            merged[seen.id] = _merged(seen, way.device)
        return tuple(merged.values())


def discover(adapters: Mapping[str, Plugin], config: Config) -> Found:
    """Asks all adapters at once. One that breaks, hangs or finds nothing is in `absent` with its reason."""
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder, ThreadPoolExecutor(len(adapters) or 1) as pool:
        answers = list(pool.map(lambda adapter: _ask(adapter, config, Path(folder)), adapters.values()))
    ways: list[Way] = []
    absent: list[Absent] = []
    for adapter, answer in zip(adapters.values(), answers, strict=True):
        if isinstance(answer, str):
            absent.append(Absent(kind="adapter", name=adapter.name, reason=answer))
            continue
        if not answer:
            absent.append(Absent(kind="adapter", name=adapter.name, reason="it finds no device here"))
        for device in answer:
            if device.precisions or any(device.precisions_by_suite.values()):
                ways.append(Way(device, adapter.name, config.adapter(adapter.name).options))
            else:
                absent.append(
                    Absent(kind="device", name=f"{device.id} by {adapter.name}", reason="it offers no precision")
                )
    return Found(tuple(ways), tuple(absent))


def _ask(adapter: Plugin, config: Config, folder: Path) -> Sequence[Device] | str:
    chosen = config.adapter(adapter.name)
    log = folder / f"{adapter.name}.log"
    try:
        with Worker(adapter, chosen.options, folder, log, chosen.python) as worker:
            answer = worker.call(wire.Discover(), TIMEOUT_S)
    except WorkerFailed as failed:
        return f"{failed.failure.message}; {failed.failure.hint}".removesuffix("; ")
    return [_named(device) for device in answer.devices]


def _merged(one: Device, other: Device) -> Device:
    """The same device with what either route offers."""
    suites = (*one.precisions_by_suite, *other.precisions_by_suite)
    update = {
        "precisions": tuple(dict.fromkeys((*one.precisions, *other.precisions))),
        "precisions_by_suite": {
            each: tuple(dict.fromkeys((*one.offers(each), *other.offers(each)))) for each in suites
        },
    }
    return one.model_copy(update=update)


def _named(device: Device) -> Device:
    """The device with its name and memory, which the harness knows of the host's own processor."""
    if not device.on_host:
        return device
    return device.model_copy(
        update={"name": device.name or processor.name() or "CPU", "memory_bytes": memory.total_bytes()}
    )
