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

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from mixmark.harness.capabilities.plan.machine import Kind
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import bare, significant
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Fact, Precision
from mixmark.harness.contracts.toml import read_toml
from mixmark.harness.plan.mixes import words_of

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
UNEQUAL = 1.5  # times more FLOPs than the bits of a precision explain; sparsity of 2:4 doubles a peak


class Declared(Fact):
    """The figures of a kind of device that the user declares. None if not declared."""

    price: Amount | None = None
    currency: str | None = Field(default=None, pattern="^[A-Z]{3}$")
    watts: Amount | None = None
    """The power at full load, for a machine without a meter."""
    idle_watts: Amount | None = None
    """The power at rest. None if it is as at full load."""
    rack_units: Amount | None = None
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
    rates: Mapping[str, Positive | str] = Field(default_factory=dict)
    """The units per second of a suite, or a ratio to a measured kind: "12 × EPYC VM"."""

    @property
    def assumes(self) -> bool:
        """Whether the figures describe a device without a measurement."""
        return bool(self.rates or self.tflops)

    def contradictions(self) -> Iterator[str]:
        """Pairs of its figures that hardly can both be right."""
        if self.watts is not None and (self.idle_watts or 0) > self.watts:
            yield f"its idle watts of {bare(self.idle_watts or 0)} are above its watts of {bare(self.watts)}"
        narrow = {name: BITS_PER_WEIGHT[name] for name in self.tflops if BITS_PER_WEIGHT[name] <= 16}
        for one, other in itertools.permutations(narrow, 2):
            times, expected = self.tflops[other] / self.tflops[one], narrow[one] / narrow[other]
            if expected >= 1 and times > expected * UNEQUAL:
                words = f"its peak in {other} is {significant(times)} times its peak in {one}"
                yield f"{words}: one of them may count zeros that are skipped (sparsity)"


def load(path: Path) -> tuple[dict[str, Declared], str | None]:
    """Reads the figures of each kind, and the currency of prices without one."""
    content = read_toml(path, "the prices", "docs/capabilities/plan/plan.md shows such a file")
    currency = content.pop("currency", None)
    found = {}
    for name, table in (*content.items(), ("currency", {"currency": currency})):
        try:
            found[name] = Declared.model_validate(table)
        except ValidationError as error:
            hint = "docs/capabilities/plan/plan.md lists the figures, such as tflops = { bf16 = 165 }"
            raise UsageError(f"{path}: {name}: {words_of(error)}", hint) from error
    return found, found.pop("currency").currency


def one_currency(amounts: Iterable[tuple[str, str | None]]) -> str:
    """The currency of all prices. Empty if none is named. Raises UsageError for two. amounts: (name, currency)."""
    named: dict[str, str] = {}
    for name, currency in amounts:
        named.setdefault(currency or "", name)
    if len(named) > 1:
        words = " and ".join(f"{name} in {currency or 'no currency'}" for currency, name in named.items())
        raise UsageError(f"the prices are in two currencies: {words}", "give all of them in one, with --prices")
    return next(iter(named), "")


def declare(kinds: Iterable[Kind], declared: Mapping[str, Declared]) -> list[Kind]:
    """The kinds with the declared figures. Raises UsageError for watts of a measured kind."""
    return [_declared(kind, declared[kind.unmarked]) if kind.unmarked in declared else kind for kind in kinds]


def _declared(kind: Kind, own: Declared) -> Kind:
    doubts = [kind.doubt, *own.contradictions()]
    if None not in (kind.price, own.price) and kind.price != own.price:
        doubts.append(f"its entry has a price of {bare(kind.price or 0, 4)}: the one of the file counts")
    found = replace(
        kind,
        doubt="; ".join(filter(None, doubts)),
        price=kind.price if own.price is None else own.price,
        rack_units=own.rack_units,
        slots=kind.slots if own.slots is None else own.slots,
        declared=kind.declared | (own.model_fields_set & {"price", "watts", "idle_watts", "rack_units", "slots"}),
    )
    if own.watts is None:
        return found
    if kind.has_watts:
        raise UsageError(f"the watts of {kind.name} are measured", "do not declare them")
    idle = own.watts if own.idle_watts is None else own.idle_watts
    speeds = tuple(replace(speed, extra_watts=max(0.0, own.watts - idle)) for speed in kind.speeds)
    return replace(found, idle_watts=idle, speeds=speeds)
