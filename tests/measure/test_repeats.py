"""A mixed run that other programs or the hypervisor disturbed is repeated, whatever its figure. No device, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Completions, Conditions, Device, Phase, Record, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.findings import words
from mixmark.harness.measure.audit import CPU, Auditor, pending
from mixmark.harness.measure.benchmark import Benchmark, Event, Planned
from mixmark.harness.measure.executor import PhaseEvent, PhaseFacts, PhaseRequest, WindowOpens
from mixmark.harness.measure.run_state import RunState
from mixmark.harness.record import store
from mixmark.harness.record.store import Store
from tests.measure.test_stages import BRIEF, DEVICES, SECOND, changed, record, solo

QUIET: dict[str, int] = {}
LOADED = {"own_ns": 3 * SECOND}  # others have one of eight seconds of CPU time, less a microsecond
STOLEN = {"stolen_ns": 800_000_000}


class Desk:
    """A machine on which the runs of the mix go as told, the last one ever after."""

    metered = False
    meters = hosts = None

    def __init__(self, *runs: Mapping[str, int]) -> None:
        self.runs = [*runs]
        self.measured: list[str] = []
        self.slower = 1.0
        """How many times as long the first run takes."""
        self.drawn = True
        """Whether the outputs of a mix are compared already."""
        self.dies_at = 0
        """The phase, counted from 1, that is ended while it runs; 0: none."""

    def rounds(self, phases: Sequence[Phase]) -> Iterator[Sequence[Phase]]:
        return ([phase] for phase in phases)

    def measure(self, requests: Sequence[PhaseRequest], notify: Callable[[PhaseEvent], None]) -> Iterator[PhaseFacts]:
        [request] = requests
        self.measured.append(request.phase.name)
        notify(WindowOpens(request.phase))
        if self.dies_at == len(self.measured):
            raise KeyboardInterrupt
        assert len(self.measured) < 9, "it would go on for ever"
        state = self.runs.pop(0) if len(self.runs) > 1 else self.runs[0]
        block = Conditions.model_validate(
            {"begin_ns": 1_000, "end_ns": 4 * SECOND, "cpus": 2, "busy_ns": 4 * SECOND, "own_ns": 4 * SECOND, **state}
        )
        header = solo(DEVICES[0])
        alone = {each.route.suite: each.phase for each in header.records}
        for begin_s, share in zip((0, 2), request.phase.shares, strict=True):  # one suite after the other
            made = record(header, alone[share.route.suite], feeds=2)
            assert made.completions is not None
            done, issued_ns = made.completions, made.completions.issued_ns + begin_s * SECOND
            later = Completions(issued_ns, issued_ns, done.ends, done.yielded_ns + begin_s * SECOND, done.units)
            if self.slower > 1 and request.phase.name == "mix1":
                times = ((column * self.slower).astype(np.int64) for column in (issued_ns, later.yielded_ns))
                later = replace(later, issued_ns=(issued := next(times)), due_ns=issued, yielded_ns=next(times))
            in_mix = {"key": share.key, "phase": request.phase.name, "scenario": "mixed", "run": share.run}
            facts = {"completions": later, "conditions": (block,), "batch": share.batch}
            if not self.drawn and made.audit:
                facts["audit"] = made.audit.model_copy(update={"values": (), "feeds": ()})
            yield PhaseFacts([made.model_copy(update=in_mix | facts)])

    def end_plugins(self) -> None:
        self.measured.append("plugins end")

    def pool_bytes(self, devices: Sequence[Device]) -> Mapping[str, int]:
        return {}


def run(folder: Path, desk: Desk, mixes: int = 1, repeats: int = 2) -> tuple[Benchmark, list[tuple[str, str]]]:
    said: list[tuple[str, str]] = []
    header = solo(DEVICES[0])

    def notify(event: Event) -> None:
        if isinstance(event, Planned) and event.repeats:
            said.append((event.repeats[0], words(event.repeats[1])))

    keeper = store.create(folder, header.model_copy(update={"records": ()}))
    made = benchmark(header, desk, keeper, mixes, repeats, notify)
    made.run()
    return made, said


def benchmark(
    header: Result,
    desk: Desk,
    keeper: Store,
    mixes: int,
    repeats: int = 2,
    notify: Callable[[Event], None] = lambda event: None,
) -> Benchmark:
    nothing: Any = None  # all outputs are audited already
    preset = replace(BRIEF, runs=mixes, repeats=repeats)
    return Benchmark(header, desk, Auditor(keeper.path, nothing, CPU, 1.0), keeper, preset, notify)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (LOADED, "other programs used up to 13 % of the machine"),
        (STOLEN, "the hypervisor gave up to 10 % of the CPU time of the machine to others"),
    ],
)
def test_a_disturbed_mix_is_run_again_and_only_the_quiet_one_counts(
    tmp_path: Path, state: dict[str, int], why: str
) -> None:
    desk = Desk(state, QUIET)
    made, said = run(tmp_path / "a", desk)
    assert (desk.measured, said) == (["mix1", "mix2"], [("mix1", why)])
    found = judge(made.result)
    assert found.score is not None
    assert [(each.phase, each.disturbed and words(each.disturbed)) for each in found.score.runs] == [
        ("mix1", why),
        ("mix2", None),
    ]
    assert [each.phase for each in found.score.counted()] == ["mix2"]
    assert found.verdict.word != "disturbed"


@pytest.mark.parametrize(("slower", "counted"), [(1.14, ["mix2"]), (1.2, ["mix1", "mix2"])])
def test_a_repeat_replaces_no_run_that_was_slower_than_its_foreign_load_explains(
    tmp_path: Path, slower: float, counted: list[str]
) -> None:
    """Others had an eighth of the CPU time, which explains a pace of 7/8. Whoever adds load to a run that goes badly
    keeps the run."""
    desk = Desk(LOADED, QUIET)
    desk.slower = slower
    score = judge(run(tmp_path / "a", desk)[0].result).score
    assert score is not None
    first, second = (each.mixes_per_hour.estimate for each in score.runs)
    assert first == pytest.approx(second / slower)
    assert [each.phase for each in score.counted()] == counted


def test_a_machine_that_is_never_quiet_keeps_no_run_going(tmp_path: Path) -> None:
    desk = Desk(LOADED)
    made, said = run(tmp_path / "a", desk)
    assert desk.measured == ["mix1", "mix2", "mix3"]
    assert [phase for phase, _ in said] == ["mix1", "mix2"]
    found = judge(made.result)
    assert found.verdict.word == "disturbed"
    assert found.score is not None and len(found.score.counted()) == 3
    assert found.score.unranked[-1].code == "no_foreign_load.much"
    assert found.score.unranked[-1].values["share"] == (6, 8), "two solo records were not watched"


def test_two_of_five_disturbed_runs_are_repeated_after_the_others(tmp_path: Path) -> None:
    desk = Desk(QUIET, LOADED, QUIET, STOLEN, LOADED, QUIET)
    made, said = run(tmp_path / "a", desk, mixes=5)
    assert desk.measured == [f"mix{number}" for number in range(1, 8)]
    assert [phase for phase, _ in said] == ["mix2", "mix4"]
    found = judge(made.result).score
    assert found is not None
    assert [each.phase for each in found.counted()] == ["mix1", "mix3", "mix6", "mix7"]


def test_a_mix_that_began_and_has_no_record_costs_the_rank(tmp_path: Path) -> None:
    """Whoever ends a run because of what it shows, and goes on, has begun it twice."""
    desk = Desk(QUIET)
    header = solo(DEVICES[0])
    keeper = store.create(tmp_path / "a", header.model_copy(update={"records": ()}))
    ended = benchmark(header, desk, keeper, mixes=2)
    desk.dies_at = 2
    with pytest.raises(KeyboardInterrupt):
        ended.run()
    assert (tmp_path / "a/journal.jsonl").read_text().splitlines()[-1] == '{"begun": ["mix2"]}'
    desk.dies_at = 0
    resumed = benchmark(ended.result, desk, keeper, mixes=2)
    resumed.run()
    assert resumed.result.begun == ("mix1", "mix2", "mix2")
    found = judge(resumed.result)
    assert found.score is not None
    assert (found.score.started, len(found.score.runs)) == (3, 2)
    assert [(each.code, each.values) for each in found.score.unranked if each.rule == "begun_once"] == [
        ("begun_once.unranked", {"phase": "mix2", "times": 2})
    ]
    assert not any(each.rule == "run_at_once" for each in found.score.unranked), "its journal says nothing of it"
    whole = judge(run(tmp_path / "b", Desk(QUIET), mixes=2)[0].result).score
    assert whole is not None and whole.started == 2
    assert not any(each.rule == "begun_once" for each in whole.unranked)


def test_all_outputs_of_the_mix_are_drawn_once_after_the_last_window_and_no_plugin_runs(tmp_path: Path) -> None:
    desk, header = Desk(QUIET), solo(DEVICES[0])
    keeper = store.create(tmp_path / "a", header.model_copy(update={"records": ()}))
    made = benchmark(header, desk, keeper, mixes=3)
    desk.drawn = False

    class Drawing:
        def run(self, records: Sequence[Record], keep: Callable[[Record], None], on_record: Any) -> None:
            waiting = [each for each in records if pending(each)]
            desk.measured.append(f"draw {len(waiting)}")
            for each in waiting:
                assert each.audit is not None
                keep(each.model_copy(update={"audit": each.audit.model_copy(update={"values": (0.0,)})}))

    vars(made)["_auditor"] = Drawing()
    made.run()
    assert desk.measured == ["mix1", "mix2", "mix3", "plugins end", "draw 6"]
    assert made.result.finished and not any(map(pending, made.result.records))


def test_a_disturbed_solo_measurement_is_no_reason_to_repeat_the_mix() -> None:
    block = Conditions(begin_ns=1_000, end_ns=4 * SECOND, cpus=2, busy_ns=4 * SECOND, own_ns=2 * SECOND)
    before = changed(solo(DEVICES[0]), "llm", "cpu:0", conditions=(block,))
    assert RunState(before, replace(BRIEF, repeats=2), {}).disturbed == ()
    phase = before.phases[0].model_copy(update={"purpose": "mixed"})
    of_mix = before.model_copy(update={"phases": (phase, *before.phases[1:])})
    disturbed = RunState(of_mix, replace(BRIEF, repeats=2), {}).disturbed
    assert [name for name, _ in disturbed] == [phase.name]
