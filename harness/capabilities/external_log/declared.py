"""What the owner of a meter declares in its section of mixmark.toml, whatever the meter is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Boundary, Device, Domain
from mixmark.harness.meters.common import all_ids, domain_of

OPTIONS = ("name", "boundary", "covers", "accuracy")


@dataclass(frozen=True)
class Declared:
    """What a meter covers, and how well."""

    id: str
    boundary: Boundary = "node"
    covers: tuple[str, ...] = ()
    """Empty if it covers all devices."""
    accuracy: float | None = None

    def domain(
        self,
        devices: Iterable[Device],
        quantity: Literal["power", "energy"],
        source: str,
        method: Literal["integrated", "external"] = "external",
    ) -> Domain:
        covers = self.covers or all_ids(devices)
        return domain_of(self.id, covers, quantity, source, self.boundary, method=method, accuracy=self.accuracy)


def declared(meter: str, options: Mapping[str, str], boundaries: Iterable[Boundary]) -> Declared:
    """What a section declares. boundaries: those that the meter may have, the default first. Raises UsageError."""
    default, *others = boundaries
    covers = tuple(filter(None, options.get("covers", "").replace(" ", "").split(",")))
    boundary = cast(Boundary, choice_option(meter, options, "boundary", (default, *others)) or default)
    if boundary == "devices" and not covers:
        raise UsageError(f"the meter {meter} with the boundary devices needs covers", 'such as covers = "cpu:0"')
    id = f"{meter}/{options['name']}" if "name" in options else meter
    return Declared(id, boundary, covers, number_option(meter, options, "accuracy"))


def choice_option(meter: str, options: Mapping[str, str], name: str, allowed: Iterable[str]) -> str | None:
    """The option. None if it was not given. Raises UsageError for another word."""
    value = options.get(name)
    if value is not None and value not in (words := list(allowed)):
        raise UsageError(f"the meter {meter} takes {name} {', '.join(words)}, not {value!r}")
    return value


def number_option(meter: str, options: Mapping[str, str], name: str, signed: bool = False) -> float | None:
    """The option as a number; `1%` is 0.01. None if it was not given. Raises UsageError for other text."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (not signed and value <= 0):
        raise UsageError(f"the meter {meter} takes a number for {name}, not {text!r}")
    return value
