"""The mixed phase on a clock that jumps: devices that sleep for as long as they are told, and one real death."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mixmark.harness.contracts.schema import Device, Limits, Mix, Phase, Rate, Record, Route, Share, Task
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import audit, mixed
from mixmark.harness.measure.dispatch import Handed, WorkSource
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock

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

    def play(
        self,
        max_s: float = 3.0,
        phase: Phase | None = None,
        lead: Callable[[WorkSource, int], int] | None = None,
        **more: Any,
    ) -> dict[tuple[str, str], Record]:
        def planner(units: Any, rates: Any) -> Any:
            return placement.place(units, rates, self.devices())

        phase = phase or self.phase(max_s)
        drive = mixed.local_driver(MIX, phase, planner, **more)
        drive.lead = lead
        records = attend(phase, self.equipment(), self.folder, drive, on_ready=drive.on_ready)
        return {(record.route.suite, record.route.device): record for record in records}


def units(records: Mapping[tuple[str, str], Record], suite: str) -> int:
    return sum(timestamps.units(r.completions) for (name, _), r in records.items() if name == suite and r.completions)


def test_a_phase_that_another_process_leads_ends_when_that_says_and_not_by_its_own_begin(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"a": {"low": 0.1, "high": 0.1}}, {})
    ends_ns = clock.now_ns() + 5_000_000_000
    windows = {each.parent_window_ns for each in stage.play(60, lead=lambda *_: ends_ns).values()}
    ((begin_ns, end_ns),) = filter(None, windows)
    assert (begin_ns < ends_ns, end_ns) == (True, ends_ns)


def test_of_a_host_that_begins_after_the_end_nothing_counts(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"a": {"low": 0.1, "high": 0.1}}, {})
    before_ns = clock.now_ns() - 1
    assert {each.completions for each in stage.play(60, lead=lambda *_: before_ns).values()} <= {None}


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
    assert len(audit.draw(audit.handed_at(tmp_path, low.key), low.audit.sha256)["serials"]) == 1
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
    records = stage.play(phase=phase)
    refused = records["low", "npu:a"].error
    assert refused is not None
    assert refused.kind == "unsupported"
    assert units(records, "low") > 0
    assert units(records, "high") > 0


def test_nothing_that_loads_is_told_and_no_hang(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"a": {"low": 0.01, "high": 0.02}}, {})
    phase = stage.phase(2)
    stage.seconds = {"a": {"high": 0.02}}
    records = stage.play(phase=phase).values()
    assert {record.error.kind for record in records if record.error} == {"unsupported", "no result"}


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
