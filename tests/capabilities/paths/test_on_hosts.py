"""Paths over several hosts: each host measures its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from mixmark.harness.capabilities.paths import measuring
from mixmark.harness.capabilities.paths.facts import DataPath, PathRecord
from mixmark.harness.capabilities.paths.on_hosts import OnHost, measure_all
from mixmark.harness.contracts.device_ids import local, on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent
from mixmark.harness.measure.executor import HostCalls
from tests.capabilities.paths.fakes import on_host

LACKING = Absent(kind="path", name="host/node", reason="no path: the system shows one NUMA node")
COPY = DataPath(id="host/copy", source="host", destination="host", through_caches=True)


class Copying(OnHost):
    """A host with two paths and one that it lacks, with the run's names."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.known: list[list[str]] = []

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        self.known.append([local(measuring.name_of(each)) for each in known])
        lacking: PathRecord | Absent = LACKING.model_copy(update={"name": on(self.host, LACKING.name)})
        own = (on_host(self.host, PathRecord(path=COPY.model_copy(update={"id": id}))) for id in ("host/a", "host/b"))
        found = [each for each in (lacking, *own) if each not in known]
        return found[len(self.known) - 1] if len(self.known) <= len(found) else None


class Engine:
    """Carries the calls of hosts."""

    def __init__(self, **kinds: type[Copying]) -> None:
        self.on_hosts = {host: kind(host) for host, kind in kinds.items()}

    @property
    def present(self) -> list[str]:
        return [*self.on_hosts]

    def ask(self, method: Callable[..., Any], host: str, *_: Any, **arguments: Any) -> Any:
        try:
            return getattr(self.on_hosts[host], method.__name__)(**arguments)
        except OSError as error:
            raise MixmarkError(f"the host {host} sent no reply: {error}") from error

    def measured(self, *known: PathRecord | Absent) -> list[PathRecord | Absent]:
        return list(measure_all(cast(HostCalls, self), known))


def test_each_host_measures_its_own_paths() -> None:
    before = (
        on_host("right", PathRecord(path=COPY.model_copy(update={"id": "host/a"}))),
        Absent(kind="path", name="left/torch", reason="no path"),
    )
    first, second = (Engine(left=Copying, right=Copying) for _ in range(2))
    found = first.measured(*before)
    assert [measuring.name_of(each) for each in found] == [
        *("left/host/node", "left/host/a", "left/host/b"),
        *("right/host/node", "right/host/b"),
    ]
    assert [host.known[0] for host in first.on_hosts.values()] == [["torch"], ["host/a"]]
    assert second.measured(*before, *found) == [], "what is known is not measured again"


class Long(Copying):
    """Has a path whose source has too long a name, once its host stands before it."""

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        return on_host(self.host, PathRecord(path=COPY.model_copy(update={"source": "a" * 100})))


class Refusing(Copying):
    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord:
        raise OSError(28, "No space left on device")


def test_a_host_that_sends_something_else_costs_its_own_paths_alone() -> None:
    found = Engine(long=Long, refusing=Refusing, right=Copying).measured()
    absent = {each.name: each.reason for each in found if isinstance(each, Absent)}
    assert "at most 100 characters" in absent["long/paths"]
    assert "No space left on device" in absent["refusing/paths"]
    assert [each.path.id for each in found if isinstance(each, PathRecord)] == ["right/host/a", "right/host/b"]
    assert Engine(refusing=Refusing).measured(*found) == []
