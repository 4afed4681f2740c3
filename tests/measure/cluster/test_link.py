"""Two sides of a stream that know a secret, and those who do not, on real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mixmark.harness.measure.cluster import link
from mixmark.harness.measure.cluster.link import Link, Pipes, Stranger, Stream, give_secret, take_secret

SECRET = b"drawn for this run"


def linked(one: Stream, other: Stream, secret: bytes = SECRET) -> tuple[Link, Link]:
    """Both sides of a stream that have greeted each other."""
    found: list[Link] = []
    there = threading.Thread(target=lambda: found.append(Link(other, secret, "agent")))
    there.start()
    here = Link(one, secret, "coordinator")
    there.join()
    return here, found[0]


@pytest.fixture
def sides() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with closing(one), closing(other):
        yield one, other


def stranger(sides: tuple[socket.socket, socket.socket], says: bytes) -> str:
    """What a coordinator sees of a side that says this, whatever it is told."""
    one, other = sides
    other.sendall(says)
    with pytest.raises(Stranger) as seen:
        Link(one, SECRET, "coordinator", greets_within_s=0.2)
    assert one.fileno() == -1, "the stream is closed"
    return str(seen.value)


def test_lines_arrive_both_ways(sides: tuple[socket.socket, socket.socket]) -> None:
    here, there = linked(*sides)
    here.send(b'{"Ping": {}}\n')
    here.send(b"second\n")
    assert (there.receive(1), there.receive(1), there.receive(0.01)) == (b'{"Ping": {}}\n', b"second\n", None)
    there.send(b"back\n")
    assert here.receive(1) == b"back\n"
    assert here.received_bytes == there.sent_bytes
    there.close()
    assert here.receive(1) == b""
    with pytest.raises(BrokenPipeError):
        for _ in range(3):
            here.send(b"nobody\n")


def test_who_does_not_know_the_secret_is_cut_off(sides: tuple[socket.socket, socket.socket]) -> None:
    one, other = sides
    seen = []

    def guess() -> None:
        with pytest.raises(Stranger) as told:
            Link(other, b"a guess", "agent")
        seen.append(str(told.value))

    there = threading.Thread(target=guess)
    there.start()
    with pytest.raises(Stranger, match="does not know the secret"):
        Link(one, SECRET, "coordinator")
    there.join()
    assert seen == ["it does not know the secret of this run"]


@pytest.mark.parametrize(
    ("says", "seen"),
    [
        (b"GET / HTTP/1.1\r\n", "it speaks another protocol than mixmark-link-1"),
        (b"mixmark-link-0 agent 12\n", "it speaks another protocol than mixmark-link-1"),
        (b"mixmark-link-1 coordinator 12\n", "it is no agent"),
        (b"mixmark-link-1 agent 12\n" + b"0" * 64 + b"\n", "it does not know the secret of this run"),
        (b"", "it said nothing"),
    ],
)
def test_a_stranger_is_told_by_what_it_says(sides: tuple[socket.socket, socket.socket], says: bytes, seen: str) -> None:
    assert stranger(sides, says) == seen


def test_a_flood_without_an_end_of_line_is_cut_off(
    sides: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stranger(sides, b"x" * 257) == "it sent more than 256 bytes without an end of line"
    one, other = socket.socketpair()
    here, _ = linked(one, other)
    monkeypatch.setattr(link, "LONGEST_BYTES", 1 << 10)
    other.sendall(b"x" * 1025)
    with pytest.raises(Stranger, match="it sent more than 1024 bytes without an end of line"):
        here.receive(1)
    other.close()


def test_an_own_greeting_that_is_thrown_back_is_no_partner(sides: tuple[socket.socket, socket.socket]) -> None:
    """A mirror knows no secret, but it would send back the very code that proves it."""
    one, other = sides

    def mirror() -> None:
        while data := other.recv(1 << 16):
            other.sendall(data.replace(b"coordinator", b"agent"))

    threading.Thread(target=mirror, daemon=True).start()
    with pytest.raises(Stranger, match="no agent"):
        Link(one, SECRET, "coordinator")


def test_a_partner_that_is_gone_before_it_greets_went_away(sides: tuple[socket.socket, socket.socket]) -> None:
    one, other = sides
    other.close()
    with pytest.raises(Stranger, match="it went away"):
        Link(one, SECRET, "coordinator")


def test_lines_arrive_through_pipes_as_through_sockets() -> None:
    """A login by ssh gives a program one pipe to read from and one to write to."""
    (to_agent, from_here), (to_here, from_agent) = os.pipe(), os.pipe()
    here, there = linked(Pipes(to_here, from_here), Pipes(to_agent, from_agent))
    long = b"x" * (1 << 20) + b"\n"  # more than a pipe holds
    sends = threading.Thread(target=lambda: here.send(long))
    sends.start()
    assert there.receive(10) == long
    sends.join()
    there.send(b"back\n")
    assert here.receive(1) == b"back\n"
    there.close()
    there.close()
    assert here.receive(1) == b""
    with pytest.raises(BrokenPipeError):
        here.send(b"nobody\n")
    here.close()


@pytest.mark.slow
def test_what_a_library_prints_does_not_reach_the_stream() -> None:
    """The child takes its standard streams, and then something in it prints and reads."""
    child = (
        "import os, subprocess, sys; from mixmark.harness.measure.cluster.link import Link, Pipes, take_secret\n"
        "stream = Pipes.standard(); agent = Link(stream, take_secret(stream), 'agent')\n"
        "print('chatter', flush=True); os.system('echo chatter of a child')\n"
        "agent.send(f'read {sys.stdin.read()!r}\\n'.encode()); agent.receive(60)"
    )
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", child],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as process:
        theirs.close()
        give_secret(ours, SECRET)
        here = Link(ours, SECRET, "coordinator", greets_within_s=60)
        assert here.receive(60) == b"read ''\n"
        here.close()
        assert process.stderr and process.stderr.read() == b"chatter\nchatter of a child\n"
        assert process.wait() == 0


@pytest.mark.parametrize("line", [b"", b"no hexadecimal\n", b"00" * 200 + b"\n", b"\xff\n"])
def test_what_is_no_secret_is_refused(sides: tuple[socket.socket, socket.socket], line: bytes) -> None:
    one, other = sides
    one.sendall(line)
    one.close()
    with pytest.raises(ValueError):
        take_secret(other)


@pytest.mark.parametrize("attack", ["changed", "played again", "left out", "thrown back"])
def test_a_line_that_was_tampered_with_is_noticed(sides: tuple[socket.socket, socket.socket], attack: str) -> None:
    one, other = sides
    here, there = linked(one, other)
    here.send(b"credit 10\n")
    first = other.recv(1 << 16)
    here.send(b"credit 20\n")
    second = other.recv(1 << 16)
    there.send(b"finished 9\n")
    own = one.recv(1 << 16)
    come = {
        "changed": first.replace(b"10", b"99"),
        "played again": first + first,
        "left out": second,
        "thrown back": own,
    }[attack]
    one.sendall(come)
    with pytest.raises(Stranger, match="none of its own"):
        assert there.receive(1) == b"credit 10\n"
        there.receive(1)
    assert other.fileno() == -1


def test_what_was_recorded_of_one_stream_is_worth_nothing_in_another() -> None:
    one, other = socket.socketpair()
    here, _ = linked(one, other)
    here.send(b"begin\n")
    recorded = other.recv(1 << 16)
    again, further = socket.socketpair()
    _, there = linked(again, further)
    again.sendall(recorded)
    with pytest.raises(Stranger, match="none of its own"):
        there.receive(1)
    for each in (one, other, again, further):
        each.close()


def test_a_stream_that_is_closed_ends_for_the_other_side_while_somebody_waits_for_it_here() -> None:
    one, other = socket.socketpair()
    here, there = linked(one, other)
    heard: list[bytes | None] = []
    waiting = threading.Thread(target=lambda: heard.append(here.receive(60)))
    waiting.start()
    time.sleep(0.1)  # it most likely waits by now
    here.close()
    assert there.receive(50) == b""
    waiting.join()
    assert heard == [b""]
    there.close()


@pytest.mark.parametrize("line", [b"\n", b"no number\n", b"abc\n", b"", b"00" * 200])
def test_an_agent_takes_no_secret_that_is_none(line: bytes) -> None:
    one, other = socket.socketpair()
    one.sendall(line)
    one.close()
    with pytest.raises(ValueError):
        take_secret(other)
    other.close()
