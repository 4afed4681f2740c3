"""Reads prices, and devices that nobody measured, for the planner from a user's TOML file. Published results have no
prices.

currency = "EUR"

["Acme Topaz"]
price = 1200
watts = 300

["Acme Opal"]
source = "a datasheet"
gb_per_s = 1000
tflops = { bf16 = 200 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from mixmark.harness.capabilities.plan.machine import Kind
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Fact, Precision
from mixmark.harness.contracts.toml import read_toml
from mixmark.harness.plan.mixes import words_of

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DATASHEETS = Path(__file__).with_name("datasheets.toml")
GIGA = 1e9


class Declared(Fact):
    """The figures of a kind of device that the user declares. None if not declared."""

    price: Amount | None = None
    watts: Amount | None = None
    """The power at full load, for a machine without a meter."""
    idle_watts: Amount | None = None
    """The power at rest. None if it is as at full load."""
    slots: int | None = Field(default=None, ge=0)
    """The number of accelerators that fit into a host. None for as many as it was measured with."""
    source: str | None = Field(default=None, min_length=1, max_length=300)
    """Where the figures are from. A device that nobody measured must have it."""
    is_host: bool = False
    """Whether a device that nobody measured is a host, and not an accelerator for one."""
    memory_gb: Amount | None = None
    gb_per_s: Positive | None = None
    """The bandwidth of its memory."""
    tflops: Mapping[Precision, Positive] = Field(default_factory=dict)
    """The peak of each precision, without sparsity."""
    rates: Mapping[str, Positive] = Field(default_factory=dict)
    """The units per second of a suite."""

    @property
    def assumes(self) -> bool:
        """Whether the figures describe a device without a measurement."""
        return bool(self.rates or self.tflops)


def datasheets() -> dict[str, Declared]:
    """The public datasheets that Mixmark ships, by the name of the device."""
    content = tomllib.loads(DATASHEETS.read_text("utf-8"))
    return {name: Declared.model_validate(table) for name, table in content.items()}


class Prices(Fact):
    """The file of prices."""

    currency: str = Field(default="", pattern="^([A-Z]{3})?$")
    """The currency of every price. Empty if none is named."""
    devices: Mapping[str, Declared] = Field(default_factory=dict)


def load(path: Path) -> Prices:
    """Reads the figures of each kind, and their currency."""
    content = read_toml(path, "the prices", "docs/capabilities/plan/plan.md shows such a file")
    currency = {"currency": content.pop("currency")} if "currency" in content else {}
    try:
        return Prices.model_validate({**currency, "devices": content})
    except ValidationError as error:
        hint = "docs/capabilities/plan/plan.md lists the figures, such as tflops = { bf16 = 165 }"
        raise UsageError(f"{path}: {words_of(error)}", hint) from error


def declare(kinds: Iterable[Kind], declared: Mapping[str, Declared]) -> list[Kind]:
    """The kinds with the declared figures. Raises UsageError for watts of a measured kind."""
    return [_declared(kind, declared[kind.unmarked]) if kind.unmarked in declared else kind for kind in kinds]


def _declared(kind: Kind, own: Declared) -> Kind:
    found = replace(
        kind,
        price=kind.price if own.price is None else own.price,
        slots=kind.slots if own.slots is None else own.slots,
        declared=kind.declared | (own.model_fields_set & {"price", "watts", "idle_watts", "slots"}),
    )
    if own.watts is None:
        return found
    if kind.has_watts:
        raise UsageError(f"the watts of {kind.name} are measured", "do not declare them")
    idle = own.watts if own.idle_watts is None else own.idle_watts
    speeds = tuple(replace(speed, extra_watts=max(0.0, own.watts - idle)) for speed in kind.speeds)
    return replace(found, idle_watts=idle, speeds=speeds)
