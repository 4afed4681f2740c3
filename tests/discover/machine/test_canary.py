from __future__ import annotations

from mixmark.harness.discover.machine import canary
from tests.discover.machine.test_counters import Clock


def test_a_canary_is_a_block_of_its_own() -> None:
    found = canary.canary(Clock(7))
    assert found.canary_ns == (7,) * canary.TIMES
    assert (found.busy_ns, found.cpus) == (None, None)
