"""Devices that no result here measures: kinds for the planner from declared rates or from a datasheet.

A datasheet gives a bound: no feed is faster than its floating-point operations at the device's peak, nor than its bytes
at the bandwidth of its memory (Williams et al., Roofline, CACM 52(4), 2009). The operations and bytes are those of the
suite's own cost model: for a bound those of the most economical algorithm, with what a cache can hold left out. The
planner computes with a stated fraction of the rate that the usual ones allow, in an interval that ends at the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from mixmark.harness.capabilities.plan.machine import Assumption, Basis, Kind, Speed
from mixmark.harness.capabilities.plan.prices import GIGA, Declared, datasheets
from mixmark.harness.contracts.errors import Unsupported, UsageError, choose_by_name
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, Cost, Tier, weight_class
from mixmark.harness.contracts.text import Reason
from mixmark.harness.plugins import registry

TERA = 1e12
SIZES = tuple(2**power for power in range(13))
"""The batch sizes of a suite's workload."""


@dataclass(frozen=True)
class Batch:
    """The least work of one feed."""

    precision: str
    units: int
    costs: Sequence[Cost]


@dataclass(frozen=True)
class Workload:
    """A suite's work by its own cost model."""

    batches: Sequence[Batch]
    """Feeds of every batch size and precision to choose from."""
    memory_bytes: Mapping[str, int]
    """The weights in each precision."""


def kinds(
    named: Sequence[str],
    declared: Mapping[str, Declared],
    workloads: Mapping[str, Workload | Reason],
    measured: Iterable[str],
    fraction: float,
) -> Iterator[Kind]:
    """The kinds of the declared devices without a measurement, and of the shipped datasheets that are named. What a
    user declares of a shipped one replaces its figures.

    named: the devices that options name. measured: the names of measured kinds. Raises UsageError like `kind`, and for
    a name that does not exist.
    """
    shipped, known = datasheets(), set(measured)
    try:
        choose_by_name("kind of device", named, [*known, *declared, *shipped])
    except UsageError as error:
        raise UsageError(f"{error}; a file can describe it: --prices devices.toml", error.hint) from None
    for name in dict.fromkeys([*declared, *named]):
        own, sheet = declared.get(name), shipped.get(name)
        if own and sheet:
            sheet = sheet.model_copy(update={figure: getattr(own, figure) for figure in own.model_fields_set})
        if name not in known and (sheet := sheet or own) and sheet.assumes:
            yield kind(name, sheet, workloads, fraction)


def bound(sheet: Declared, workload: Workload, fraction: float = 1.0) -> Basis | None:
    """The most units per second that a datasheet allows, and what limits the usual algorithm. None if it states no peak
    of any precision, or no bandwidth. fraction: the part of the usual algorithm's bound that is computed with."""
    found: list[Basis] = []
    most = 0.0
    for batch in workload.batches:
        flops_per_s = sheet.tflops.get(batch.precision, 0.0) * TERA  # type: ignore[call-overload]  # any str may be asked
        if not flops_per_s or not sheet.gb_per_s:
            continue
        took = [
            (cost.yields * cost.flops / flops_per_s, cost.yields * cost.bytes / (sheet.gb_per_s * GIGA))
            for cost in batch.costs
        ]
        compute_s = sum(flops_s for flops_s, bytes_s in took if flops_s >= bytes_s)
        memory_s = sum(bytes_s for flops_s, bytes_s in took if flops_s < bytes_s)
        usual = batch.units / (compute_s + memory_s)
        limit = f"{'compute' if compute_s >= memory_s else 'memory'} in {batch.precision}"
        found.append(Basis(fraction * usual, usual, limit, workload.memory_bytes[batch.precision]))
        least_s = sum(
            cost.yields * max(cost.least_flops / flops_per_s, cost.streamed_bytes / (sheet.gb_per_s * GIGA))
            for cost in batch.costs
        )
        most = max(most, batch.units / least_s if least_s else math.inf)
    best = max(found, key=lambda each: each.units_per_s, default=None)
    return best and replace(best, at_most=most)


def kind(name: str, sheet: Declared, workloads: Mapping[str, Workload | Reason], fraction: float) -> Kind:
    """A kind from a table of assumptions. Its name says that it is assumed.

    workloads: of each suite of the mix, or why it has none. Raises UsageError for an assumption without a source, for
    an unknown suite, and if nothing gives a rate.
    """
    if not sheet.source:
        raise UsageError(f"{name} was not measured and has no source", 'say where its figures are from: source = "…"')
    for suite in sheet.rates:
        choose_by_name("suite in the mix", [suite], workloads)
    found = dict(_rates(sheet, workloads, fraction))
    if not found:
        reasons = "; ".join(f"{suite}: {why}" for suite, why in workloads.items() if isinstance(why, str))
        raise UsageError(
            f"{name} was not measured, and nothing gives it a rate",
            reasons or "give rates, or gb_per_s and tflops of a precision with enough bits",
        )
    idle = sheet.watts if sheet.idle_watts is None else sheet.idle_watts
    extra = None if sheet.watts is None or idle is None else max(0.0, sheet.watts - idle)
    return Kind(
        name,
        tuple(Speed(suite, _estimate(basis), extra, basis.memory_bytes) for suite, basis in found.items()),
        is_host=sheet.is_host,
        slots=sheet.slots or 0,
        pool_bytes={} if sheet.memory_gb is None else {"": round(sheet.memory_gb * GIGA)},
        idle_watts=idle,
        price=sheet.price,
        assumption=Assumption(sheet.source, found),
    ).marked("assumed")


def _rates(sheet: Declared, workloads: Mapping[str, Workload | Reason], fraction: float) -> Iterator[tuple[str, Basis]]:
    for suite, workload in workloads.items():
        if suite in sheet.rates:
            yield suite, Basis(sheet.rates[suite])
            continue
        basis = None if isinstance(workload, str) else bound(sheet, workload, fraction)
        if basis and basis.memory_bytes <= (sheet.memory_gb or math.inf) * GIGA:
            yield suite, basis


def _estimate(basis: Basis) -> Estimate:
    if basis.at_most is None:
        return Estimate(basis.units_per_s)
    return Estimate(basis.units_per_s, basis.units_per_s, basis.at_most)


@cache
def workload(suite: str, tier: Tier, bits: int) -> Workload | Reason:
    """A suite's work in each precision of at least `bits` bits and each batch size, or why it is unknown. No other
    package's code runs for a plan."""
    plugin = registry.find("suites").get(suite)
    if plugin is None or not plugin.built_in:
        return "its cost model is not of Mixmark: give its rate"
    batches: list[Batch] = []
    memory_bytes: dict[str, int] = {}
    for precision, width in BITS_PER_WEIGHT.items():
        if (own := weight_class(precision)) < bits or precision == "as-file":  # types of a file of one's own
            continue
        try:
            built = registry.load_suite(suite, tier, weight_class=own)
        except Unsupported:  # it has no weights of this class
            continue
        weights = built.weights()
        values = sum(math.prod(map(int, weights.spec(name).shape)) for name in weights.names())
        memory_bytes[precision] = values * width // 8
        for size in SIZES if "offline" in built.scenarios else (1,):
            batches.append(Batch(precision, built.units(size), tuple(built.costs(precision, size))))
    return Workload(batches, memory_bytes)
