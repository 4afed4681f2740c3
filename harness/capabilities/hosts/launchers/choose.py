"""Chooses the hosts of a run and the launcher of their agents, from the options of the command line and hosts.toml:

launcher = "ssh"

[host.rack1]
address = "bench@rack1"
python = "/opt/venv/bin/python"
config = "/etc/mixmark.toml"
cores = "0-15,32-47"

[host.rack2]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mixmark.harness.capabilities.hosts.launchers import Host, Launcher
from mixmark.harness.capabilities.hosts.launchers.process import allocated, local, nodes, ray, slurm, ssh
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.schema import HOST_NAME
from mixmark.harness.contracts.toml import read_toml

ADDRESS = r"([A-Za-z0-9_][A-Za-z0-9._-]*@)?([A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)"
"""A name, an IPv4 or an IPv6 address, with a user or without: no option, and nothing that a shell reads. A port and a
key belong in the user's ssh configuration."""
WORD = r"[^-\p{C}]\P{C}*"
"""No option of a program, and nothing that a terminal obeys."""
SPAN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
LAST_CORE = 65535
KEYS = ("address", "python", "config", "cores")
FORM = f"it takes launcher = … and sections [host.NAME] with {', '.join(KEYS)}"
LAUNCHERS: Mapping[str, Callable[[str], Launcher]] = {
    "local": lambda address: local(),
    "ssh": lambda address: ssh(),
    "slurm": lambda address: slurm(),
    "ray": ray,
}
"""Makes each launcher. Its argument is the option --address, which only ray uses."""
FIND_HOSTS: Mapping[str, Callable[[str], tuple[Host, ...]]] = {"slurm": lambda address: allocated(), "ray": nodes}
"""Finds all hosts of an engine that knows them; the other launchers need a list."""


def _cores(listed: object) -> tuple[int, ...]:
    """The hardware threads of a list such as 0-15,32-47."""
    found: list[int] = []
    for part in str(listed).split(","):
        span = SPAN.fullmatch(part.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if last < first or last > LAST_CORE:
            raise ValueError(f'{listed!r} is no list of hardware threads such as "0-15,32-47"')
        found += range(first, last + 1)
    return tuple(sorted(set(found)))


class HostSection(BaseModel):
    """The section of a host."""

    model_config = ConfigDict(extra="forbid", strict=True)
    address: Annotated[str, Field(pattern=f"^({ADDRESS})$")] = ""
    python: Annotated[str, Field(pattern=f"^{WORD}$")] = ""
    config: Annotated[str, Field(pattern=f"^{WORD}$")] = ""
    cores: Annotated[tuple[int, ...], BeforeValidator(_cores)] = ()


class HostsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    launcher: str = ""
    host: dict[Annotated[str, Field(pattern=f"^{HOST_NAME}$")], HostSection] = {}


def choose(hosts: Path | None, launcher: str | None, address: str | None) -> tuple[Launcher, tuple[Host, ...]]:
    """The launcher of a run, and its hosts: the list, or else all that the launcher finds. Raises UsageError.

    hosts, launcher, address: the options of those names; at least one is given.
    """
    in_file, listed = read(hosts) if hosts else ("", ())
    if in_file and launcher and in_file != launcher:
        raise UsageError(f"{hosts} says launcher = {in_file!r}, and --launcher says {launcher}", hint="omit one")
    (name,) = choose_by_name("launcher", [launcher or in_file or "local"], LAUNCHERS)
    if address and name != "ray":
        raise UsageError("--address names a Ray cluster", hint="add --launcher ray, or omit it")
    _refuse_doubles(hosts, name, listed)
    chosen = LAUNCHERS[name](address or "auto")
    if not listed and name not in FIND_HOSTS:
        raise UsageError(f"the launcher {name} needs a list of hosts", hint="give one by --hosts FILE")
    return chosen, listed or FIND_HOSTS[name](address or "auto")


def read(path: Path) -> tuple[str, tuple[Host, ...]]:
    """The launcher that a file names, empty if it names none, and its hosts. Raises UsageError."""
    try:
        found = HostsFile.model_validate(read_toml(path, "the list of hosts", FORM))
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}", hint=FORM) from error
    return found.launcher, tuple(Host(name, **dict(section)) for name, section in found.host.items())


def _refuse_doubles(path: Path | None, launcher: str, hosts: tuple[Host, ...]) -> None:
    """Two agents on one machine would be two hosts of the result, and each would measure the other's work."""
    names: dict[str, str] = {}
    for host in hosts:
        if launcher == "local":
            if host.address:
                raise UsageError(f"{path}: [host.{host.name}] address: the launcher local starts all agents here")
            continue
        address = (host.address or host.name).rpartition("@")[2].lower()
        if address in names:
            raise UsageError(f"{path}: the hosts {names[address]} and {host.name} have the same address")
        names[address] = host.name
