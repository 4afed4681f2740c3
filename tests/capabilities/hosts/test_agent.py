"""The program on each host: its standard streams, and requests that it refuses."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, cast

import pytest

from mixmark.harness.capabilities.hosts import agent, messages
from mixmark.harness.capabilities.hosts.agent import Agent
from mixmark.harness.capabilities.hosts.agents import SILENT_S
from mixmark.harness.capabilities.hosts.messages import AgentCalls, LeaderCalls
from mixmark.harness.capabilities.hosts.streams import Pipes, lines
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.resources import clock
from mixmark.harness.worker.calls import Failed, P, Reply, T, read, write_call
from tests.cli.shell import ROOT
from tests.fakes.streams import End, connection


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
    """An agent in a thread of this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, bench: Equipment | None = BENCH) -> None:
        self.ended = threading.Event()

        monkeypatch.setattr(Agent, "_end", lambda agent: self.ended.set())
        monkeypatch.setattr(Agent, "_end_alone", lambda agent: None)
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
        for line in self.lines:
            received = read(line, LeaderCalls)
            if isinstance(received, Reply):
                return received.of(method)
            if isinstance(received, Failed):
                return f"{received.failure.message}; {received.failure.hint}"
        raise AssertionError("the agent ended")


def test_an_agent_refuses_a_call_before_it_described_its_host_another_file_and_a_configuration_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch, bench=None)
    assert "describe its host first" in str(served.call(AgentCalls.free_memory))
    for content, words in (
        (None, "m.onnx there: No such file or directory; "),
        ("other", "has another content"),
        ("", "none.toml"),
    ):
        if content is not None:
            (tmp_path / "m.onnx").write_text(content)
        query = messages.HostQuery(files={"m": {str(tmp_path / "m.onnx"): hashlib.sha256().hexdigest()}})
        assert words in str(served.call(AgentCalls.describe_host, query=query))
    assert served.call(AgentCalls.ping, sent_ns=7)[0] == 7
    served.close()
    assert served.ended.wait(50)


class Wire:
    """The agent's end of a connection within this process."""

    received_bytes = 0

    def __init__(self, end: End) -> None:
        self.end = end

    def receive(self) -> bytes:
        data = self.end.recv(1 << 16) or b""
        self.received_bytes += len(data)
        return data

    def send(self, line: bytes) -> None:
        self.end.sendall(line)


@pytest.mark.usefixtures("jumping_clock")
def test_an_agent_that_hears_nothing_ends_itself_and_goes_on_with_a_leading_process_that_stood_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = connection()
    ended_s: list[float] = []
    monkeypatch.setattr(Agent, "_end", lambda agent: ended_s.append(clock.now_s()))
    served: Any = Agent(cast(Pipes, Wire(far)), None, tmp_path)
    threading.Thread(target=served.serve, daemon=True).start()
    begin_s = clock.now_s()
    for _ in range(10):
        near.sendall(write_call(AgentCalls.ping, sent_ns=7))
        clock.sleep(40)
    heard_s = clock.now_s() - 40
    clock.sleep(300)
    assert begin_s + 360 == heard_s and len(ended_s) == 1
    assert 5 * SILENT_S <= ended_s[0] - heard_s <= 6 * SILENT_S


class Echo:
    """What an experiment does on a host: counts its calls."""

    calls = 0

    def count(self, *, device: str) -> tuple[str, int]:
        self.calls += 1
        return device, self.calls


def test_an_agent_takes_the_calls_of_the_experiments_that_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiments = {"none": SimpleNamespace(on_host=lambda: None), "echo": SimpleNamespace(on_host=Echo)}
    monkeypatch.setattr(agent, "installed", lambda: experiments)
    served = Served(tmp_path, monkeypatch)
    assert [served.call(Echo.count, device=device) for device in ("a", "b")] == [("a", 1), ("b", 2)]
    assert served.call(AgentCalls.ping, sent_ns=7)[0] == 7
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
