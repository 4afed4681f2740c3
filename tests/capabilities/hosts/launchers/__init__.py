"""Stand-ins for agents that a launcher of Mixmark starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.messages import AgentCalls

ROOT = Path(__file__).parents[4]


def stand_in(folder: Path) -> str:
    """The path of an interpreter that runs the stand-in `fake_agent` as `-P -m mixmark agent`."""
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\nshift 4\nPYTHONPATH={ROOT} exec {sys.executable} -P -m tests.capabilities.hosts.fake_agent "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


@dataclass(frozen=True)
class Facts:
    """What a stand-in says of itself."""

    name: str
    pid: int
    cores: str
    child: int


def facts(agents: Agents, *names: str) -> dict[str, Facts]:
    """The facts of these hosts, or of all that are present."""
    found = {}
    for name, reply in agents.call(AgentCalls.free_memory, names or agents.present).items():
        words = str(reply).split()
        assert len(words) == 4, reply
        found[name] = Facts(words[0], int(words[1]), words[2], int(words[3]))
    return found


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_soon(pids: Iterable[int], within_s: float = 60) -> bool:
    """Whether all of these processes end within so many seconds."""
    deadline = time.monotonic() + within_s
    while (living := any(map(lives, pids))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not living
