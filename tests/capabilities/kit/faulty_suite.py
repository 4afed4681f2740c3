"""The starter of a suite, which keeps to its contract, and breaks as much of it as its option `broken` names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mixmark import Array, Cost, Feed, Feeds, Gate, Session, WeightClass, refuse_options
from mixmark.harness.capabilities.kit import template

STARTER: dict[str, Any] = {"__file__": __file__, "__name__": __name__}
exec(template.files("suite", "acme")["mixmark_acme_suite.py"], STARTER)
Acme: Any = STARTER["Acme"]
GATES = {"tight": 1e-9, "wide": 0.5, "open": 1e9}
COUNT = itertools.count()


class Faulty(Acme):  # type: ignore[misc]  # its file is not written yet
    name = "faulty"

    def __init__(self, tier: str, options: Mapping[str, str], weight_class: WeightClass = 16) -> None:
        refuse_options("the suite faulty", options, ["broken"])
        self.broken = options.get("broken", "").split(",")
        super().__init__("smoke" if "lax" in self.broken else tier, {}, weight_class)
        self.options = options

    def feeds(self, batch: int, seed: int) -> Feeds:
        made: Feeds = super().feeds(batch, seed)
        if "forgets" in self.broken:
            return lambda nonce: made(next(COUNT))
        return (lambda nonce: made(0)) if "repeats" in self.broken else made

    def units(self, batch: int) -> int:
        return batch - ("short" in self.broken)

    def infer(self, session: Session, feed: Feed) -> Iterator[Array]:
        wrong = "strays" in self.broken and type(session).__name__ == "TorchSession"
        yield from (output + wrong for output in super().infer(session, feed))

    def gate(self, precision: str) -> Gate | None:
        gate: Gate = super().gate(precision)
        bound = next((bound for fault, bound in GATES.items() if fault in self.broken), gate.at_most)
        return None if "unaudited" in self.broken else gate.model_copy(update={"at_most": bound})

    def reference(self) -> Any:
        return Faulty(self.tier, {}, self.weight_class)

    def quality(self, output: Array, reference: Array) -> float:
        if "raises" in self.broken:
            raise ZeroDivisionError("no rows")
        if "credulous" in self.broken:
            return 0.0
        value: float = super().quality(output, reference)
        return value + ("off" in self.broken)

    def costs(self, precision: str, batch: int) -> Sequence[Cost]:
        (cost,) = super().costs(precision, batch)
        changes: dict[str, float] = {"flops": cost.flops / 2} if "cheap" in self.broken else {}
        if "weightless" in self.broken:
            changes |= {"bytes": cost.bytes - cost.streamed_bytes, "streamed_bytes": 0}
        return (cost.model_copy(update=changes),)
