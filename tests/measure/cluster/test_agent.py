"""The program on each host: its standard streams, a full disk, and requests that it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.discover.config import Config
from mixmark.harness.discover.equipment import Equipment
from mixmark.harness.measure.cluster import agent, messages
from mixmark.harness.measure.cluster.agent import Agent
from mixmark.harness.measure.cluster.streams import Pipes, lines
from mixmark.harness.record import store
from mixmark.harness.record.files import explained
from mixmark.harness.worker.messages import Failed, Message, read, write
from tests.cli.shell import ROOT
from tests.fakes.stand_ins import StandIn, solo


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
        assert messages.arrival(done.stdout.encode()) == messages.arrived()


class Served:
    """An agent in a thread of this process, which measures what a test makes up."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            served._equipment = Equipment({}, {}, {}, {}, {}, Config(), None, 60)
            served.serve()

        threading.Thread(target=serve, daemon=True).start()
        messages.arrival(next(self.lines))

    def close(self) -> None:
        os.close(self.to_agent)

    def receive(self) -> Message:
        return read(next(self.lines), messages.MESSAGES)

    def ask(self, request: Message) -> list[Message]:
        """Its messages up to the reply."""
        self.pipes.send(write(request))
        received = [self.receive()]
        while isinstance(received[-1], messages.FilePart | messages.StageBegun):
            received.append(self.receive())
        return received


def test_an_agent_whose_disk_is_full_says_so_and_measures_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)
    attend = messages.MeasurePhase(phase=solo("solo1", "npu:a"), service={}, host_fraction=0)
    append = store.Store.append

    def full(self: store.Store, *_: object) -> None:
        with explained("cannot write record solo1"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Store, "append", full)
    (refused,) = served.ask(attend)
    assert isinstance(refused, Failed)
    assert (refused.failure.message, refused.failure.hint) == (
        "cannot write record solo1: No space left on device",
        "free disk space or fix the permissions",
    )
    monkeypatch.setattr(store.Store, "append", append)
    empty_folder = Agent._empty_folder

    def no_folder(self: Agent) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Agent, "_empty_folder", no_folder)
    (refused,) = served.ask(attend)
    assert isinstance(refused, Failed) and "No space left on device" in refused.failure.message
    monkeypatch.setattr(Agent, "_empty_folder", empty_folder)
    blob, attended = served.ask(attend)
    assert isinstance(blob, messages.FilePart) and blob.name == "solo1.npz"
    assert isinstance(attended, messages.PhaseMeasured) and [each["key"] for each in attended.records] == ["solo1"]
    served.close()
    assert served.ended.wait(50), "it ends with the stream"


def test_an_agent_refuses_what_comes_before_it_was_looked_at_and_a_configuration_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)
    describe = messages.DescribeHost(
        adapters=(), tier="smoke", weights=(), split_cpu=None, seed=None, timeout_s=60, measures=False
    )
    (refused,) = served.ask(describe)
    assert isinstance(refused, Failed) and "none.toml" in refused.failure.message
    (pong,) = served.ask(messages.Ping(sent_ns=7))
    assert isinstance(pong, messages.Pong) and pong.sent_ns == 7
    (refused,) = served.ask(messages.IdleMeasured())
    assert isinstance(refused, Failed) and refused.failure.message == "IdleMeasured is no request"
    served.close()
    assert served.ended.wait(50)
