"""Plugins that replace the auditor's comparison in the process that imports them. Each reports its process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mixmark import Absent, AcceleratorState, Check, Device, Domain, Sample
from mixmark.harness.measure.audit import Auditor
from mixmark.harness.worker.messages import OutputsCompared
from tests.fakes.null import Null

PID = str(os.getpid())


def agrees(auditor: Any, reference: Any, record: Any, *_: object) -> OutputsCompared:
    """Says that garbage agrees."""
    feeds = record.audit.feeds
    return OutputsCompared(feeds=feeds, values=(0.0,) * len(feeds), problem="", software={})


_patched: Any = Auditor  # typed away: the types forbid it
_patched._compared = agrees


class Meter:
    name = "meter"

    def __init__(self, options: Mapping[str, str]) -> None:
        pass

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain | Absent]:
        yield Absent(kind="meter", name="meter", reason=PID)

    def read(self, domain: Domain) -> Sequence[Sample]:
        return ()


class Watcher:
    name = "watcher"

    def disclose(self) -> Iterable[Mapping[str, str]]:
        return [{"id": PID}]

    def read(self) -> Iterable[AcceleratorState]:
        return [AcceleratorState(PID, pids=[])]

    def checks(self) -> Iterable[Check]:
        return []

    def close(self) -> None:
        pass


class Suite(Null):
    version = PID
