"""What a run keeps of power caps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mixmark.harness.contracts.schema import Fact
from mixmark.harness.plugins.experiments import Facts

SLACK = 0.01
"""The fraction of a limit by which a driver may miss it: drivers round to steps of an eighth of a watt and more."""


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


class Capped(Fact):
    """The power limits of a phase."""

    cap: float = Field(gt=0, lt=1)
    """A fraction of the limits before the run."""


FACTS = Facts(of_run=Caps, of_phase=Capped)
