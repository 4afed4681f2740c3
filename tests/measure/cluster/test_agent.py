"""The program on each host: typed by hand, and where its disk is full."""

from __future__ import annotations

import os
import socket
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
from mixmark.harness.measure.cluster.link import Link
from mixmark.harness.record import store
from mixmark.harness.worker.messages import Message, read, write
from tests.cli.test_commands import ROOT
from tests.fakes.stand_ins import Host, solo


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "typed", "says"),
    [
        ((), "", "the first line of the standard input must be the secret of the run in hexadecimal"),
        ((), "\n", "the secret of the run is empty"),
        ((), "00ff\nwhatever\n", "the process that leads the run was not reached: it speaks another protocol"),
        (("--cores", "3-1"), "00ff\n", "--cores '3-1' is no list of hardware threads"),
        (("--cores", "65000"), "00ff\n", "this machine pins no process to the hardware threads 65000"),
        (("--connect", "127.0.0.1:1"), "00ff\n", "the process that leads the run was not reached: Connection refused"),
        (("--connect", "nowhere"), "00ff\n", "the process that leads the run was not reached: "),
    ],
)
def test_an_agent_that_is_typed_by_hand_says_what_it_wants(words: tuple[str, ...], typed: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mixmark", "agent", *words],
        input=typed,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert done.stderr.startswith(f"mixmark: {says}"), done.stderr
    assert "127.0.0.1" not in done.stderr


class Served:
    """An agent in a thread of this process, which measures what a test makes up."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended = threading.Event()

        def end(served: Agent) -> None:
            served._link.close()
            self.ended.set()

        monkeypatch.setattr(Agent, "_end", end)
        self.made_up = Host()

        def attend(phase: Any, equipment: Equipment, folder: Path, *_: object, **__: object) -> list[Any]:
            return [self.made_up.record(phase.name, each) for each in phase.shares]

        monkeypatch.setattr(agent, "attend", attend)
        ours, theirs = socket.socketpair()
        self.told = folder / "agent"

        def serve() -> None:
            served = Agent(Link(theirs, b"secret", "agent"), b"secret", folder / "none.toml", self.told)
            served._equipment = Equipment({}, {}, {}, {}, {}, Config(), None, 60)
            served.serve()

        threading.Thread(target=serve, daemon=True).start()
        self.link = Link(ours, b"secret", "coordinator")
        assert isinstance(self.heard(), messages.Arrived)

    def heard(self) -> Message:
        line = self.link.receive(60)
        assert line
        return read(line, messages.MESSAGES)

    def ask(self, request: Message) -> list[Message]:
        """What it says until it has answered."""
        self.link.send(write(request))
        said = [self.heard()]
        while isinstance(said[-1], messages.Blob | messages.Staged):
            said.append(self.heard())
        return said


def test_an_agent_whose_disk_is_full_says_so_and_measures_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)
    attend = messages.Attend(phase=solo("solo1", "npu:a"), service={}, host_fraction=0)
    append = store.Store.append

    def full(self: store.Store, *_: object) -> None:
        with store._explained("cannot write record solo1"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Store, "append", full)
    (refused,) = served.ask(attend)
    assert refused == messages.Refused(
        message="cannot write record solo1: No space left on device", hint="free disk space or fix the permissions"
    )
    monkeypatch.setattr(store.Store, "append", append)
    emptied = Agent._emptied

    def no_folder(self: Agent) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Agent, "_emptied", no_folder)
    (refused,) = served.ask(attend)
    assert isinstance(refused, messages.Refused) and "No space left on device" in refused.message
    monkeypatch.setattr(Agent, "_emptied", emptied)
    blob, attended = served.ask(attend)
    assert isinstance(blob, messages.Blob) and blob.name == "solo1.npz"
    assert isinstance(attended, messages.Attended) and [each["key"] for each in attended.records] == ["solo1"]
    served.link.close()
    assert served.ended.wait(50), "it ends with the stream"


def test_an_agent_refuses_what_comes_before_it_was_looked_at_and_a_configuration_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(tmp_path, monkeypatch)
    look = messages.Look(adapters=(), tier="smoke", weights=(), split_cpu=None, seed=None, timeout_s=60, measures=False)
    (refused,) = served.ask(look)
    assert isinstance(refused, messages.Refused) and "none.toml" in refused.message
    (pong,) = served.ask(messages.Ping(sent_ns=7))
    assert isinstance(pong, messages.Pong) and pong.sent_ns == 7
    (refused,) = served.ask(messages.Rested())
    assert refused == messages.Refused(message="Rested is no request")
    served.link.close()
    assert served.ended.wait(50)
