"""Requests that arrive, served by devices that sleep for as long as they are told, on a clock that jumps."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.capabilities.serving import policies
from mixmark.harness.capabilities.serving.request_queue import RequestQueue
from mixmark.harness.capabilities.serving.responses import requests_ns
from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.schema import Record
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.measure import mixed
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement
from tests.golden.sample import but
from tests.measure.test_mixed import MIX, SECOND, Stage

pytestmark = pytest.mark.usefixtures("inline_workers")


def serving(stage: Stage, policy: Any, requests: int = 40, length_s: float = 3) -> dict[tuple[str, str], Record]:
    """Serves as many requests of both suites as arrive in so many seconds."""
    phase = stage.phase(length_s)
    length_ns = round(length_s * SECOND)
    due_ns = {suite: seeds.arrivals_within(length_ns, requests, seeds.derived(5, suite)) for suite in ("low", "high")}
    limits = but(phase.shares[0].limits, min_ns=length_ns, max_ns=4 * length_ns)
    tasks = [but(task, shares=tuple(but(each, limits=limits) for each in task.shares)) for task in phase.tasks]
    phase = but(phase, tasks=tuple(tasks))
    units = {"low": 4, "high": 2}
    source = partial(RequestQueue, policy=policy, limits=MIX.limits, due_ns=due_ns, units=units)

    def planner(units: Any, rates: Any) -> Any:
        return placement.place(units, rates, stage.devices())

    drive = mixed.local_driver(MIX, phase, planner, source=source)
    records = attend(phase, stage.equipment(), stage.folder, drive, on_ready=drive.on_ready)
    for record in records:
        if record.completions is not None and record.parent_window_ns is not None:
            since_ns = record.completions.due_ns - record.parent_window_ns[0]
            assert np.isin(since_ns, due_ns[record.route.suite]).all()
    return {(record.route.suite, record.route.device): record for record in records}


@pytest.mark.parametrize("slots", ["1", "3"])
def test_requests_that_arrive_are_all_answered_and_never_before_they_are_due(tmp_path: Path, slots: str) -> None:
    """A request of `low` is two feeds. With three slots a device begins requests while others run."""
    even = {"low": 0.01, "high": 0.01}
    records = serving(Stage(tmp_path, {"a": even, "b": even}, {"slots": slots}), policies.FirstToFinish)
    for suite, feed_units in (("low", 4), ("high", 2)):
        own = [record for (name, _), record in records.items() if name == suite]
        first, total, _ = requests_ns(own, feed_units)
        assert len(total) == 40
        assert (first > 0).all() and (total >= first).all()
    for record in records.values():
        assert record.completions is not None
        most = timestamps.most_in_flight(*(each.completions for each in records.values() if each.completions))
        assert (most > 2) == (slots == "3")
        assert (record.completions.due_ns <= record.completions.issued_ns).all() and record.arrival_delay_ns == 0
        assert record.audit is not None
        begin_ns, end_ns = record.parent_window_ns or (0, 0)
        assert end_ns - begin_ns >= 3 * SECOND, "an answer at once does not shorten the level"


def test_a_level_ends_though_its_queue_does_not(tmp_path: Path) -> None:
    """Four seconds of work arrive each second, and the phase waits for three times as long as requests arrive."""
    slow = {"low": 0.1, "high": 0.1}
    records = serving(Stage(tmp_path, {"a": slow}, {}), policies.FirstToFinish, requests=60, length_s=1)
    answered = sum(len(requests_ns([record], units)[1]) for units, record in zip((4, 2), records.values(), strict=True))
    assert 0 < answered < 120


def test_requests_are_taken_up_while_no_device_has_room_for_them(tmp_path: Path) -> None:
    slow = {"low": 0.3, "high": 0.3}
    records = serving(Stage(tmp_path, {"a": slow}, {}), policies.FirstToFinish, requests=10, length_s=1)
    feed_ns = max(int(np.ptp(timestamps.flights_ns(c), axis=0).max()) for r in records.values() if (c := r.completions))
    assert all((record.arrival_delay_ns or 0) < feed_ns / 2 for record in records.values())
