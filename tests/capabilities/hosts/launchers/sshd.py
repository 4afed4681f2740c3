"""An ssh server of a test's own, on keys and a port of its own: in a network namespace where this user may make one,
which is another machine as far as the network is concerned, and else on the loopback address."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVER = "/usr/sbin/sshd"
NAMES = tuple(f"rack{number}" for number in range(1, 10))


@dataclass(frozen=True)
class Machine:
    """The server's machine, which the user's ssh configuration calls by several names."""

    address: str
    programs: Path
    """A folder with a program `ssh` that uses the test's own configuration."""
    link: str
    """The network device that leads to it; empty where it has none of its own."""

    def cut(self) -> None:
        ip("link", "set", self.link, "down")

    def mend(self) -> None:
        ip("link", "set", self.link, "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Serves as long as the block lasts. The test is skipped where this machine has no sshd."""
    if not Path(SERVER).exists() or not shutil.which("ssh"):
        pytest.skip("no ssh or no sshd: apt-get install openssh-client openssh-server")
    with ExitStack() as stack:
        address, inside, link = stack.enter_context(network())
        if not inside and os.getuid() == 0 and not Path("/run/sshd").is_dir():
            pytest.skip("no /run/sshd for the sshd of root: mkdir -m 755 /run/sshd")
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        for key in ("server", "user", "other"):
            made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / key)]
            subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
        (folder / "sshd_config").write_text(
            f"Port {port}\nListenAddress {address}\nHostKey {folder / 'server'}\nUsePAM no\nStrictModes no\n"
            f"PidFile none\nAuthorizedKeysFile {folder / 'user.pub'}\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        )
        server = [SERVER, "-D", "-e", "-f", str(folder / "sshd_config")]
        if inside:
            own_run = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"'
            server = ["ip", "netns", "exec", inside, "sh", "-c", own_run, "sh", *server]
        log = stack.enter_context((folder / "sshd.log").open("wb"))
        process = stack.enter_context(subprocess.Popen(server, stderr=log, stdin=subprocess.DEVNULL))
        stack.callback(process.terminate)
        key = (folder / "server.pub").read_text()
        (folder / "known_hosts").write_text(f"[{address}]:{port} {key}")
        (folder / "strangers").write_text("")
        common = f"HostName {address}\nUserKnownHostsFile {folder / 'known_hosts'}\nIdentitiesOnly yes\n"
        user = f"IdentityFile {folder / 'user'}\n"
        (folder / "ssh_config").write_text(
            f"Host closed\n{common}{user}Port 1\n"
            f"Host unknown\nUserKnownHostsFile {folder / 'strangers'}\n{common}{user}Port {port}\n"
            f"Host locked\n{common}IdentityFile {folder / 'other'}\nPort {port}\n"
            f"Host {' '.join(NAMES)}\n{common}{user}Port {port}\n"
        )
        programs = folder / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "ssh_config"} "$@"\n')
        (programs / "ssh").chmod(0o755)
        until_it_listens(address, port, process)
        yield Machine(address, programs, link)


@contextmanager
def network() -> Iterator[tuple[str, str, str]]:
    """The address of a network namespace, its name, and the device that leads to it; the loopback address and two empty
    words where none can be made."""
    name, link = f"mixmark-{os.getpid()}", f"mm{os.getpid()}"
    block = os.getpid() % (1 << 14) * 4
    here, there = (f"169.254.{block >> 8}.{(block & 255) + at}" for at in (1, 2))
    with ExitStack() as stack:
        try:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("address", "add", f"{here}/30", "dev", link)
            ip("link", "set", link, "up")
            ip("-n", name, "address", "add", f"{there}/30", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError):
            yield "127.0.0.1", "", ""
            return
        yield there, name, link


def until_it_listens(address: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.skip("sshd does not start here: run sshd -D -e and read why")
