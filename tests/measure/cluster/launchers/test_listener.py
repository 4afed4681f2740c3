"""The socket that agents call back to, and everybody else who finds it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from mixmark.harness.measure.cluster.launchers import listener
from mixmark.harness.measure.cluster.launchers.listener import Listener, call
from mixmark.harness.measure.cluster.link import Link, Stranger

Keep = Callable[[Link], Link]
SECRET = b"drawn for this run"


@pytest.fixture
def expects(tmp_path: Path) -> Iterator[Listener]:
    with Listener("127.0.0.1", ("host1", "host2"), SECRET, tmp_path / "listener.log") as found:
        yield found


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Closes in the end what it is given, and gives it back at once."""
    with ExitStack() as stack:

        def kept(link: Link) -> Link:
            stack.callback(link.close)
            return link

        yield kept


def agents(expects: Listener, keep: Keep, others: Callable[[], object] = lambda: None) -> bool:
    """Whether both agents are known by their names where they call after others did."""

    def agent(name: str) -> None:
        keep(Link(call(expects.address, name), SECRET, "agent", 60)).send(f"{name}\n".encode())

    with ThreadPoolExecutor() as pool:
        finds = pool.submit(expects.agents, 60, lambda name: "")
        others()
        for come in [pool.submit(agent, name) for name in ("host1", "host2")]:
            come.result()
        found = {name: keep(link) for name, link in finds.result().items() if isinstance(link, Link)}
    return {name: link.receive(60) for name, link in found.items()} == {"host1": b"host1\n", "host2": b"host2\n"}


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def test_each_agent_is_known_by_its_name(expects: Listener, keep: Keep) -> None:
    assert agents(expects, keep)


def test_it_listens_only_inside_its_block(tmp_path: Path) -> None:
    with Listener("127.0.0.1", ("host1",), SECRET, tmp_path / "log") as expects:
        call(expects.address, "host1").close()
    with pytest.raises(OSError):
        call(expects.address, "host1")


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "no host of this run is called so"),
        (b"host3\n", "no host of this run is called so"),
        (b"\x1b[31m\n", "no host of this run is called so"),
        (b"x" * 100, "it does not say its name"),
        (b"host1\nhello\n", "it speaks another protocol than mixmark-link-1"),
        (b"host1\n" + b"x" * 300, "it sent more than 256 bytes without an end of line"),
    ],
)
def test_a_stranger_is_cut_off_and_told_in_the_log(
    expects: Listener, keep: Keep, tmp_path: Path, says: bytes, told: str
) -> None:
    def stranger() -> None:
        with connected(expects.address) as stream, suppress(ConnectionError):
            stream.sendall(says)
            while stream.recv(1 << 16):  # until it is cut off
                pass

    assert agents(expects, keep, stranger)
    log = (tmp_path / "listener.log").read_text()
    assert log.startswith("127.0.0.1: ") and told in log and "\x1b" not in log


def test_who_says_a_name_and_knows_no_secret_does_not_take_its_place(
    expects: Listener, keep: Keep, tmp_path: Path
) -> None:
    def guess() -> None:
        with pytest.raises(Stranger, match="does not know the secret"):
            Link(call(expects.address, "host1"), b"a guess", "agent")

    assert agents(expects, keep, guess)
    assert "host1: cut off: it does not know the secret of this run" in (tmp_path / "listener.log").read_text()


def test_what_was_recorded_of_an_agent_is_worth_nothing(expects: Listener, keep: Keep, tmp_path: Path) -> None:
    """A middleman passes on what an agent says and keeps it; played again, it proves nothing to a second listener."""
    kept: list[bytes] = []

    def middleman(server: socket.socket) -> None:
        agent, _ = server.accept()
        with agent, connected(expects.address) as there:

            def back() -> None:
                with suppress(OSError):
                    while data := there.recv(1 << 16):
                        agent.sendall(data)

            answers = threading.Thread(target=back)
            answers.start()
            while data := agent.recv(1 << 16):
                kept.append(data)
                there.sendall(data)
            there.shutdown(socket.SHUT_RDWR)
            answers.join()

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        finds = pool.submit(expects.agents, 60, lambda name: "it is not asked" if name == "host2" else "")
        passes = pool.submit(middleman, server)
        link = Link(call(f"127.0.0.1:{server.getsockname()[1]}", "host1"), SECRET, "agent", 60)
        found = finds.result()["host1"]
        assert isinstance(found, Link)
        keep(found)
        link.close()
        passes.result()
    log = tmp_path / "second.log"
    with Listener("127.0.0.1", ("host1",), SECRET, log) as second, connected(second.address) as again:
        again.sendall(b"".join(kept))
        assert second.agents(60, lambda name: "seen" if log.exists() else "") == {"host1": "seen"}
    assert "host1: cut off: it does not know the secret of this run" in log.read_text()


def test_the_second_agent_of_a_name_is_cut_off(expects: Listener, keep: Keep, tmp_path: Path) -> None:
    def two() -> list[Link]:
        return [keep(Link(call(expects.address, "host1"), SECRET, "agent", 60)) for _ in range(2)]

    log = tmp_path / "listener.log"
    with ThreadPoolExecutor() as pool:
        come = pool.submit(two)
        found = expects.agents(60, lambda name: "later" if log.exists() else "")
        first, second = come.result()
    assert isinstance(found["host1"], Link) and found["host2"] == "later"
    keep(found["host1"]).send(b"welcome\n")
    assert (first.receive(60), second.receive(60)) == (b"welcome\n", b"")
    assert "host1: cut off: it came after the agent of this name" in log.read_text()


def test_a_flood_keeps_no_agent_out_and_fills_no_log(
    expects: Listener, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_GREETING", 4)
    monkeypatch.setattr(listener, "MOST_LOGGED", 3)
    with ExitStack() as stack:
        assert agents(expects, keep, lambda: [stack.enter_context(connected(expects.address)) for _ in range(50)])
    lines = (tmp_path / "listener.log").read_text().splitlines()
    assert len(lines) == 4 and lines[3] == "further ones are not listed"


def test_an_agent_that_does_not_come_is_given_up_in_words(expects: Listener) -> None:
    found = expects.agents(0.3, lambda name: "srun ended" if name == "host1" else "")
    assert found == {
        "host1": "srun ended",
        "host2": "its agent did not call back within 0.3 s, as where a firewall is in its way",
    }
