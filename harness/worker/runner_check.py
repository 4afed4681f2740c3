"""Checks what a runner yields, and how it lets a feed be broken off. Runs in the worker, for the conformance kit.

None of it enters a result: `worker.load_generator` makes the measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from mixmark.harness.contracts.errors import WrongOutput
from mixmark.harness.contracts.protocols import Feed, Runner
from mixmark.harness.worker.load_generator import NO_OUTPUT, host_array
from mixmark.harness.worker.messages import RunnerChecked


def check(runner: Runner, feeds: Iterator[Feed], clock: Callable[[], int] = time.monotonic_ns) -> RunnerChecked:
    """Runs a whole feed, closes the next one after its first yield, and runs another whole one.

    Raises WrongOutput if the runner yields nothing or no arrays, and what the runner raises.
    """
    types: dict[str, None] = {}
    held: list[tuple[object, bytes]] = []
    converting_ns = 0
    begin_ns = clock()
    for out in runner(next(feeds)):
        yielded_ns = clock()
        array = host_array(out)
        converting_ns += clock() - yielded_ns
        types[f"{type(out).__module__}.{type(out).__qualname__}"] = None
        held.append((out, array.tobytes()))
    feed_ns = clock() - begin_ns
    if not held:
        raise WrongOutput(NO_OUTPUT)
    broken_off = runner(next(feeds))
    host_array(next(broken_off))
    begin_ns = clock()
    if isinstance(broken_off, Iterator) and hasattr(broken_off, "close"):
        broken_off.close()
    closing_ns = clock() - begin_ns
    for out in runner(next(feeds)):
        host_array(out)
    return RunnerChecked(
        types=tuple(types),
        yields=len(held),
        feed_ns=feed_ns,
        converting_ns=converting_ns,
        overwritten=sum(host_array(out).tobytes() != copy for out, copy in held),
        closing_ns=closing_ns,
    )
