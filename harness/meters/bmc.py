"""What IPMI and Redfish have in common: a controller that answers slowly, of the whole node, once a second at best."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from harness.contracts import Sample
from harness.errors import MixmarkError
from harness.meters import covered
from harness.schema import Device, Domain

EVERY_NS = 1_000_000_000
FRESH_NS = 1_000_000_000  # an answer that lay for longer, while nobody measured, is of another time
PATIENCE_S = 5.0  # for one answer
MOST_FAILURES = 3  # in a row: controllers are busy now and then


class Controller:
    """Asks in a thread of its own, so that a slow answer is no reason to give the meter up.

    Answers have no stamp: how old a controller's value is it does not say, and the harness finds its period by the
    times at which it changes.
    """

    def __init__(self, ask: Callable[[], float], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_ns = -EVERY_NS
        self._thread: threading.Thread | None = None
        self._answers: deque[tuple[int, float]] = deque()
        self._failures: list[Exception] = []

    def take(self) -> Sequence[Sample]:
        """What was answered just now. Raises OSError or MixmarkError, once it has failed too often."""
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
    return Domain(
        id=meter,
        meter=meter,
        covers=covered.everything(devices),
        boundary="node",
        quantity="power",
        method="integrated",
        source=source,
    )
