"""The power limits that a run may lower: of processors by Linux powercap, of NVIDIA GPUs by NVML.

A processor's limit is the long-term limit of each package, /sys/class/powercap/intel-rapl:*/constraint_*_power_limit_uw
(docs.kernel.org/power/powercap/powercap.html). A GPU's limit is set by nvmlDeviceSetPowerManagementLimit
(docs.nvidia.com/deploy/nvml-api). Both were written from the documentation and tested on made-up files and a fake
library, never on real limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from mixmark.harness.capabilities.caps.facts import PowerLimit
from mixmark.harness.meters.common import read_integer

ROOT = Path("/")


class Limiter(Protocol):
    """Reads and sets the power limits of devices. All methods but `limits` raise OSError."""

    def limits(self, devices: Iterable[str]) -> Iterable[PowerLimit]:
        """The power limits of devices, by their ids. The id of a limit begins with the limiter's name and a slash, and
        is the id of the domain that meters it, or the begin of it."""

    def read(self, id: str) -> float:
        """The limit in force, in watts."""

    def write(self, id: str, watts: float) -> None:
        """Sets the limit. `power_caps` reads it back."""


class Packages:
    """root: the root of the file system; tests give another one."""

    def __init__(self, root: Path = ROOT) -> None:
        self._zones = root / "sys/class/powercap"

    def limits(self, devices: Iterable[str]) -> Iterator[PowerLimit]:
        """The limits of the packages, if the CPU is among the devices and the kernel enforces the limits."""
        for zone in sorted(self._zones.glob("intel-rapl:*")) if any(id.startswith("cpu") for id in devices) else ():
            with suppress(OSError, ValueError):
                enforced = (zone / "enabled").read_text("ascii").strip() == "1"
                if enforced and (zone / "name").read_text("ascii").startswith("package-"):
                    yield PowerLimit(id=f"rapl/{zone.name}", watts=self.read(f"rapl/{zone.name}"))

    def read(self, id: str) -> float:
        return read_integer(self._file(id)) / 1e6

    def write(self, id: str, watts: float) -> None:
        self._file(id).write_text(f"{round(watts * 1e6)}\n", "ascii")

    def _file(self, id: str) -> Path:
        """The file of a package's long-term limit. Raises OSError if there is none."""
        for name in sorted((self._zones / Path(id).name).glob("constraint_*_name")):
            if name.read_text("ascii").strip() == "long_term":
                return name.with_name(name.name.replace("_name", "_power_limit_uw"))
        raise OSError(f"{id} has no long-term limit")


class Gpus:
    def limits(self, devices: Iterable[str]) -> Iterator[PowerLimit]:
        """The limits of NVIDIA's GPUs among the devices. A MIG slice has no limit."""
        for uuid in (id.removeprefix("gpu:") for id in devices if id.startswith("gpu:")):
            with suppress(OSError, ImportError):
                with _opened(uuid) as (nvml, handle):
                    least_mw, _ = nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
                yield PowerLimit(id=f"nvml/{uuid}", watts=self.read(f"nvml/{uuid}"), least_watts=least_mw / 1e3)

    def read(self, id: str) -> float:
        with _opened(id) as (nvml, handle):
            return float(nvml.nvmlDeviceGetPowerManagementLimit(handle)) / 1e3

    def write(self, id: str, watts: float) -> None:
        with _opened(id) as (nvml, handle):
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(watts * 1e3))


@contextmanager
def _opened(id: str) -> Iterator[tuple[Any, Any]]:
    """The library and the handle of a GPU. The library's errors become OSError."""
    import pynvml as nvml  # imported here, because only runs with a cap need it

    try:
        nvml.nvmlInit()
        yield nvml, nvml.nvmlDeviceGetHandleByUUID(id.removeprefix("nvml/"))
    except nvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error
