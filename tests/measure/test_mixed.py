"""The mixed phase on a clock that jumps: devices that sleep for as long as they are told, and one real death."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import (
    Device,
    Limits,
    Load,
    Mix,
    Phase,
    PowerLimit,
    Rate,
    Record,
    Route,
    Share,
    Task,
)
from mixmark.harness.discover.config import AdapterConfig, Config
from mixmark.harness.discover.power_caps import CapFailed
from mixmark.harness.discover.setup import Equipment
from mixmark.harness.judge.load import requests_ns, unknown_due
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.measure import audit, executor, mixed
from mixmark.harness.measure.dispatch import Handed
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement, policies
from mixmark.harness.plugins.registry import Plugin

pytestmark = pytest.mark.usefixtures("inline_workers")

FAKES = Path(__file__).parents[1] / "fakes"
BAND = Plugin("adapters", "band", f"{FAKES / 'band.py'}:Band", "test")
SECOND = 1_000_000_000
MIX = Mix(name="duo", tier="smoke", units={"low": 10, "high": 10}, nominal_flops_per_s=1, nominal_bytes_per_s=1)
SPEC = f"""
import sys
sys.path.insert(0, {str(FAKES.parent.parent)!r})
from tests.fakes.null import Null
class Low(Null):
    name = "low"
class High(Null):
    name = "high"
    continues = "low"
    def given(self, output):
        return {{"x": output}}
