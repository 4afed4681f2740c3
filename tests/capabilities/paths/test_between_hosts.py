"""Paths over several hosts: the copies between them to the digit, wrong and lost ones, and each host's own paths."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.paths import between_hosts, measuring
from mixmark.harness.capabilities.paths.between_hosts import HostCopies, MemoryPart, OnHost, measure_all
from mixmark.harness.capabilities.paths.facts import DataPath, PathRecord
from mixmark.harness.capabilities.paths.figures import paths as figures
from mixmark.harness.capabilities.paths.measuring import Data, measured
from mixmark.harness.contracts.device_ids import local, on
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent
from mixmark.harness.resources import clock
from tests.capabilities.paths.fakes import on_host, with_paths
from tests.golden import sample

CALL_NS = 50_000
OUT_NS, IN_NS = 2, 3
"""The nanoseconds of a byte from and to a host."""
SIZES = (4096, 1 << 16)
PART_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CALLS", 1)
    monkeypatch.setattr(between_hosts, "SIZES", (*SIZES, 1 << 18))
    monkeypatch.setattr(between_hosts, "LARGEST_BYTES", SIZES[-1])
    monkeypatch.setattr(between_hosts, "PART_BYTES", PART_BYTES)


class Engine:
    """Carries the calls of hosts in a known time. A part that is sent arrives before the next call of its host.
    broken: changes a part on its way to the host `right`; None loses it."""

    def __init__(self, *hosts: str, broken: Callable[[int, MemoryPart], MemoryPart | None] | None = None) -> None:
        self.on_hosts = {host: OnHost() for host in hosts}
        self.broken = broken
        self.sent: dict[str, list[tuple[int, MemoryPart]]] = {}
        self.lost: dict[str, str] = {}

    @property
    def present(self) -> list[str]:
        return [host for host in self.on_hosts if host not in self.lost]

    def send(self, method: Callable[..., Any], host: str, *_: Any, **arguments: Any) -> None:
        assert method is OnHost.write_memory
        self.sent.setdefault(host, []).append((arguments["offset"], arguments["part"]))

    def ask(self, method: Callable[..., Any], host: str, *_: Any, **arguments: Any) -> Any:
        for offset, part in self.sent.pop(host, ()):
            clock.sleep(IN_NS * len(part.data()) / 1e9)
            arrived = self.broken(offset, part) if self.broken and host == "right" else part
            if arrived is not None:
                self.on_hosts[host].write_memory(offset=offset, part=arrived)
        clock.sleep((CALL_NS + OUT_NS * arguments.get("count", 0)) / 1e9)
        try:
            if host in self.lost:
                raise OSError(self.lost[host])
            return getattr(self.on_hosts[host], method.__name__)(**arguments)
        except OSError as error:
            raise MixmarkError(f"the host {host} sent no reply: {error}") from error

    def measured(self, path: str, sizes: tuple[int, ...]) -> PathRecord:
        copies = HostCopies(self)
        (found,) = (each for each in copies.paths() if each.id == path)
        return measured(found, copies, Data(1), 1 << 40, sizes)


@pytest.mark.usefixtures("jumping_clock")
def test_a_copy_takes_two_calls_and_the_way_of_its_bytes_from_one_agent_and_to_the_other() -> None:
    sizes = (4096, 1 << 14, 1 << 16)
    record = Engine("left", "right").measured("hosts/left:right", sizes)
    assert (record.fault, record.failure) == (None, None)
    (found,) = figures(with_paths(sample.result(), record))
    word_ns = OUT_NS * measuring.WORD
    seconds = {each.size_bytes: round(each.seconds.estimate * 1e9) for each in found.sizes}
    assert seconds == {size: 2 * CALL_NS + word_ns + (OUT_NS + IN_NS) * size for size in sizes}
    assert {round((each.call_s or 0) * 1e9) for each in found.sizes} == {CALL_NS + word_ns}
    assert found.latency_s is not None and found.bytes_per_s is not None
    assert round(found.latency_s.estimate * 1e9) == 2 * CALL_NS + word_ns
    assert found.bytes_per_s.estimate == pytest.approx(1e9 / (OUT_NS + IN_NS), rel=1e-9)
    assert {each.memory for each in found.sizes} == {"memory"}, "no cache is as fast as a message"
    several = Engine("left", "right").measured("hosts/left:right", (4 * PART_BYTES,))
    took_ns = {(each.ns - CALL_NS - word_ns) / each.copies for each in several.samples if each.copies}
    assert took_ns == {5 * CALL_NS + word_ns + (OUT_NS + IN_NS) * 4 * PART_BYTES}, "each part is asked for"
    path = record.path
    assert (path.source, path.destination, path.route) == ("left/host", "right/host", "staged")


def changed(part: MemoryPart, at: int) -> MemoryPart:
    data = bytearray(part.data())
    data[at] ^= 1
    return MemoryPart.of(bytes(data))


@pytest.mark.usefixtures("jumping_clock")
@pytest.mark.parametrize(
    ("broken", "kind", "first"),
    [
        (lambda offset, part: changed(part, 1000) if offset else part, "corrupted", PART_BYTES + 1000),
        (lambda offset, part: None if offset else part, "short", PART_BYTES),
        (lambda offset, part: MemoryPart.of(part.data()[:-96]) if offset else part, "short", 2 * PART_BYTES - 96),
    ],
)
def test_a_part_that_is_not_passed_on_as_it_was_is_named(
    broken: Callable[[int, MemoryPart], MemoryPart | None], kind: str, first: int
) -> None:
    size = 2 * PART_BYTES
    record = Engine("left", "right", broken=broken).measured("hosts/left:right", (size,))
    assert record.fault is not None
    assert (record.fault.kind, record.fault.size_bytes, record.samples) == (kind, size, ())
    assert record.fault.first_byte == pytest.approx(first, abs=2)
    other = Engine("left", "right", "third", broken=broken).measured("hosts/third:left", (size,))
    assert (other.fault, other.failure, len(other.samples)) == (None, None, 2 * measuring.SAMPLES)


@pytest.mark.parametrize(
    ("hosts", "pairs"),
    [
        ("a", ""),
        ("ab", "a:b b:a"),
        ("abc", "a:b b:a b:c c:b c:a a:c"),
        ("abcde", "a:b b:a b:c c:b c:d d:c d:e e:d e:a a:e"),
    ],
)
def test_each_host_has_a_path_to_the_next_one_and_back(hosts: str, pairs: str) -> None:
    found = HostCopies(Engine(*hosts)).paths()
    assert [each.id for each in found] == [f"hosts/{pair}" for pair in pairs.split()]


LACKING = Absent(kind="path", name="host/node", reason="no path: the system shows one NUMA node")
COPY = DataPath(id="host/copy", source="host", destination="host", through_caches=True)


class Copying(OnHost):
    """A host with a path of its own, also against itself, and one that it lacks, with the run's names."""

    def __init__(self, engine: Engine, host: str) -> None:
        super().__init__()
        self.engine, self.host = engine, host
        self.known: list[list[str]] = []

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        self.known.append([local(measuring.name_of(each)) for each in known])
        lacking: PathRecord | Absent = LACKING.model_copy(update={"name": on(self.host, LACKING.name)})
        own = (on_host(self.host, each) for each in (PathRecord(path=COPY), PathRecord(path=COPY, opposing=COPY.id)))
        found = [each for each in (lacking, *own) if each not in known]
        return found[len(self.known) - 1] if len(self.known) <= len(found) else None


