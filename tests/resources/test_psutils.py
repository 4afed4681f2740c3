"""A machine that lacks what psutil reads: the answer is unknown, and nothing ends."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from mixmark.harness.machine import other_load, power_supply
from mixmark.harness.measure import phase
from mixmark.harness.resources import memory
from mixmark.harness.resources.files import ROOT
from mixmark.harness.resources.psutils import known
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.process import orphans

ODD = [
    RuntimeError("line 'btime' not found in /proc/stat"),
    FileNotFoundError(2, "No such file or directory", "/sys/class/power_supply"),
    PermissionError(13, "Permission denied", "/proc/stat"),
    KeyError(b"MemTotal:"),
    AttributeError("module 'psutil' has no attribute 'sensors_battery'"),
    psutil.AccessDenied(1),
]


@pytest.fixture(params=ODD, ids=lambda error: type(error).__name__)
def odd(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which psutil raises."""

    def fails(*_: Any, **__: Any) -> Any:
        raise request.param

    for name in ("virtual_memory", "sensors_battery", "process_iter"):
        monkeypatch.setattr(psutil, name, fails)
    for name in ("create_time", "children", "parents", "ppid", "name"):
        monkeypatch.setattr(psutil.Process, name, fails)


@pytest.mark.usefixtures("odd")
def test_what_psutil_cannot_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "table", lambda path: {})
    assert memory.installed_bytes(ROOT) is None
    assert memory.available_bytes(tmp_path) > 0, "the C library knows"
    monkeypatch.setattr(power_supply, "SUPPLIES", "sys/none")
    assert power_supply.source() is None
    assert other_load.processes() == {}


@pytest.mark.usefixtures("odd")
def test_a_worker_ends_although_its_processes_cannot_be_read() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
    orphans.start(lambda: process.pid)
    assert orphans.end(process.pid, process.kill, [process.pid]) == ()
    assert process.wait() == -9
    with pytest.raises(WorkerFailed, match="there is no such process"):
        phase._check_helpers([4_000_000])


def test_what_is_known_is_the_answer() -> None:
    assert known(lambda: 3, math.nan) == 3
    with pytest.raises(ZeroDivisionError):
        known(lambda: 1 // 0, 0)
