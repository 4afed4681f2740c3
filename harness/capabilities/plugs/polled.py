"""The common part of the meters IPMI and Redfish: asks the management controller for the power of the whole node.

A controller replies slowly, so it is asked at most once a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Device, Domain
from mixmark.harness.meters.common import all_ids

EVERY_NS = 1_000_000_000
FRESH_NS = 1_000_000_000  # an older reply is from before the measurement, and is dropped
PATIENCE_S = 5.0  # the limit of one reply
MOST_FAILURES = 3  # in a row, after which the meter is lost: controllers are sometimes busy


class Controller:
    """Asks the controller in a separate thread, so that a slow reply does not lose the meter.

    The samples have no timestamp, because a controller does not report the age of its value. The harness finds the
    period of the source from the times at which its value changes.
    """

    def __init__(
        self, ask: Callable[[], float], clock: Callable[[], int] = time.monotonic_ns, every_ns: int = EVERY_NS
    ) -> None:
        self._ask, self._clock, self._every_ns = ask, clock, every_ns
        self._asked_ns = -every_ns
        self._thread: threading.Thread | None = None
        self._readings: deque[tuple[int, float]] = deque()
        self._failures: list[Exception] = []

    def take(self) -> Sequence[Sample]:
        """The readings since the last call. Raises OSError or MixmarkError after MOST_FAILURES failures."""
        if len(self._failures) >= MOST_FAILURES:
            raise self._failures[-1]
        readings = [self._readings.popleft() for _ in range(len(self._readings))]
        now_ns = self._clock()
        if (self._thread is None or not self._thread.is_alive()) and now_ns - self._asked_ns >= self._every_ns:
            self._asked_ns = now_ns
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
        return [Sample(watts) for at_ns, watts in readings if now_ns - at_ns < FRESH_NS]

    def _read(self) -> None:
        try:
            watts = self._ask()
        except (OSError, MixmarkError) as error:
            self._failures.append(error)
        else:
            self._failures.clear()
            self._readings.append((self._clock(), watts))


def node(meter: str, devices: Iterable[Device], source: str) -> Domain:
    """The domain that holds the power of the whole machine."""
    return Domain(
        id=meter,
        meter=meter,
        covers=all_ids(devices),
        boundary="node",
        quantity="power",
        method="integrated",
        source=source,
    )