"""


@dataclass
class Stage:
    """Two suites on devices whose seconds a sample are given, by device and suite."""

    folder: Path
    seconds: Mapping[str, Mapping[str, float]]
    options: Mapping[str, str]
    timeout_s: float = 20

    def __post_init__(self) -> None:
        (self.folder / "duo.py").write_text(SPEC)
        (self.folder / "raw").mkdir()

    def devices(self) -> list[Device]:
        return [
            Device(id=f"npu:{name}", kind="npu", memory_pool=name, memory_bytes=8 << 30, precisions=("fp32",))
            for name in self.seconds
        ]

    def equipment(self) -> Equipment:
        told = {f"s.{name}.{suite}": str(each) for name, of in self.seconds.items() for suite, each in of.items()}
        suites = {
            name: Plugin("suites", name, f"{self.folder / 'duo.py'}:{name.title()}", "test") for name in MIX.units
        }
        return Equipment(
            adapters={"band": BAND},
            suites=suites,
            suite_options={},
            units=dict.fromkeys(MIX.units, "sample"),
            devices={(device.id, "band"): device for device in self.devices()},
            config=Config(adapters={"band": AdapterConfig(options={**told, **self.options})}),
            seed=7,
            timeout_s=self.timeout_s,
        )

    def phase(self, max_s: float, min_feeds: int = 3) -> Phase:
        rates = [
            Rate(suite=suite, device=f"npu:{name}", adapter="band", precision="fp32", batch=2, units_per_s=1 / each)
            for name, of in self.seconds.items()
            for suite, each in of.items()
        ]
        limits = Limits(
            warmup_ns=0, search_ns=0, min_ns=int(max_s * 5e8), max_ns=int(max_s * 1e9), min_feeds=min_feeds, audits=1
        )
        tasks = []
        for device, own in itertools.groupby(rates, key=lambda rate: rate.device):
            shares = tuple(
                Share(
                    key=f"mix1.{rate.suite}.{rate.device.replace(':', '-')}",
                    route=Route(
                        suite=rate.suite,
                        tier="smoke",
                        suite_version="1",
                        device=device,
                        adapter="band",
                        precision="fp32",
                    ),
                    scenario="mixed",
                    batch=2,
                    limits=limits,
                )
                for rate in own
            )
            tasks.append(Task(device=device, shares=shares))
        return Phase(
            name="mix1",
            purpose="mixed",
            tasks=tuple(tasks),
            placement=placement.place(MIX.units, rates, self.devices()),
        )

    def play(self, max_s: float = 3.0, **more: Any) -> dict[tuple[str, str], Record]:
        def planner(units: Any, rates: Any) -> Any:
            return placement.place(units, rates, self.devices())

        phase = self.phase(max_s)
        drive = mixed.local_driver(MIX, phase, planner, **more)
        records = attend(phase, self.equipment(), self.folder, drive, on_ready=drive.on_ready)
        return {(record.route.suite, record.route.device): record for record in records}


def units(records: Mapping[tuple[str, str], Record], suite: str) -> int:
    return sum(timestamps.units(r.completions) for (name, _), r in records.items() if name == suite and r.completions)


def test_two_devices_play_what_each_does_best(tmp_path: Path) -> None:
    """Alone each would need 0.06 s a unit of both; sharing the work they need 0.01 s."""
    fast, slow = {"low": 0.01, "high": 0.05}, {"low": 0.05, "high": 0.01}
    seen: list[MixSnapshot] = []
    records = Stage(tmp_path, {"a": fast, "b": slow}, {}).play(watch=seen.append)
    low, high = records["low", "npu:a"], records["high", "npu:b"]
    for record in (low, high):
        assert record.completions is not None and record.parent_window_ns is not None
        begin_ns, stop_ns = record.parent_window_ns
        issued_ns = [begin_ns + 20_000_000 * feed for feed in range(len(record.completions))]
        assert stop_ns - begin_ns == 1_500_000_000 and record.completions.issued_ns.tolist() == issued_ns
        assert (record.completions.yielded_ns <= stop_ns).sum() == 75
    assert low.feed_units == 2
    assert low.audit is not None
    assert len(low.audit.feeds) == 1
    assert audit.kept_at(tmp_path, low.key).is_file()
    assert seen[-1].mixes > 0
    assert set(seen[-1].running) == {"npu:a", "npu:b"}


def test_the_window_ends_when_both_suites_have_done_as_much(tmp_path: Path) -> None:
    """A feed of `low` is worth two mixes, which take 0.82 s: most moments are in the middle of one."""
    records = Stage(tmp_path, {"a": {"low": 0.4, "high": 0.01}}, {}).play(max_s=8.0)
    done = {}
    for (suite, _), record in records.items():
        assert record.completions is not None and record.parent_window_ns is not None
        begin_ns, stop_ns = record.parent_window_ns
        assert stop_ns - begin_ns == 4_100_000_000
        done[suite] = int(record.completions.units[record.completions.yielded_ns <= stop_ns].sum())
    assert done == {"low": 10, "high": 10}


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        pytest.param("die", "crashed", "SIGSEGV", marks=[pytest.mark.slow, pytest.mark.realtime]),
        ("raise", "raised", "a string broke"),
        ("raise", "device lost", "VK_ERROR_DEVICE_LOST"),
        ("hang", "hung", ""),
    ],
)
def test_a_device_that_is_lost_ends_its_part_and_the_others_go_on(
    tmp_path: Path, how: str, kind: str, words: str
) -> None:
    even = {"low": 0.02, "high": 0.02}
    stage = Stage(tmp_path, {"a": even, "b": even}, {f"{how}.a": "6", "says": words}, timeout_s=5)
    records = stage.play(14 if how == "hang" else 5)  # a hang is noticed late
    lost = [record for (_, device), record in records.items() if device == "npu:a"]
    assert lost
    for record in lost:
        failure = record.cut_short or record.error
        assert failure is not None
        assert (failure.kind, words in failure.message) == (kind, True), failure
    kept = [record for record in lost if record.completions]
    assert kept  # what it had done before
    assert all("gone before it handed over" in record.unaudited for record in kept)
    left = {suite: records[suite, "npu:b"].completions for suite in ("low", "high")}
    last_ns = max(int(done.yielded_ns.max()) for record in kept if (done := record.completions))
    for done in left.values():
        assert done is not None
        assert done.issued_ns.max() > last_ns


def test_a_suite_that_does_not_load_is_planned_around(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"a": {"low": 0.01, "high": 0.02}, "b": {"low": 0.02, "high": 0.02}}, {})
    phase = stage.phase(2)
    stage.seconds = {"a": {"high": 0.02}, "b": stage.seconds["b"]}

    def planner(units: Any, rates: Any) -> Any:
        return placement.place(units, rates, stage.devices())

    drive = mixed.local_driver(MIX, phase, planner)
    found = attend(phase, stage.equipment(), tmp_path, drive, on_ready=drive.on_ready)
    records = {(record.route.suite, record.route.device): record for record in found}
    refused = records["low", "npu:a"].error
    assert refused is not None
    assert refused.kind == "unsupported"
    assert units(records, "low") > 0
    assert units(records, "high") > 0


def test_nothing_that_loads_is_told_and_no_hang(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"a": {"low": 0.01, "high": 0.02}}, {})
    phase = stage.phase(2)
    stage.seconds = {"a": {"high": 0.02}}
    drive = mixed.local_driver(MIX, phase, lambda units, rates: placement.place(units, rates, stage.devices()))
    records = attend(phase, stage.equipment(), tmp_path, drive, on_ready=drive.on_ready)
    assert {record.error.kind for record in records if record.error} == {"unsupported", "no result"}


def serving(stage: Stage, policy: Any, requests: int = 40, length_s: float = 3) -> dict[tuple[str, str], Record]:
    """Serves as many requests of both suites as arrive in so many seconds."""
    phase = stage.phase(length_s)
    load = Load(
        level=0.5,
        mixes_per_s=1,
        length_ns=round(length_s * SECOND),
        requests={"low": requests, "high": requests},
        request_units={"low": 4, "high": 2},
        seed=5,
    )
    limits = phase.shares[0].limits.model_copy(update={"min_ns": load.length_ns, "max_ns": 4 * load.length_ns})
    tasks = [
        task.model_copy(update={"shares": tuple(each.model_copy(update={"limits": limits}) for each in task.shares)})
        for task in phase.tasks
    ]
    phase = phase.model_copy(update={"purpose": "load", "load": load, "tasks": tuple(tasks)})

    def planner(units: Any, rates: Any) -> Any:
        return placement.place(units, rates, stage.devices())

    drive = mixed.local_driver(MIX, phase, planner, policy=policy)
    records = attend(phase, stage.equipment(), stage.folder, drive, on_ready=drive.on_ready)
    assert not any(unknown_due(phase, [record]) for record in records)
    return {(record.route.suite, record.route.device): record for record in records}


@pytest.mark.parametrize("slots", ["1", "3"])
def test_requests_that_arrive_are_all_answered_and_never_before_they_are_due(tmp_path: Path, slots: str) -> None:
    """A request of `low` is two feeds. With three slots a device begins requests while others run."""
    even = {"low": 0.01, "high": 0.01}
    records = serving(Stage(tmp_path, {"a": even, "b": even}, {"slots": slots}), policies.Greedy)
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
    records = serving(Stage(tmp_path, {"a": slow}, {}), policies.Greedy, requests=60, length_s=1)
    answered = sum(len(requests_ns([record], units)[1]) for units, record in zip((4, 2), records.values(), strict=True))
    assert 0 < answered < 120


def test_requests_are_taken_up_while_no_device_has_room_for_them(tmp_path: Path) -> None:
    slow = {"low": 0.3, "high": 0.3}
    records = serving(Stage(tmp_path, {"a": slow}, {}), policies.Greedy, requests=10, length_s=1)
    feed_ns = max(int(np.ptp(timestamps.flights_ns(c), axis=0).max()) for r in records.values() if (c := r.completions))
    assert all((record.arrival_delay_ns or 0) < feed_ns / 2 for record in records.values())


def test_a_policy_that_fails_ends_the_phase_and_is_named(tmp_path: Path) -> None:
    class Broken:
        def __init__(self, seconds: Any, plan: Any) -> None: ...

        def choose(self, waiting: Any, devices: Any, now_ns: int) -> Any:
            if waiting[0].number == 2:
                raise KeyError("lost my list")
            return waiting[0], devices[0].device

    even = {"low": 0.05, "high": 0.05}
    records = serving(Stage(tmp_path, {"a": even, "b": even}, {}), Broken, requests=4000)
    errors = {record.error.message for record in records.values() if record.error}
    assert len(errors) == 1
    assert "the policy failed: KeyError: 'lost my list'" in errors.pop()
    assert all(record.completions is None for record in records.values())


@pytest.mark.parametrize(
    ("concurrency", "begun"),
    [
        ((1, 1), (7, None)),
        ((2, 2, 2), (7, 7, None)),
        ((2, 1), (7, None)),  # the second one has the device for itself
        ((1, 2, 2), (7, None, None)),  # … and the first one here
        ((2, 2, 1, 2), (7, 7, None, None)),
    ],
)
def test_a_feed_begins_when_all_runners_before_it_take_as_many_at_once(
    concurrency: tuple[int, ...], begun: tuple[int | None, ...]
) -> None:
    holding = mixed._Holding()
    for serial, at_once in enumerate(concurrency):
        stream: Any = SimpleNamespace(part=SimpleNamespace(concurrency=at_once))
        holding.feeds.append(mixed._Held(stream, Handed("low"), serial))
    holding.take_turns(7)
    assert tuple(each.begun_ns for each in holding.feeds) == begun
    holding.feeds.popleft()
    holding.take_turns(9)
    assert holding.feeds[0].begun_ns == (begun[1] or 9)


@pytest.mark.parametrize(("now_w", "kept"), [(75.0, True), (125.0, False)])
def test_a_run_whose_cap_was_raised_meanwhile_keeps_no_timestamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now_w: float, kept: bool
) -> None:
    part: Any = SimpleNamespace(draft=SimpleNamespace(completions="timestamps"))
    limit: Any = SimpleNamespace(limit=PowerLimit(id="rapl/0", watts=125), read=lambda: now_w)
    monkeypatch.setattr(executor, "replanner", lambda *given: None)
    monkeypatch.setattr(mixed, "local_driver", lambda *given: lambda parts: None)

    def attend(phase: Phase, equipment: Equipment, folder: Path, drive: Any, *rest: Any) -> list[Record]:
        drive([part])
        return []

    monkeypatch.setattr(executor, "attend", attend)
    phase: Any = SimpleNamespace(placement=object(), purpose="cap", cap=0.6, load=None, policy="plan", experiment="")
    request: Any = SimpleNamespace(phase=phase, mix=MIX, devices=(), idle_s=0)
    nothing: Any = SimpleNamespace(pids=())
    here = executor.LocalExecutor(nothing, tmp_path, nothing, {}, (limit,))
    with nullcontext() if kept else pytest.raises(CapFailed), ExitStack() as stack:
        here._attended(request, lambda event: None, stack)
    assert part.draft.completions == ("timestamps" if kept else None)
