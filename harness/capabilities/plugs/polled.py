"""A meter that is asked for its value: over a network, or by a command.

It may reply slowly, so it is asked in a thread of its own. Its samples have no timestamp, because it does not report
the age of its value: the harness finds the period of the source from the times at which the value changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mixmark.harness.capabilities.external_log.declared import Declared
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters.common import absent

FRESH_NS = 1_000_000_000  # an older reply is from before the measurement, and is dropped
PATIENCE_S = 5.0  # the limit of one reply
MOST_FAILURES = 3  # in a row, after which the meter is lost: controllers are sometimes busy


@dataclass(frozen=True)
class Found:
    """A reading that a meter gives."""

    ask: Callable[[], float]
    """Returns watts or joules. Raises OSError or MixmarkError."""
    source: str
    quantity: Literal["power", "energy"] = "power"


class Polled:
    """The common part of these meters. A subclass sets `declared` and finds the reading."""

    declared: Declared
    every_s = 1.0
    """Between two questions."""
    method: Literal["integrated", "external"] = "integrated"

    def find(self) -> Found:
        """Asks the meter once. Raises OSError or MixmarkError if it gives no reading."""
        raise NotImplementedError

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        try:
            found = self.find()
        except (OSError, MixmarkError) as error:
            yield absent(self.declared.id, str(error))
            return
        self._poll = Poll(found.ask, round(self.every_s * 1e9))
        yield self.declared.domain(devices, found.quantity, found.source, self.method)

    def read(self, domain: Domain) -> Sequence[Sample]:
        return self._poll.take()


class Poll:
    """Asks in a separate thread, each `every_ns` at the earliest."""

    def __init__(self, ask: Callable[[], float], every_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._ask, self._every_ns, self._clock = ask, every_ns, clock
        self._asked_ns = -every_ns
        self._thread: threading.Thread | None = None
        self._reply: tuple[int, float] | None = None
        self._failures: list[Exception] = []

    def take(self) -> Sequence[Sample]:
        """The reply since the last call, if any. Raises OSError or MixmarkError after MOST_FAILURES failures."""
        if len(self._failures) >= MOST_FAILURES:
            raise self._failures[-1]
        now_ns = self._clock()
        reply, self._reply = self._reply, None
        if (self._thread is None or not self._thread.is_alive()) and now_ns - self._asked_ns >= self._every_ns:
            self._asked_ns = now_ns
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        return [Sample(reply[1])] if reply and now_ns - reply[0] < FRESH_NS else []

    def _run(self) -> None:
        try:
            value = self._ask()
        except (OSError, MixmarkError) as error:
            self._failures.append(error)
        else:
            self._failures.clear()
            self._reply = self._clock(), value
