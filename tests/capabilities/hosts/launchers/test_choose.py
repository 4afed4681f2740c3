"""hosts.toml and the options that choose how a run reaches its hosts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mixmark.harness.capabilities.hosts.launchers import Host, Launcher, choose
from mixmark.harness.contracts.errors import UsageError

RACK = """
launcher = "ssh"

[host.rack1]
address = "bench@rack1"
python = "/opt/venv/bin/python"
config = "/etc/mixmark.toml"
cores = "0-3, 8,10-11"

[host.rack2]
"""


def file(folder: Path, content: str | bytes) -> Path:
    path = folder / "hosts.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def words(launcher: Launcher, host: Host) -> list[str]:
    """The command line that starts a host's agent, with the name of its program in place of the path."""
    assert isinstance(launcher, partial)
    program, *rest = launcher.keywords["command_of"](host)
    return [Path(program).name, *rest]


def test_a_list_of_hosts_is_read(tmp_path: Path) -> None:
    launcher, hosts = choose.choose(file(tmp_path, RACK), None, None)
    assert words(launcher, hosts[1])[:2] == ["ssh", "-T"]
    assert hosts == (
        Host("rack1", "bench@rack1", "/opt/venv/bin/python", "/etc/mixmark.toml", (0, 1, 2, 3, 8, 10, 11)),
        Host("rack2"),
    )


@pytest.mark.parametrize(("mark", "program"), [("hosts", "ssh"), ("local", "python")])
def test_the_lists_of_the_page_are_read(tmp_path: Path, mark: str, program: str) -> None:
    page = (Path(__file__).parents[4] / "docs" / "capabilities" / "hosts.md").read_text("utf-8")
    block = page.split(f"<!-- {mark} -->\n```toml\n")[1].split("```")[0]
    found, hosts = choose.choose(file(tmp_path, block), None, None)
    assert words(found, hosts[0])[0].startswith(program) and len(hosts) == 2
    assert all(f"| `{key}` |" in page for key in choose.KEYS)


def test_without_a_launcher_agents_are_started_here(tmp_path: Path) -> None:
    launcher, hosts = choose.choose(file(tmp_path, "[host.host1]\n[host.host2]"), None, None)
    assert words(launcher, hosts[0])[0].startswith("python")
    assert [host.name for host in hosts] == ["host1", "host2"]


@pytest.mark.parametrize(
    "address", ["rack1", "bench@rack1.lab", "10.0.0.7", "fe80::1", "bench@2001:db8::7", "_gateway"]
)
def test_an_address_is_a_name_or_a_number_with_a_user_or_without(tmp_path: Path, address: str) -> None:
    path = file(tmp_path, f'launcher = "ssh"\n[host.a]\naddress = "{address}"')
    assert choose.choose(path, "ssh", None)[1][0].address == address


@pytest.mark.parametrize(
    "address",
    [
        *(
            "-oProxyCommand=date",
            "bench@-rack1",
            "rack1;date",
            "$(date)",
            "`date`",
            "rack1 date",
            "a|b",
            "a&b",
            "rack1:22",
        ),
        *("a'b", "a@b@c", "@rack1", "bench@", "ssh://rack1", "../rack1", "räck", "rack1/", "a\\\\b", "*"),
    ],
)
def test_an_address_that_a_program_could_take_for_more_is_refused(tmp_path: Path, address: str) -> None:
    path = file(tmp_path, f'launcher = "ssh"\n[host.a]\naddress = "{address}"')
    with pytest.raises(UsageError, match=r"\[host\.a\] address = "):
        choose.choose(path, None, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[host.a]\nkey = 'x'", r"\[host.a\] has key, which Mixmark does not know"),
        ("[host.a]\ncores = 4", r"\[host.a\] must be a section of strings"),
        ("[host.a.b]\npython = 'x'", r"\[host.a\] must be a section of strings"),
        ("launcher = 'ssh'\nhost = 'rack1'", "is no list of hosts"),
        ("[host]\nrack1 = 'bench@rack1'", r"\[host.rack1\] must be a section of strings"),
        ("launcher = 4", "is no list of hosts"),
        ("hosts = ['a']", "has hosts, which Mixmark does not know"),
        ("launcher = 'shh'\n[host.a]", "there is no launcher 'shh'"),
        ("launcher = 'ssh'", "the launcher ssh needs a list of hosts"),
        ("", "the launcher local needs a list of hosts"),
        ("[host.Rack1]", r"\[host.Rack1\] is no name of a host"),
        ("[host.'a/b']", "is no name of a host"),
        ("[host.'a;date']", "is no name of a host"),
        (f"[host.{'a' * 33}]", "is no name of a host"),
        ("[host.a]\n[host.a]", "cannot read the list of hosts"),
        ("[host.a]\npython = '-c'", "python = '-c' is empty, begins with a dash"),
        ("[host.a]\npython = ''", "python = '' is empty"),
        ('[host.a]\nconfig = "a\\nb"', "or has a control character"),
        *(
            (f"[host.a]\ncores = '{cores}'", "no list of hardware threads")
            for cores in ("3-1", "all", "1,", "99999", "0--1")
        ),
        ("[host.a]\ncores = '0-3,2'", "names a hardware thread twice"),
        ("[host.a]\naddress = 'rack1'", "the launcher local starts all agents here"),
        ("launcher = 'ssh'\n[host.a]\naddress = 'u@c'\n[host.b]\naddress = 'v@C'", "a and b have the same address"),
        ("launcher = 'ssh'\n[host.a]\naddress = 'b'\n[host.b]", "a and b have the same address"),
        ("not toml", "cannot read the list of hosts"),
        (b"\xff", "cannot read the list of hosts"),
    ],
)
def test_what_is_no_list_of_hosts_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose.choose(file(tmp_path, content), None, None)


def test_an_address_is_asked_of_ray_alone_and_a_node_may_be_any(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--address names a Ray cluster"):
        choose.choose(file(tmp_path, RACK), None, "auto")
    launcher, hosts = choose.choose(file(tmp_path, "[host.a]\n[host.b]"), "ray", "10.0.0.7:6379")
    assert isinstance(launcher, partial) and launcher.keywords == {"address": "10.0.0.7:6379"}
    assert hosts == (Host("a"), Host("b"))


def test_a_file_that_is_not_there_and_a_second_opinion_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the list of hosts"):
        choose.choose(tmp_path / "none.toml", None, None)
    with pytest.raises(UsageError, match="says launcher = 'ssh', and --launcher says local"):
        choose.choose(file(tmp_path, RACK), "local", None)
