"""Agents that are started for tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from mixmark.harness.measure.cluster.launchers import Started

ROOT = Path(__file__).parents[4]


def stand_in(folder: Path) -> str:
    """The path of an interpreter that runs the stand-in `tests.fakes.agent` as `-P -m mixmark agent`."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nshift 4\nPYTHONPATH={ROOT} exec {sys.executable} -P -m tests.fakes.agent "$@"\n')
    script.chmod(0o755)
    return str(script)


def ask(agent: Started) -> list[str]:
    """What a stand-in says of itself: its name, process id, cores, the id of its child, and what it was told."""
    agent.link.send(b"hello\n")
    answer = agent.link.receive(60)
    assert answer, answer
    return answer.decode().split()


def started(found: Mapping[str, Started | str], name: str) -> Started:
    """The agent of a host, which must be there."""
    agent = found[name]
    assert not isinstance(agent, str), agent
    return agent
