"""A vendor's watcher can fail in every way, and costs no more than its own accelerators."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.contracts.protocols import Check
from mixmark.harness.contracts.schema import AcceleratorConditions
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.plugins.registry import Plugin
from tests.fakes.watchers import ID

pytestmark = pytest.mark.usefixtures("in_process")
WELL = AcceleratorConditions(id=ID, reasons=("power cap",), clock_mhz=900, foreign_pids=())


def found(*names: str) -> dict[str, Plugin]:
    return {name.lower(): Plugin("watchers", name.lower(), f"tests.fakes.watchers:{name}", "test") for name in names}


def test_a_watcher_is_asked_for_facts_states_and_checks(tmp_path: Path) -> None:
    with Accelerators(found("Onyx")) as accelerators:
        assert accelerators.disclose() == ({"id": ID, "name": "Onyx"},)
        assert accelerators.read(set(), tmp_path) == (WELL,)
        assert accelerators.checks() == (Check("npu Onyx fan", "warn", "off", "onyxctl fan on"),)
    assert accelerators.absent == ()


@pytest.mark.usefixtures("jumping_clock")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Unbuilt", "OSError: libonyx.so: cannot open shared object file"),
        ("Raising", "RuntimeError: the driver is gone"),
        ("Leaving", "SystemExit: onyx: licence expired"),
        ("Hanging", "TimeoutError: the watcher took longer than 5 s"),
        ("Babbling", "ValidationError: 1 validation error for AcceleratorConditions"),
        ("Nothing", "watcher nothing (tests.fakes.watchers:Nothing) does not load: AttributeError"),
    ],
)
def test_a_watcher_that_fails_is_left_out_and_told_once(tmp_path: Path, name: str, reason: str) -> None:
    with Accelerators(found(name, "Onyx"), read_s=5) as accelerators:
        states = [accelerators.read(set(), tmp_path) for _ in range(4)]
        [absent] = accelerators.absent
    assert states[-1] == (WELL,)  # the one beside it goes on
    assert absent.label == f"watcher {name.lower()}"
    assert absent.reason.startswith(reason)
    assert accelerators.absent == (absent,)


def test_a_watcher_that_does_not_close_is_told() -> None:
    with Accelerators(found("Closing")) as accelerators:
        assert not accelerators.absent
    assert [each.reason for each in accelerators.absent] == ["RuntimeError: it does not close"]
