"""hosts.toml and the options that choose how a run reaches its hosts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mixmark.harness.capabilities.hosts.launchers import Host, Launcher, choose
from mixmark.harness.contracts.errors import UsageError

ADDRESSED = 'launcher = "ssh"\n[host.a]\naddress = "{}"'
NO_ADDRESSES = (
    *("-oProxyCommand=date", "bench@-rack1", "rack1;date", "$(date)", "`date`", "rack1 date", "a|b", "a&b", "rack1:22"),
    *("a'b", "a@b@c", "@rack1", "bench@", "ssh://rack1", "../rack1", "räck", "rack1/", "a\\\\b", "*"),
)
"""A program could take each of these for more than an address."""


def file(folder: Path, content: str | bytes) -> Path:
    path = folder / "hosts.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def words(launcher: Launcher, host: Host) -> list[str]:
    """The command line that starts a host's agent, with the name of its program in place of the path."""
    assert isinstance(launcher, partial)
    program, *rest = launcher.keywords["command_of"](host)
    return [Path(program).name, *rest]


def test_the_lists_of_the_page_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "capabilities" / "hosts.md").read_text("utf-8")
    assert all(f"| `{key}` |" in page for key in choose.KEYS)
    blocks = (page.split(f"<!-- {mark} -->\n```toml\n")[1].split("```")[0] for mark in ("hosts", "local"))
    (ssh, racks), (local, both) = (choose.choose(file(tmp_path, block), None, None) for block in blocks)
    assert words(ssh, racks[1])[:2] == ["ssh", "-T"]
    rack1 = Host("rack1", "bench@rack1", "/opt/venv/bin/python", "/etc/mixmark.toml", tuple(range(16)))
    assert racks == (rack1, Host("rack2"))
    assert words(local, both[0])[0].startswith("python"), "agents are started here unless a launcher is named"
    assert both == (Host("host1", cores=(0,)), Host("host2", cores=(1,)))


@pytest.mark.parametrize("cores", ["0-3, 8,10-11", "8,0-3,10-11"])
def test_hardware_threads_are_listed_by_ranges(tmp_path: Path, cores: str) -> None:
    (host,) = choose.choose(file(tmp_path, f"[host.a]\ncores = '{cores}'"), None, None)[1]
    assert sorted(host.cores) == [0, 1, 2, 3, 8, 10, 11]


@pytest.mark.parametrize(
    "address", ["rack1", "bench@rack1.lab", "10.0.0.7", "fe80::1", "bench@2001:db8::7", "_gateway"]
)
def test_an_address_is_a_name_or_a_number_with_a_user_or_without(tmp_path: Path, address: str) -> None:
    assert choose.choose(file(tmp_path, ADDRESSED.format(address)), "ssh", None)[1][0].address == address


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[host.a]\nkey = 'x'", "host.a.key: Extra inputs"),
        ("[host]\nrack1 = 'bench@rack1'", "host.rack1: Input should be"),
        ("launcher = 4", "launcher: Input should be"),
        ("hosts = ['a']", "hosts: Extra inputs"),
        ("launcher = 'shh'\n[host.a]", "there is no launcher 'shh'"),
        ("launcher = 'ssh'", "the launcher ssh needs a list of hosts"),
        ("", "the launcher local needs a list of hosts"),
        *((f"[host.{name}]", "should match pattern") for name in ("Rack1", "'a/b'", "'a;date'", "a" * 33)),
        ("[host.a]\n[host.a]", "cannot read the list of hosts"),
        ("[host.a]\npython = '-c'", "host.a.python: .* should match"),
        ("[host.a]\npython = ''", "host.a.python: .* should match"),
        ('[host.a]\nconfig = "a\\nb"', "host.a.config: .* should match"),
        *((ADDRESSED.format(address), "host.a.address: .* should match") for address in NO_ADDRESSES),
        *(
            (f"[host.a]\ncores = '{cores}'", "no list of hardware threads")
            for cores in ("3-1", "all", "1,", "99999", "0--1")
        ),
        ("[host.a]\naddress = 'rack1'", "the launcher local starts all agents here"),
        ("launcher = 'ssh'\n[host.a]\naddress = 'u@c'\n[host.b]\naddress = 'v@C'", "a and b have the same address"),
        ("launcher = 'ssh'\n[host.a]\naddress = 'b'\n[host.b]", "a and b have the same address"),
        (b"\xff", "cannot read the list of hosts"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose.choose(file(tmp_path, content), None, None)


def test_an_address_is_asked_of_ray_alone(tmp_path: Path) -> None:
    path = file(tmp_path, "[host.a]")
    with pytest.raises(UsageError, match="--address names a Ray cluster"):
        choose.choose(path, None, "auto")
    launcher, hosts = choose.choose(path, "ray", "10.0.0.7:6379")
    assert "10.0.0.7:6379" in words(launcher, hosts[0])


def test_a_file_that_is_not_there_and_a_second_opinion_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the list of hosts"):
        choose.choose(tmp_path / "none.toml", None, None)
    with pytest.raises(UsageError, match="says launcher = 'ssh', and --launcher says local"):
        choose.choose(file(tmp_path, ADDRESSED.format("rack1")), "local", None)
