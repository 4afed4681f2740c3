"""The program on each host: its standard streams, a full disk, and requests that it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate

import pytest

from mixmark.harness.capabilities.hosts import agent, messages
from mixmark.harness.capabilities.hosts.agent import Agent
from mixmark.harness.capabilities.hosts.messages import AgentCalls, LeaderCalls
from mixmark.harness.capabilities.hosts.streams import Pipes, lines
from mixmark.harness.contracts.schema import Absent, DataPath, PathRecord
from mixmark.harness.discover.config import Config
from mixmark.harness.discover.setup import Equipment
from mixmark.harness.measure import paths as measuring
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.record import store
from mixmark.harness.record.files import explained
from mixmark.harness.worker.calls import Failed, P, Reply, T, read, write_call
from tests.capabilities.hosts.stand_ins import StandIn, solo
from tests.cli.shell import ROOT
from tests.fakes import copies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "typed", "status", "says"),
    [
        ((), "", 0, ""),
        ((), "\n", 0, "mixmark agent: "),
        (("--cores", "3-1"), "", 2, "mixmark: this machine pins no process to the hardware threads 3-1"),
        (("--cores", "65000"), "", 2, "mixmark: this machine pins no process to the hardware threads 65000"),
    ],
)
def test_an_agent_ends_with_its_standard_input_and_prints_only_messages(
    words: tuple[str, ...], typed: str, status: int, says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mixmark", "agent", *words],
        input=typed,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert done.stderr.startswith(says), done.stderr
    if status == 0:
        messages.check_arrival(done.stdout.encode())


BENCH = Equipment({}, {}, {}, {}, {}, Config(), None, 60)


class Served:
    """An agent in a thread of this process, which measures what a test makes up."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, bench: Equipment | None = BENCH) -> None:
        self.ended = threading.Event()

        monkeypatch.setattr(Agent, "_end", lambda agent: self.ended.set())
        self.made_up = StandIn()

        def attend(phase: Any, equipment: Equipment, folder: Path, *_: object, **__: object) -> list[Any]:
            return [self.made_up.record(phase.name, each) for each in phase.shares]

        monkeypatch.setattr(agent, "attend", attend)
        (its_input, to_agent), (from_agent, its_output) = os.pipe(), os.pipe()
        self.pipes = Pipes(from_agent, to_agent)
        self.lines = lines(self.pipes.receive)
        self.to_agent = to_agent

        def serve() -> None:
            served = Agent(Pipes(its_input, its_output), folder / "none.toml", folder / "agent")
            served._bench = bench
            served.serve()

        threading.Thread(target=serve, daemon=True).start()
        messages.check_arrival(next(self.lines))

    def close(self) -> None:
        os.close(self.to_agent)

    def call(self, method: Callable[Concatenate[Any, P], T], *args: P.args, **arguments: P.kwargs) -> T | str:
        """The reply, or why there is none."""
        self.pipes.send(write_call(method, *args, **arguments))
        self.files: list[str] = []
        for line in self.lines:
            received = read(line, LeaderCalls)
            if isinstance(received, Reply):
                return received.of(method)
            if isinstance(received, Failed):
                return f"{received.failure.message}; {received.failure.hint}"
            self.files += [received.arguments["name"]]
        raise AssertionError("the agent ended")


def test_an_agent_whose_disk_is_full_says_so_and_measures_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)

    def measure() -> messages.PhaseMeasured | str:
        return served.call(AgentCalls.measure_phase, phase=solo("solo1", "npu:a"), service={})

    append = store.Store.append

    def full(self: store.Store, *_: object) -> None:
        with explained("cannot write record solo1"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Store, "append", full)
    full_disk = "cannot write record solo1: No space left on device; free disk space"
    assert measure() == full_disk
    monkeypatch.setattr(store.Store, "append", append)
    empty_folder = Agent._empty_folder

    def no_folder(self: Agent) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Agent, "_empty_folder", no_folder)
    assert "No space left on device" in str(measure())
    monkeypatch.setattr(Agent, "_empty_folder", empty_folder)
    measured = measure()
    assert served.files == ["solo1.npz"]
    assert not isinstance(measured, str) and [each["key"] for each in measured.records] == ["solo1"]
    served.close()
    assert served.ended.wait(50), "it ends with the stream"


def test_an_agent_refuses_a_call_before_it_described_its_host_and_a_configuration_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch, bench=None)
    assert "describe its host first" in str(served.call(AgentCalls.free_memory))
    assert "none.toml" in str(served.call(AgentCalls.describe_host, query=messages.HostQuery()))
    assert served.call(AgentCalls.ping, sent_ns=7)[0] == 7
    served.close()
    assert served.ended.wait(50)


@pytest.mark.slow
def test_an_agent_measures_one_path_of_its_host_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, importable: None
) -> None:
    monkeypatch.setattr(measuring, "SIZES", (4096, 1 << 16))
    monkeypatch.setattr(measuring, "SAMPLE_NS", 10_000)
    fakes = Plugin("paths", "fakes", f"{copies.__file__}:Fakes", "test")
    monkeypatch.setattr(registry, "find", lambda kind: {"fakes": fakes})
    paths = [path for path in copies.Fakes().paths() if isinstance(path, DataPath)]
    known = tuple(PathRecord(path=path) for path in paths if path.id != "fakes/fine")
    known += tuple(PathRecord(path=path, opposing=path.id) for path in paths)
    served = Served(tmp_path, monkeypatch)
    found = [served.call(AgentCalls.measure_path, known=given) for given in (known, (), ())]
    (lacking, record, none) = found
    assert (isinstance(lacking, Absent) and lacking.name, none) == ("fakes/none", None)
    assert isinstance(record, PathRecord)
    assert (record.key, record.fault, record.failure) == ("fakes/fine", None, None)
    assert len(record.samples) == 2 * 2 * measuring.SAMPLES
    served.close()
    assert served.ended.wait(50)


def test_an_agent_writes_and_reads_its_memory_and_nothing_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)

    def write(offset: int, data: bytes) -> object:
        return served.call(AgentCalls.write_memory, offset=offset, part=messages.MemoryPart.of(data))

    def read(offset: int, count: int) -> bytes:
        part = served.call(AgentCalls.read_memory, offset=offset, count=count)
        assert isinstance(part, messages.MemoryPart)
        return part.data()

    assert served.call(AgentCalls.fill_memory, size_bytes=8, byte=0xCA) is None
    assert write(2, b"\0\1\2") is None
    assert (read(0, 8), read(4, 2)) == (b"\xca\xca\0\1\2\xca\xca\xca", b"\2\xca")
    assert "ValueError" in str(write(6, b"\0\1\2"))
    assert (read(0, 9)[6:], read(9, 1)) == (b"\xca\xca", b"")
    served.close()
    assert served.ended.wait(50)


@pytest.mark.parametrize(
    "line", [b"hello\n", b'{"call": "serve", "arguments": {}}\n', b'{"reply": "stage", "value": null}\n']
)
def test_an_agent_ends_if_the_leading_process_breaks_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    served = Served(tmp_path, monkeypatch)
    served.pipes.send(line)
    assert served.ended.wait(50)
    served.close()
