"""A meter in an interpreter of its own: a process there reads it, and a thread of this process requests each reading.

The timestamps before and after a read are taken in this process, as for every meter, so they include the round trip of
less than a millisecond. A timestamp of the source itself is on the same CLOCK_MONOTONIC.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.calls import P, T
from mixmark.harness.worker.failures import Misused, WorkerFailed
from mixmark.harness.worker.handle import Worker, why
from mixmark.harness.worker.messages import MeterCalls


class MeterProcess:
    """A meter, as `protocols.Meter` describes it. `close` ends its process, as does an error of `domains`.

    asking_s, patience_s: the longest times of `domains` and of `read`; then its process is ended.
    Raises MixmarkError if the process cannot be started or used.
    """

    def __init__(self, name: str, options: Mapping[str, str], python: str, asking_s: float, patience_s: float) -> None:
        self.name = name
        self.cpu_ns = 0
        """The CPU time of its reads so far."""
        self._asking_s, self._patience_s = asking_s, patience_s
        self._folder = tempfile.TemporaryDirectory(prefix="mixmark-")
        scratch = Path(self._folder.name)
        try:
            self._worker = Worker(
                Plugin("meters", name, "", python), options, scratch, scratch / f"meter.{name}.log", python
            )
        except WorkerFailed as failed:
            self._folder.cleanup()
            raise MixmarkError(failed.failure.message, failed.failure.hint) from failed

    @property
    def pid(self) -> int:
        return self._worker.pid

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain | Absent]:
        try:
            covered = self._call(MeterCalls.cover, self._asking_s, devices=tuple(devices))
        except MixmarkError:
            self.close()
            raise
        return (*covered.domains, *covered.absent)

    def read(self, domain: Domain) -> Sequence[Sample]:
        readings = self._call(MeterCalls.read, self._patience_s, domain=domain)
        self.cpu_ns = readings.cpu_ns
        return [Sample(value, at_ns) for value, at_ns in readings.samples]

    def close(self) -> None:
        self._worker.__exit__()
        self._folder.cleanup()

    def _call(
        self, method: Callable[Concatenate[Any, P], T], timeout_s: float, *args: P.args, **arguments: P.kwargs
    ) -> T:
        try:
            return self._worker.call(method, timeout_s)(*args, **arguments)
        except Misused as misused:
            raise UsageError(misused.failure.message, misused.failure.hint) from misused
        except WorkerFailed as failed:
            raise MixmarkError(why(failed.failure, self._worker.log)) from failed
