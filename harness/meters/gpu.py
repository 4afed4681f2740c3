"""The common part of the meters NVML and AMD SMI, which read a card's energy and power from its vendor's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from mixmark.harness.contracts.schema import Domain


def reader(read: Callable[[], float], library: str, *errors: type[Exception]) -> Callable[[], float]:
    """The same call, but with OSError in place of the library's own errors."""

    def call() -> float:
        try:
            return read()
        except errors as error:
            raise OSError(f"{library}: {error}") from error

    return call


def domain(
    id: str,
    covers: tuple[str, ...],
    quantity: Literal["energy", "power"],
    source: str,
    parent: str | None = None,
    averaging_ns: int | None = None,
) -> Domain:
    """A domain of the boundary `devices`. id: begins with the meter's name and a slash."""
    return Domain(
        id=id,
        meter=id.split("/")[0],
        covers=covers,
        boundary="devices",
        quantity=quantity,
        method="integrated" if quantity == "power" else "counter",
        averaging_ns=averaging_ns,
        parent=parent,
        source=source,
    )
