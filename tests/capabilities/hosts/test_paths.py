"""Paths over several hosts: the copies between them to the digit, wrong and lost ones, and each host's own paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from mixmark.harness.capabilities.hosts import agents
from mixmark.harness.capabilities.hosts import paths as cluster_paths
from mixmark.harness.capabilities.hosts.agent import Agent
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.launchers import Host, process
from mixmark.harness.capabilities.hosts.messages import AgentCalls, MemoryPart
from mixmark.harness.capabilities.hosts.paths import HostCopies, measure
from mixmark.harness.capabilities.hosts.streams import Pipes
from mixmark.harness.contracts.schema import Absent, DataPath, PathRecord
from mixmark.harness.judge.paths import paths as figures
from mixmark.harness.measure import paths as measuring
from mixmark.harness.measure.paths import Data, measured
from mixmark.harness.resources import clock
from mixmark.harness.worker import calls
from tests.capabilities.hosts.stand_ins import StandIn, StandInLauncher
from tests.capabilities.hosts.test_run import CORES
from tests.golden import sample

CALL_NS = 50_000
OUT_NS, IN_NS = 2, 3
"""The nanoseconds of a byte from and to an agent."""
SIZES = (4096, 1 << 16)
PART_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SAMPLE_NS", 10_000)
    monkeypatch.setattr(cluster_paths, "SIZES", (*SIZES, 1 << 18))
    monkeypatch.setattr(cluster_paths, "LARGEST_BYTES", SIZES[-1])
    monkeypatch.setattr(cluster_paths, "PART_BYTES", PART_BYTES)


class Engine:
    """Carries the messages of agents in a known time. A part that is sent arrives before the
    next call of its host. broken: changes a part on its way to the host `right`; None loses it."""

    def __init__(self, *hosts: str, broken: Callable[[int, MemoryPart], MemoryPart | None] | None = None) -> None:
        self.present, self.broken = [*hosts], broken
        self.sent: dict[str, list[tuple[int, MemoryPart]]] = {}
        self.agents = {host: Agent(Pipes(0, 0), None, Path()) for host in hosts}

    def __getitem__(self, host: str) -> To:
        return To(self, host)

    def ask(self, method: Callable[..., Any], host: str, **arguments: Any) -> Any:
        for offset, part in self.sent.pop(host, ()):
            clock.sleep(IN_NS * len(part.data()) / 1e9)
            arrived = self.broken(offset, part) if self.broken and host == "right" else part
            if arrived is not None:
                self.agents[host].write_memory(offset=offset, part=arrived)
        clock.sleep((CALL_NS + OUT_NS * arguments.get("count", 0)) / 1e9)
        return getattr(self.agents[host], method.__name__)(**arguments)

    def measured(self, path: str, sizes: tuple[int, ...]) -> PathRecord:
        copies = HostCopies(cast(Agents, self))
        (found,) = (each for each in copies.paths() if each.id == path)
        return measured(found, copies, Data(1), 1 << 40, sizes)


class To:
    """A host of an engine, that is sent to without a reply."""

    def __init__(self, engine: Engine, host: str) -> None:
        self.engine, self.host = engine, host

    def send(self, method: Callable[..., Any], offset: int, part: MemoryPart) -> None:
        assert method is AgentCalls.write_memory
        self.engine.sent.setdefault(self.host, []).append((offset, part))


@pytest.mark.usefixtures("jumping_clock")
def test_a_copy_takes_two_calls_and_the_way_of_its_bytes_from_one_agent_and_to_the_other() -> None:
    sizes = (4096, 1 << 14, 1 << 16)
    record = Engine("left", "right").measured("hosts/left:right", sizes)
    assert (record.fault, record.failure) == (None, None)
    (found,) = figures(sample.result().model_copy(update={"paths": (record,)}))
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
    found = HostCopies(cast(Agents, Engine(*hosts))).paths()
    assert [each.id for each in found] == [f"hosts/{pair}" for pair in pairs.split()]


LACKING = Absent(kind="path", name="host/node", reason="no path: the system shows one NUMA node")
COPY = DataPath(id="host/copy", source="host", destination="host", through_caches=True)


class Copying(StandIn):
    """A host with a path of its own, one that it lacks, and a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent(Pipes(0, 0), None, Path())
        self.known: list[tuple[PathRecord | Absent, ...]] = []

    def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
        self.known.append(known)
        found = (LACKING, PathRecord(path=COPY), PathRecord(path=COPY, opposing=COPY.id))
        return found[len(self.known) - 1] if len(self.known) <= len(found) else None

    def fill_memory(self, **arguments: int) -> None:
        self.agent.fill_memory(**arguments)

    def write_memory(self, **arguments: Any) -> None:
        self.agent.write_memory(**arguments)

    def read_memory(self, *, offset: int, count: int) -> MemoryPart:
        clock.sleep(CALL_NS / 1e9)
        return self.agent.read_memory(offset=offset, count=count)


@contextmanager
def led(folder: Path, hosts: Mapping[str, StandIn]) -> Iterator[Agents]:
    launcher = StandInLauncher(folder, hosts)
    with Agents(launcher, launcher.hosts, folder) as started:
        yield started


