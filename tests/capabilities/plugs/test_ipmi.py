"""ipmitool is a script of ours that answers as the real one does; no controller was ever here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mixmark.harness.capabilities.plugs.ipmi import Ipmi
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Domain
from tests.capabilities.plugs.servers import CPU, gathered

READING = """
    Instantaneous power reading:                   {watts}
    Minimum during sampling period:                108 Watts
    Maximum during sampling period:                469 Watts
    Average power reading over sample period:      220 Watts
    IPMI timestamp:                           Sat Nov 21 05:00:00 2026
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   {state}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A root with a controller's device, and an ipmitool that says so."""

    def build(watts: str = "231 Watts", state: str = "activated", status: int = 0, error: str = "") -> Path:
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev/ipmi0").touch()
        tool = tmp_path / "bin/ipmitool"
        tool.parent.mkdir(exist_ok=True)
        said = READING.format(watts=watts, state=state) if not error else ""
        tool.write_text(f"#!/bin/sh\ncat <<'EOF'\n{said}\nEOF\necho '{error}' >&2\nexit {status}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return build


def refused(root: Path) -> str:
    (absent,) = Ipmi({}, root).domains([CPU])
    assert isinstance(absent, Absent)
    return absent.reason


@pytest.mark.parametrize(
    ("watts", "state", "value"),
    [
        ("231 Watts", "activated", 231),
        ("319 W", "activated", 319),
        ("319.5 Watts", "activated", 319.5),
        ("319 Watts", "deactivated", 319),  # some controllers say so for ever
        ("319 Watts Minimum during sampling period: 108 Watts", "activated", 319),
    ],
)
def test_each_dialect_gives_the_watts_of_the_node(
    machine: Callable[..., Path], watts: str, state: str, value: float
) -> None:
    meter = Ipmi({}, machine(watts, state))
    (domain,) = meter.domains([CPU])
    assert isinstance(domain, Domain), domain
    assert (domain.boundary, domain.quantity, domain.covers) == ("node", "power", ("cpu:0", "memory", "node"))
    assert gathered(lambda: meter.read(domain)) == [Sample(value)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"watts": "0 Watts"}, "0 W: try sudo ipmitool dcmi power activate"),
        ({"watts": "319,5 Watts"}, "not in watts: '319,5 Watts'"),
        ({"status": 1, "error": "DCMI request failed because: Invalid command (c1)"}, "try the meter redfish"),
        ({"status": 1, "error": "Could not open device"}, "ipmitool: Could not open device"),
    ],
)
def test_a_controller_without_a_power_reading_says_why(
    machine: Callable[..., Path], answer: dict[str, object], reason: str
) -> None:
    assert reason in refused(machine(**answer))


def test_what_is_missing_is_said_with_its_command(
    machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "modprobe ipmi_si" in refused(tmp_path / "nowhere")
    root = machine()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "apt install ipmitool" in refused(root)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "setfacl" in refused(root)


def test_a_tool_that_hangs_is_given_up(machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine()
    (root / "bin/ipmitool").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr("mixmark.harness.capabilities.plugs.ipmi.PATIENCE_S", 0.05)
    assert "did not answer" in refused(root)


def test_it_takes_no_options() -> None:
    with pytest.raises(UsageError, match="host"):
        Ipmi({"host": "bmc"})
