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

from mixmark.harness.capabilities.hosts.launchers import Host, Launcher
from mixmark.harness.capabilities.hosts.launchers.process import allocated, local, nodes, ray, slurm, ssh
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.schema import HOST_NAME
from mixmark.harness.contracts.toml import read_toml

ADDRESS = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*@)?([A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)")
"""A name, an IPv4 or an IPv6 address, with a user or without: no option, and nothing that a shell reads."""
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
    content = read_toml(path, "the list of hosts", FORM)
    if unknown := set(content) - {"launcher", "host"}:
        raise UsageError(f"{path} has {', '.join(sorted(unknown))}, which Mixmark does not know", hint=FORM)
    launcher, sections = content.get("launcher", ""), content.get("host", {})
    if not isinstance(launcher, str) or not isinstance(sections, dict):
        raise UsageError(f"{path} is no list of hosts", hint=FORM)
    return launcher, tuple(_host(path, name, section) for name, section in sections.items())


def _host(path: Path, name: str, section: object) -> Host:
    where = f"{path}: [host.{name}]"
    if not re.fullmatch(HOST_NAME, name):
        raise UsageError(f"{where} is no name of a host", hint="use up to 32 small letters, digits and dashes")
    if not isinstance(section, dict) or not all(isinstance(value, str) for value in section.values()):
        raise UsageError(f"{where} must be a section of strings", hint=FORM)
    if unknown := set(section) - set(KEYS):
        raise UsageError(f"{where} has {', '.join(sorted(unknown))}, which Mixmark does not know", hint=FORM)
    for key, value in section.items():
        if not value or value.startswith("-") or not value.isprintable():
            raise UsageError(f"{where} {key} = {value!r} is empty, begins with a dash or has a control character")
    address = section.get("address", "")
    if address and not ADDRESS.fullmatch(address):
        raise UsageError(
            f"{where} address = {address!r} is no address",
            hint="give machine or user@machine; a port and a key belong in your ssh configuration",
        )
    cores = _cores(f"{where} cores", section["cores"]) if "cores" in section else ()
    return Host(name, address, section.get("python", ""), section.get("config", ""), cores)


def _cores(where: str, text: str) -> tuple[int, ...]:
    """The hardware threads of a list such as 0-15,32-47."""
    found: list[int] = []
    for part in text.split(","):
        span = SPAN.fullmatch(part.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (1, 0)
        if last < first or last > LAST_CORE:
            raise UsageError(f"{where} = {text!r} is no list of hardware threads", hint='give one such as "0-15,32-47"')
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise UsageError(f"{where} = {text!r} names a hardware thread twice")
    return tuple(found)


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
