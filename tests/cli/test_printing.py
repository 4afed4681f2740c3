"""What commands print of what is not there."""

from __future__ import annotations

import pytest

from mixmark.harness.cli.printing import print_absent
from mixmark.harness.contracts.schema import Absent


def test_what_several_hosts_lack_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [f"host{number}" for number in range(1, 101)]
    absent = [Absent(kind="meter", name=f"{host}/rapl", reason="no such file") for host in hosts]
    absent += [Absent(kind="device", name="host7/gpu:0", reason="out of memory")]
    absent += [Absent(kind="meter", name="plug", reason="no such file")]
    print_absent(absent)
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Not available:",
        "  meter host1/rapl, and on 99 more hosts: no such file",
        "  host7/gpu:0: out of memory",
        "  meter plug: no such file",
    ]
