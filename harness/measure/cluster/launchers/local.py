"""Several agents on this machine, each in a session of its own: to try a run of several hosts out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mixmark.harness.measure.cluster.launchers import Host, Started
from mixmark.harness.measure.cluster.launchers.process import Processes, command, greeted


class Local:
    """Starts each agent with this interpreter, where the host names no other."""

    def __init__(self) -> None:
        self._processes = Processes()

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.end()

    def start(self, hosts: Sequence[Host], secret: bytes, logs: Path) -> Mapping[str, Started | str]:
        found = {host.name: self._processes.start(host, command(host, sys.executable), logs) for host in hosts}
        return greeted(found, secret)