def engine(**kinds: type[Copying]) -> Engine:
    made = Engine(*kinds)
    made.on_hosts = {host: kind(made, host) for host, kind in kinds.items()}
    return made


@pytest.mark.usefixtures("jumping_clock")
def test_each_host_measures_its_own_paths_and_then_come_the_paths_between_hosts() -> None:
    before = (
        on_host("right", PathRecord(path=COPY.model_copy(update={"id": "host/process"}))),
        Absent(**{**dict(LACKING), "name": "left/torch"}),
    )
    first, second = (engine(left=Copying, right=Copying) for _ in range(2))
    found = list(measure_all(first, before))
    again = list(measure_all(second, found))
    records = {each.key: each for each in found if isinstance(each, PathRecord)}
    assert [each.name for each in found if isinstance(each, Absent)] == ["left/host/node", "right/host/node"]
    assert [*records] == [
        "left/host/copy",
        "left/host/copy against left/host/copy",
        "right/host/copy",
        "right/host/copy against right/host/copy",
        "hosts/left:right",
        "hosts/right:left",
    ]
    for id in ("hosts/left:right", "hosts/right:left"):
        assert (records[id].fault, records[id].failure) == (None, None)
        assert [sample.size_bytes for sample in records[id].samples[:: 2 * measuring.SAMPLES]] == [*SIZES]
    assert [given(first, host) for host in ("left", "right")] == [["torch"], ["host/process"]]
    assert again == [], "what is known is not measured again"
    assert given(second, "right") == ["host/node", "host/copy", "host/copy against right/host/copy"]


