"""Decides from the rows of a log whether a column tells several devices apart."""

from __future__ import annotations

from mixmark.harness.capabilities.external_log.units import measures

RETURNS = 8  # in simulations up to 4 % of unrelated columns that change with each row fit by chance; at 3, 15 %
ROWS_OF_VISIT = 3.0
MOST_VALUES = 256


class Visits:
    """How well the values of one column predict the readings.

    A return is a row whose value occurred before, but not in the row above. The rows of several devices take turns, and
    at a return the last reading of the same value is nearer than the last reading. A state of one device, such as a
    performance state, lasts for several rows.
    """

    def __init__(self, name: str) -> None:
        self._name, self._possible = name, True
        self._last: dict[str, float] = {}
        self._above: tuple[str, float] | None = None
        self._rows = self._rows_since_switch = self._switches = self._returns = self._nearer = 0
        self._excess = 0.0  # of the errors by value over half of the errors by row

    def tell_apart(self, text: str, reading: float) -> bool:
        """Whether the column tells devices apart, as of this row."""
        self._possible = self._possible and len(self._last) <= MOST_VALUES and not measures(self._name, text)
        if not self._possible:
            return False
        returned = False
        self._rows += 1
        if self._above and text != self._above[0]:
            self._switches += 1
            if returned := text in self._last:
                of_value, of_row = abs(reading - self._last[text]), abs(reading - self._above[1])
                self._returns += 1
                self._nearer += of_value < of_row
                self._excess += of_value - 0.5 * of_row
        self._rows_since_switch += self._switches > 0
        self._last[text] = reading
        self._above = text, reading
        return (
            returned
            and self._returns >= RETURNS
            and self._rows_since_switch < ROWS_OF_VISIT * self._switches
            and self._returns * self._switches >= 0.5 * self._rows
            and self._excess < 0
            and self._nearer >= 0.75 * self._returns
        )
