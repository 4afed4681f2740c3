"""What IPMI and Redfish have in common: a controller that answers slowly, of the whole node, once a second at best."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from harness.contracts import Sample
from harness.errors import MixmarkError
from harness.schema import Device, Domain

EVERY_NS = 1_000_000_000
PATIENCE_S = 5.0  # for one answer
MOST_FAILURES = 3  # in a row: controllers are busy now and then


class Controller:
    """Asks in a thread of its own, so that the other meters need not wait.

    Answers have no stamp: how old a controller's value is it does not say, and the harness finds its period by the
    times at which it changes.
    """

    def __init__(self, ask: Callable[[], float], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_ns = -EVERY_NS
        self._thread: threading.Thread | None = None
        self._answers: deque[float] = deque()
        self._failures: list[Exception] = []

    def take(self) -> Sequence[Sample]:
        """What was answered since the last call. Raises OSError or MixmarkError, once it has failed too often."""
        if len(self._failures) >= MOST_FAILURES:
            raise self._failures[-1]
        idle = self._thread is None or not self._thread.is_alive()
        if idle and self._clock() - self._asked_ns >= EVERY_NS:
            self._asked_ns = self._clock()
            self._thread = threading.Thread(target=self._answer, daemon=True)
            self._thread.start()
        return [Sample(self._answers.popleft()) for _ in range(len(self._answers))]

    def _answer(self) -> None:
        try:
            self._answers.append(self._ask())
        except (OSError, MixmarkError) as error:
            self._failures.append(error)
        else:
            self._failures.clear()


def node(meter: str, devices: Iterable[Device], source: str) -> Domain:
    everything = sorted({part for device in devices for part in (device.id, *device.silicon)})
    return Domain(
        id=meter,
        meter=meter,
        covers=(*everything, "memory", "node"),
        boundary="node",
        quantity="power",
        method="integrated",
        source=source,
    )
