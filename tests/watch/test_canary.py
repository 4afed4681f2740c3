from __future__ import annotations

from harness.watch import canary
from tests.watch.test_machine import Clock


def test_a_canary_is_a_block_of_its_own() -> None:
    found = canary.canary(Clock(7))
    assert found.canary_ns == (7,) * canary.TIMES
    assert (found.busy_ns, found.cpus) == (None, None)
