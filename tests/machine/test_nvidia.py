from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mixmark.harness.contracts.schema import PROTECTIVE, AcceleratorConditions
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.machine.counters import MachineCounters
from mixmark.harness.plugins import registry
from tests.machine.nvml import GPU, FakeNvml
from tests.machine.test_counters import CHILD, WORKER, process, quiet, write

NVIDIA = {"nvidia": registry.find("watchers")["nvidia"]}


def seen(monkeypatch: pytest.MonkeyPatch, root: Path, nvml: object) -> tuple[AcceleratorConditions, ...]:
    """What a reading of a machine on which process 99 is not ours tells of its GPUs."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    write(quiet(root), process(99, (0, 0, 0, 0)))
    with Accelerators(NVIDIA) as accelerators:
        found = MachineCounters([WORKER], root, accelerators=accelerators).read().accelerators
    assert accelerators.absent == ()
    return found


def test_a_gpu_tells_its_state_and_its_company(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvml = FakeNvml([CHILD, 99, os.getpid()])
    assert seen(monkeypatch, tmp_path, nvml) == (
        AcceleratorConditions(
            id="gpu:GPU-1",
            reasons=("power cap", "thermal protection"),
            clock_mhz=1700,
            temperature_c=66,
            power_cap_mw=None,  # the driver does not support the question
            foreign_pids=(99,),
            own_processes_listed=True,
            utilization_pct=37,
        ),
    )
    assert nvml.closed == 1


@pytest.mark.parametrize(
    ("pids", "own", "foreign"),
    [
        ([CHILD, 99], True, (99,)),
        ([99], False, (99,)),
        ([CHILD, 12345], None, None),  # 12345 is no process here: the driver counts in another namespace
        ([12345], None, None),
        ([], None, ()),  # the driver lists nobody
    ],
)
def test_a_gpu_tells_whether_it_works_for_us(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pids: list[int], own: bool | None, foreign: tuple[int, ...] | None
) -> None:
    [gpu] = seen(monkeypatch, tmp_path, FakeNvml(pids))
    assert (gpu.own_processes_listed, gpu.foreign_pids) == (own, foreign)


BITS = (
    "0x00|0x01 idle|0x02 clock setting|0x04 power cap|0x08 hardware protection|0x10 synchronised clocks|"
    "0x20 thermal limit|0x40 thermal protection|0x80 power supply protection|0x100 clock setting|0x102 clock setting"
    "|0x200"
)


@pytest.mark.parametrize("row", BITS.split("|"))
def test_each_bit_of_nvml_h_is_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: str) -> None:
    word, _, reason = row.partition(" ")
    nvml = FakeNvml(answers=GPU | {"nvmlDeviceGetCurrentClocksThrottleReasons": int(word, 16)})
    [gpu] = seen(monkeypatch, tmp_path, nvml)
    assert gpu.reasons == ((reason,) if reason else ())
    assert any(each in PROTECTIVE for each in gpu.reasons) == bool(int(word, 16) & 0xE8)  # nvml.h: heat or supply


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seen(monkeypatch, tmp_path, FakeNvml(driver=False)) == ()


def test_a_gpu_discloses_what_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terse = {"nvmlDeviceGetName": "Acme\x1b[0m Topaz", "nvmlSystemGetCudaDriverVersion": 12040}
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(answers=terse))
    with Accelerators(NVIDIA) as accelerators:
        assert accelerators.disclose() == ({"name": "Acme Topaz", "cuda": "12.4"},)
        assert accelerators.checks() == ()
        assert accelerators.read(set(), tmp_path) == ()  # it has no id, so it is no device
    assert accelerators.absent == ()
