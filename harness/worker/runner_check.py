"""Looks at what a runner yields and at how it lets a feed be broken off. Runs in the worker, for the conformance kit.

Nothing here is a measurement for a result: `worker.load_generator` does those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.protocols import Feed, Runner
from mixmark.harness.worker.load_generator import NOTHING, plain


@dataclass(frozen=True)
class Examined:
    """What was seen of a runner."""

    kinds: tuple[str, ...]
    """The types of what it yielded, each once: `numpy.ndarray`."""
    yields: int
    """How many arrays a feed gave."""
    feed_ns: int
    """How long the feed took, conversions included."""
    converting_ns: int
    """The part of it in which what was yielded became an array of the host."""
    overwritten: int
    """How many of the arrays held something else after the next feeds."""
    closing_ns: int
    """How long it took to close a feed's iterator behind its first yield."""


def examine(runner: Runner, feeds: Iterator[Feed], clock: Callable[[], int] = time.monotonic_ns) -> Examined:
    """Runs a whole feed, closes the next one behind its first yield, and runs another whole one.

    Raises WrongOutput where the runner yields nothing, or no arrays, and whatever the runner raises.
    """
    kinds: dict[str, None] = {}
    held: list[tuple[object, bytes]] = []
    converting_ns = 0
    begin_ns = clock()
    for out in runner(next(feeds)):
        yielded_ns = clock()
        array = plain(out)
        converting_ns += clock() - yielded_ns
        kinds[f"{type(out).__module__}.{type(out).__qualname__}"] = None
        held.append((out, array.tobytes()))
    feed_ns = clock() - begin_ns
    if not held:
        raise WrongOutput(NOTHING)
    broken_off = runner(next(feeds))
    plain(next(broken_off))
    begin_ns = clock()
    if isinstance(broken_off, Iterator) and hasattr(broken_off, "close"):
        broken_off.close()
    closing_ns = clock() - begin_ns
    for out in runner(next(feeds)):
        plain(out)
    overwritten = sum(plain(out).tobytes() != copy for out, copy in held)
    return Examined(tuple(kinds), len(held), feed_ns, converting_ns, overwritten, closing_ns)
