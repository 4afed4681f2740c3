"""What a run keeps of power caps, and what a vendor's limiter does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Protocol

from pydantic import Field

from mixmark.harness.contracts.schema import Fact
from mixmark.harness.plugins.registry import PluginKind
from mixmark.harness.worker.messages import PluginCalls
from mixmark.harness.worker.services import PluginService


class PowerLimit(Fact):
    """A power limit of a device or its driver, which a run may lower."""

    id: str
    """`rapl/intel-rapl:0`, the domain that meters the same package, or `nvml/<UUID>`, whose domains begin with it."""
    watts: float = Field(gt=0)
    """The limit before the run. A cap is a fraction of it, and the run never exceeds it."""
    least_watts: float = Field(default=0.0, ge=0)
    """The lowest limit that the driver accepts; 0 if the driver does not report it."""


class Caps(Fact):
    """The power limits of a run's devices, and what they are lowered to."""

    caps: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = ()
    """Fractions of the limits."""
    limits: tuple[PowerLimit, ...] = ()
    witnesses: tuple[str, ...] = ()
    """The meters that are of no package whose limiter sets one of the limits: what they read is not its word."""


class Capped(Fact):
    """The power limits of a phase."""

    cap: float = Field(gt=0, lt=1)
    """A fraction of the limits before the run."""


class Limiter(Protocol):
    """Reads and sets the power limits of a vendor's devices, for `mixmark run --power-cap`. The class is called without
    arguments. All methods but `limits` raise OSError, and each may take 10 seconds."""

    name: str

    def limits(self, devices: Iterable[str]) -> Iterable[PowerLimit]:
        """The power limits of devices, by their ids. The id of a limit begins with the limiter's name and a slash."""

    def read(self, id: str) -> float:
        """The limit in force, in watts."""

    def write(self, id: str, watts: float) -> None:
        """Sets the limit. The harness reads it back."""


class LimiterCalls(PluginCalls, Limiter, Protocol):
    """The calls of a limiter's process."""


KIND = PluginKind(("name", "limits", "read", "write"), LimiterCalls, PluginService)
