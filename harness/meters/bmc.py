"""The common part of the meters IPMI and Redfish, which ask the management controller for the power of the whole node.

A controller answers slowly, so it is asked at most once a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Device, Domain
from mixmark.harness.meters import covered

EVERY_NS = 1_000_000_000
FRESH_NS = 1_000_000_000  # an older answer came before the measurement began, and is dropped
PATIENCE_S = 5.0  # how long one answer may take
MOST_FAILURES = 3  # in a row before the meter is given up: controllers are busy now and then


class Controller:
    """Asks the controller in a thread of its own, so that a slow answer is no reason to give the meter up.

    The samples have no stamp, because a controller does not tell how old its value is: the harness finds the period of
    the source from the times at which its value changes.
    """

    def __init__(self, ask: Callable[[], float], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_ns = -EVERY_NS
        self._thread: threading.Thread | None = None
        self._answers: deque[tuple[int, float]] = deque()
        self._failures: list[Exception] = []

    def take(self) -> Sequence[Sample]:
        """The answers since the last call. Raises OSError or MixmarkError after MOST_FAILURES failures."""
        if len(self._failures) >= MOST_FAILURES:
            raise self._failures[-1]
        answers = [self._answers.popleft() for _ in range(len(self._answers))]
        now_ns = self._clock()
        if (self._thread is None or not self._thread.is_alive()) and now_ns - self._asked_ns >= EVERY_NS:
            self._asked_ns = now_ns
            self._thread = threading.Thread(target=self._answer, daemon=True)
            self._thread.start()
        return [Sample(watts) for at_ns, watts in answers if now_ns - at_ns < FRESH_NS]

    def _answer(self) -> None:
        try:
            watts = self._ask()
        except (OSError, MixmarkError) as error:
            self._failures.append(error)
        else:
            self._failures.clear()
            self._answers.append((self._clock(), watts))


def node(meter: str, devices: Iterable[Device], source: str) -> Domain:
    """The domain that holds the power of the whole machine."""
    return Domain(
        id=meter,
        meter=meter,
        covers=covered.everything(devices),
        boundary="node",
        quantity="power",
        method="integrated",
        source=source,
    )
