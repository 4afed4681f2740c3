"""What NVML and AMD SMI have in common: a counter and a power of a card, by a library with errors of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.schema import Domain


def reader(read: Callable[[], float], library: str, *errors: type[Exception]) -> Callable[[], float]:
    """Raises OSError in place of the library's own errors."""

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
    """id: begins with the meter's name."""
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