def given(of: Engine, host: str) -> list[str]:
    """The names that a host was told to leave out."""
    found = of.on_hosts[host]
    assert isinstance(found, Copying)
    return found.known[0]


class Lost(Copying):
    """It is lost at its first part of this many bytes."""

    at = SIZES[-1]

    def read_memory(self, *, offset: int, count: int) -> MemoryPart:
        if count == self.at:
            self.engine.lost[self.host] = "its agent was killed by signal 9"
            raise OSError(self.engine.lost[self.host])
        return super().read_memory(offset=offset, count=count)


@pytest.mark.usefixtures("jumping_clock")
def test_a_host_that_is_lost_meanwhile_costs_its_paths_alone_and_what_was_measured_stays() -> None:
    hosts = engine(left=Copying, right=Lost, third=Copying)
    found = {each.key: each for each in measure_all(hosts, ()) if isinstance(each, PathRecord)}
    first = found["hosts/left:right"]
    assert first.failure is not None
    assert (first.failure.kind, first.failure.message) == (
        "raised",
        "the host right sent no reply: its agent was killed by signal 9",
    )
    assert {sample.size_bytes for sample in first.samples} == {SIZES[0]}
    of_right = [found[f"hosts/{pair}"] for pair in ("right:left", "right:third", "third:right")]
    assert [(bool(each.failure), each.samples) for each in of_right] == [(True, ())] * 3
    others = [found[f"hosts/{pair}"] for pair in ("left:third", "third:left")]
    assert [(each.failure, each.fault, len({s.size_bytes for s in each.samples})) for each in others] == [
        (None, None, 2)
    ] * 2


class Few(Copying):
    """Sends a half of the bytes."""

    def read_memory(self, *, offset: int, count: int) -> MemoryPart:
        return super().read_memory(offset=offset, count=count // 2)


class Long(Copying):
    """Has a path whose source has too long a name, once its host stands before it."""

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        return on_host(self.host, PathRecord(path=COPY.model_copy(update={"source": "a" * 100})))


class Refusing(Copying):
    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord:
        raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("jumping_clock")
def test_a_host_that_sends_something_else_has_no_figure() -> None:
    found = list(measure_all(engine(few=Few, long=Long, refusing=Refusing), ()))
    absent = {each.name: each.reason for each in found if isinstance(each, Absent)}
    failures = {each.path.id: each.failure.message for each in found if isinstance(each, PathRecord) and each.failure}
    assert failures["hosts/long:few"] == "the host few sent 4 bytes of 8"
    assert "hosts/long:refusing" not in failures
    assert "at most 100 characters" in absent["long/paths"]
    assert "No space left on device" in absent["refusing/paths"]
    assert list(measure_all(engine(refusing=Refusing), found)) == []


def test_a_host_writes_and_reads_its_memory_and_nothing_beyond() -> None:
    host = OnHost()
    host.fill_memory(size_bytes=8, byte=0xCA)
    host.write_memory(offset=0, part=MemoryPart.of(b"\0\1\2"))
    assert host.read_memory(offset=0, count=8).data() == b"\0\1\2" + b"\xca" * 5
    with pytest.raises(ValueError):
        host.write_memory(offset=6, part=MemoryPart.of(b"\0\1\2"))
    assert (host.read_memory(offset=0, count=9).data()[6:], host.read_memory(offset=9, count=1).data()) == (
        *(b"\xca\xca", b""),
    )


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core for two agents: run it on a machine with two")
def test_two_agents_of_this_machine_copy_to_each_other(tmp_path: Path) -> None:
    """Only where the capability is there that has agents."""
    agents = pytest.importorskip("mixmark.harness.capabilities.hosts.agents")
    launchers = pytest.importorskip("mixmark.harness.capabilities.hosts.launchers")
    process = pytest.importorskip("mixmark.harness.capabilities.hosts.launchers.process")
    cores = sorted(os.sched_getaffinity(0))
    hosts = [launchers.Host(name, cores=(core,)) for name, core in zip(("left", "right"), cores, strict=False)]
    with agents.Agents(process.local(), hosts, tmp_path) as started:
        copies = HostCopies(started)
        found = [measured(path, copies, Data(1), 1 << 40, sizes=SIZES) for path in copies.paths()]
    assert [each.path.id for each in found] == ["hosts/left:right", "hosts/right:left"]
    for each in found:
        assert (each.fault, each.failure, len(each.samples)) == (None, None, 2 * 2 * measuring.SAMPLES)
