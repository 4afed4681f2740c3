"""The ids of GPUs, on files as Linux has them and a stand-in for NVIDIA's library."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.adapters import devices as adapter_devices
from mixmark.harness.adapters.devices import gpu_id


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(adapter_devices, "SYSFS", tmp_path)
    return tmp_path


def plug_in(bus: Path, address: str, **files: str) -> None:
    (bus / address).mkdir()
    for name, text in files.items():
        (bus / address / name).write_text(f"{text}\n")


def test_nvidias_uuid_is_that_of_nvml(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    plug_in(bus, "0000:01:00.0", vendor="0x10de")
    assert gpu_id("0000:01:00.0", "gpu:ggml0") == "gpu:ggml0", "without a driver nothing tells it"
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByPciBusId", {b"0000:01:00.0": "handle"}.__getitem__)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", {"handle": "GPU-5d1cae40"}.__getitem__)
    assert gpu_id("0000:01:00.0", "gpu:ggml0") == "gpu:GPU-5d1cae40"


def test_intels_uuid_holds_its_model_and_its_address(bus: Path) -> None:
    plug_in(bus, "0000:0a:1f.2", vendor="0x8086", device="0x56a0", revision="0x08")
    assert gpu_id("0000:0A:1f.2", "gpu:webgpu0") == "gpu:GPU-8680a056-0800-0000-0a1f-020000000000"


@pytest.mark.parametrize("files", [{}, {"vendor": "0x1ed5"}, {"vendor": "0x1002"}, {"vendor": "one"}])
def test_a_gpu_that_nothing_identifies_keeps_its_number(bus: Path, files: dict[str, str]) -> None:
    plug_in(bus, "0000:01:00.0", **files)
    assert gpu_id("0000:01:00.0", "gpu:webgpu0") == "gpu:webgpu0"
