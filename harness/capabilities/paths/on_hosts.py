"""Paths of a run over several hosts: each host measures its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.capabilities.paths.facts import PathRecord
from mixmark.harness.capabilities.paths.measuring import measure, name_of
from mixmark.harness.contracts.device_ids import host_of, on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent, Metering
from mixmark.harness.measure.executor import HostCalls


class OnHost:
    """What a host does for its paths. Its methods are calls."""

    def __init__(self) -> None:
        self._found: Iterator[PathRecord | Absent] | None = None

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        """Measures the next path between the host's own memories. None after the last one. known: what the first call
        leaves out."""
        if self._found is None:  # without meters: a host may read the meters of its neighbours
            self._found = (each for each in measure(known) if not isinstance(each, Metering))
        return next(self._found, None)


def measure_all(hosts: HostCalls, known: Sequence[PathRecord | Absent]) -> Iterator[PathRecord | Absent]:
    """Measures the paths of each host, one host after the other since several may share a machine. A host that sends no
    reply has an absence for the rest of its paths.

    known: what to leave out.
    """
    names = {*map(name_of, known)}
    for host in hosts.present:
        own = tuple(each for each in known if host_of(name_of(each)) == host)
        if (rest := on(host, "paths")) in names:
            continue
        try:
            while found := hosts.ask(OnHost.measure_path, host, known=own):
                yield type(found).model_validate(found.model_dump())  # its host may make a name too long
        except (MixmarkError, ValueError) as error:
            yield Absent(kind="path", name=rest, reason=f"no path: {error}")
