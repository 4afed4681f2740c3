"""The response times of requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mixmark.harness.contracts.schema import Int64s, Record


def requests_ns(records: Sequence[Record], units: int) -> tuple[Int64s, Int64s, Int64s]:
    """(first, total, per unit) of each request that was answered: the times from when it was due until its first and
    its last unit, and the mean time of a unit after the first yield.

    records: of one suite. units: in a request; one that lacks any was not answered.
    """
    found: list[tuple[int, int, int]] = []
    for done in (record.completions for record in records if record.completions is not None):
        first_at, last_at = done.yielded_ns[done.starts], done.yielded_ns[done.ends - 1]
        feed_units = np.add.reduceat(done.units, done.starts)
        due, request = np.unique(done.due_ns, return_inverse=True)
        first = np.full(len(due), np.iinfo(np.int64).max)
        last = np.zeros(len(due), np.int64)
        count, behind = np.zeros(len(due), np.int64), np.zeros(len(due), np.int64)
        np.minimum.at(first, request, first_at)
        np.maximum.at(last, request, last_at)
        np.add.at(count, request, feed_units)
        np.add.at(behind, request, feed_units - done.units[done.starts])
        whole = count >= units
        per_unit = (last - first) // np.maximum(behind, 1)
        found += zip(*(each[whole].tolist() for each in (first - due, last - due, per_unit)), strict=True)
    columns = np.array(found, np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]