@pytest.mark.usefixtures("jumping_clock")
def test_each_host_measures_its_own_paths_and_then_come_the_paths_between_hosts(tmp_path: Path) -> None:
    left, right = Copying(), Copying()
    before = (
        PathRecord(path=COPY.model_copy(update={"id": "right/host/process"})),
        Absent(**{**dict(LACKING), "name": "left/torch"}),
    )
    with led(tmp_path, {"left": left, "right": right}) as started:
        found = list(measure(started, before))
        again = list(measure(started, found))
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
    assert {records["right/host/copy"].path.source, records["right/host/copy"].path.destination} == {"right/host"}
    for id in ("hosts/left:right", "hosts/right:left"):
        assert (records[id].fault, records[id].failure) == (None, None)
        assert [sample.size_bytes for sample in records[id].samples[:: 2 * measuring.SAMPLES]] == [*SIZES]
    assert [measuring.name_of(each) for each in (*left.known[0], *right.known[0])] == ["torch", "host/process"]
    assert again == [], "what is known is not measured again"
    assert [measuring.name_of(each) for each in left.known[-1]] == [
        "host/node",
        "host/copy",
        "host/copy against host/copy",
    ]


class Lost(Copying):
    """Its agent is killed at its first part of this many bytes."""

    at = SIZES[-1]

    def read_memory(self, *, offset: int, count: int) -> MemoryPart:
        if count == self.at:
            self.die()
        return super().read_memory(offset=offset, count=count)


@pytest.mark.usefixtures("jumping_clock")
def test_a_host_that_is_lost_meanwhile_costs_its_paths_alone_and_what_was_measured_stays(tmp_path: Path) -> None:
    with led(tmp_path, {"left": Copying(), "right": Lost(), "third": Copying()}) as started:
        found = {each.key: each for each in measure(started, ()) if isinstance(each, PathRecord)}
        assert started.present == ["left", "third"]
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


@pytest.mark.usefixtures("jumping_clock")
def test_a_host_that_sends_something_else_has_no_figure(tmp_path: Path) -> None:
    class Odd(Copying):
        def read_memory(self, *, offset: int, count: int) -> MemoryPart:
            return (
                MemoryPart.model_construct(base64="#é")
                if count == SIZES[0]
                else super().read_memory(offset=offset, count=count)
            )

    class Few(Copying):
        def read_memory(self, *, offset: int, count: int) -> MemoryPart:
            return super().read_memory(offset=offset, count=count // 2)

    class Long(Copying):
        def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord | Absent | None:
            long = PathRecord(path=COPY.model_copy(update={"source": "a" * 100}))
            return super().measure_path(known=known) and long

    class Refusing(Copying):
        def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> PathRecord:
            raise OSError(28, "No space left on device")

    with led(tmp_path, {"odd": Odd(), "few": Few(), "long": Long(), "refusing": Refusing()}) as started:
        found = list(measure(started, ()))
        assert started.present == ["few", "long", "refusing"]
    absent = {each.name: each.reason for each in found if isinstance(each, Absent)}
    failures = {each.path.id: each.failure.message for each in found if isinstance(each, PathRecord) and each.failure}
    no_base64 = "the host odd sent no reply: its agent broke the protocol: the reply to read_memory has a wrong field"
    assert failures["hosts/odd:few"] == failures["hosts/few:odd"] == no_base64
    assert failures["hosts/long:few"] == "the host few sent 4 bytes of 8"
    assert "hosts/long:refusing" not in failures
    assert "at most 100 characters" in absent["long/paths"]
    assert "No space left on device" in absent["refusing/paths"]
    with led(tmp_path, {"refusing": Refusing()}) as started:
        assert list(measure(started, found)) == []


@pytest.mark.usefixtures("jumping_clock")
def test_an_agent_that_does_not_reply_is_given_up(tmp_path: Path) -> None:
    class Silent(Copying):
        def measure_path(self, *, known: tuple[PathRecord | Absent, ...]) -> Any:
            return calls.Later()

    with led(tmp_path, {"left": Silent()}) as started:
        (absent,) = measure(started, ())
    assert isinstance(absent, Absent)
    assert (absent.name, f"no reply came within {agents.REPLIES_WITHIN_S:.0f} s" in absent.reason) == (
        "left/paths",
        True,
    )


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="one core for two agents: run it on a machine with two")
def test_two_agents_of_this_machine_copy_to_each_other(tmp_path: Path) -> None:
    hosts = [Host("left", cores=(CORES[0],)), Host("right", cores=(CORES[1],))]
    with Agents(process.local(), hosts, tmp_path) as started:
        copies = HostCopies(started)
        found = [measured(path, copies, Data(1), 1 << 40, sizes=SIZES) for path in copies.paths()]
    assert [each.path.id for each in found] == ["hosts/left:right", "hosts/right:left"]
    for each in found:
        assert (each.fault, each.failure, len(each.samples)) == (None, None, 2 * 2 * measuring.SAMPLES)
