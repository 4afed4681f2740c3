"""An ssh server of a test's own on the loopback address, with keys and a port of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVER = "/usr/sbin/sshd"
NAMES = tuple(f"rack{number}" for number in range(1, 10))

SLOW = "far"
"""The name by which the server is reached through RELAY."""
RELAY = """
import os, socket, sys, threading, time
far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def carry(read, write):
    while data := read(8192):
        time.sleep(0.1)
        write(data)
    os._exit(0)
threading.Thread(target=carry, args=(lambda size: os.read(0, size), far.sendall)).start()
carry(far.recv, lambda data: os.write(1, data))
"""


@dataclass(frozen=True)
class Machine:
    """The server's machine, which the user's ssh configuration calls by several names."""

    address: str
    programs: Path
    """A folder with a program `ssh` that uses the test's own configuration."""


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Serves as long as the block lasts. The test is skipped where this machine has no sshd."""
    if not Path(SERVER).exists() or not shutil.which("ssh"):
        pytest.skip("no ssh or no sshd: apt-get install openssh-client openssh-server")
    address = "127.0.0.1"
    with ExitStack() as stack:
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
        if os.getuid() == 0 and not Path("/run/sshd").is_dir():  # the sshd of root asks for it
            own_run = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"'
            server = ["unshare", "--mount", "sh", "-c", own_run, "sh", *server]
        log = stack.enter_context((folder / "sshd.log").open("wb"))
        process = stack.enter_context(subprocess.Popen(server, stderr=log, stdin=subprocess.DEVNULL))
        stack.callback(process.terminate)
        key = (folder / "server.pub").read_text()
        (folder / "known_hosts").write_text(f"[{address}]:{port} {key}")
        (folder / "strangers").write_text("")
        (folder / "relay.py").write_text(RELAY)
        common = f"HostName {address}\nUserKnownHostsFile {folder / 'known_hosts'}\nIdentitiesOnly yes\n"
        user = f"IdentityFile {folder / 'user'}\n"
        (folder / "ssh_config").write_text(
            f"Host closed\n{common}{user}Port 1\n"
            f"Host unknown\nUserKnownHostsFile {folder / 'strangers'}\n{common}{user}Port {port}\n"
            f"Host locked\n{common}IdentityFile {folder / 'other'}\nPort {port}\n"
            f"Host {SLOW}\n{common}{user}Port {port}\nProxyCommand {sys.executable} {folder / 'relay.py'} {port}\n"
            f"Host {' '.join(NAMES)}\n{common}{user}Port {port}\n"
        )
        programs = folder / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "ssh_config"} "$@"\n')
        (programs / "ssh").chmod(0o755)
        until_it_listens(address, port, process)
        yield Machine(address, programs)


def until_it_listens(address: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection((address, port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.skip("sshd does not start here: run sshd -D -e and read why")
