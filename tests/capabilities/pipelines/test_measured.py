"""Stages that are measured: each is derived from the output before, or continues it, and a policy may place it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.capabilities.pipelines.facts import PipelineWork
from mixmark.harness.capabilities.pipelines.figures import PipelineFigures, out_of_turn, steps_of
from mixmark.harness.capabilities.pipelines.queue import PipelineQueue
from mixmark.harness.contracts.schema import Record
from mixmark.harness.contracts.seeds import nonce
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure import audit, mixed
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement
from mixmark.harness.record import store
from mixmark.harness.resources import clock
from mixmark.harness.worker import outputs
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.messages import Fed
from tests.cli.shell import Shell
from tests.fakes.machine import of_experiment
from tests.judge.found import not_none
from tests.measure.test_benchmark import run
from tests.measure.test_mixed import Stage

pytestmark = pytest.mark.usefixtures("inline_workers")

WORK = PipelineWork(suites=("low", "high"), units=(2, 2), in_flight=3, deadline_ns=10**9)
BOTH = {"a": {"low": 0.02}, "b": {"high": 0.02}}


def chained(folder: Path, max_s: float = 2.0, carried: bool = False, **options: str) -> list[Record]:
    """Pipelines of `low` on one device and `high` on the other."""
    stage = Stage(folder, BOTH, options)
    work = WORK.model_copy(update={"carried": ("high",) if carried else ()})
    plain = stage.phase(max_s)
    rates = plain.placement.rates if plain.placement else ()
    plan = placement.place(WORK.mix_units, rates, stage.devices())
    phase = of_experiment("pipeline", work, plain.model_copy(update={"placement": plan}))
    source = partial(PipelineQueue, work=work)
    drive = mixed.local_driver(work.mix("smoke"), phase, lambda units, rates: plan, source=source)
    return attend(phase, stage.equipment(), folder, drive, on_ready=drive.on_ready)


@pytest.mark.parametrize("slots", ["1", "3"])
def test_a_stage_is_derived_from_the_output_before_and_begins_after_it(tmp_path: Path, slots: str) -> None:
    """The output of a fake is the nonce of its feed, so it shows what the feed was derived from."""
    records = chained(tmp_path, slots=slots)
    assert out_of_turn(WORK, records) == 0
    assert sum(len(steps) == 2 for steps in steps_of(WORK, records).values()) > 10
    for record in records:
        assert record.audit is not None and record.seed is not None and not record.audit.problem
        kept = audit.draw(audit.handed_at(tmp_path, record.key), record.audit.sha256)
        (before,), (serial,), (output,) = kept["previous_digests"], kept["serials"], kept["outputs"]
        assert before.any() == (record.route.suite == "high")
        followed = before.tobytes() if before.any() else b""
        assert output.tolist() == [nonce(record.seed, int(serial), followed)] * 2


def test_a_stage_that_dies_ends_the_phase_and_keeps_what_was_measured(tmp_path: Path) -> None:
    records = chained(tmp_path, 4, False, **{"raise.b": "6"})
    high, low = sorted(records, key=lambda record: record.route.suite)
    assert high.cut_short is not None and high.cut_short.kind == "raised"
    assert low.parent_window_ns is not None
    assert low.parent_window_ns[1] - low.parent_window_ns[0] < 3.5e9, (
        "no sooner than its shortest time, and not its longest"
    )
    assert sum(len(steps) == 2 for steps in steps_of(WORK, records).values()) > 0


def slowly(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*given: Any, **named: Any) -> Any:
        clock.sleep(seconds)
        return call(*given, **named)

    return slow


@pytest.mark.parametrize("slots", ["1", "3"])
def test_a_stage_continues_the_output_of_the_stage_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: str
) -> None:
    """The output of a fake is its feed: here the output of `low`, of which few are kept for the audit."""
    monkeypatch.setattr(outputs, "TAKEN_BYTES", 2000)
    monkeypatch.setattr(np, "load", slowly(np.load, 0.002))
    monkeypatch.setattr(np, "save", slowly(np.save, 0.001))
    low, high = sorted(chained(tmp_path, carried=True, slots=slots), key=ran)
    assert low.audit and high.audit and low.seed and (low.audit.problem, high.audit.problem) == ("", "")
    assert high.completions is not None and len(high.completions) > 10
    kept = audit.draw(audit.handed_at(tmp_path, high.key), high.audit.sha256)
    (given,), (number,), (output,) = kept["taken"], kept["taken_serials"], kept["outputs"]
    (before,) = kept["previous_digests"]
    assert given.tolist() == output.tolist() == [nonce(low.seed, int(number))] * 2
    assert outputs.digest(int(number), given.tobytes()) == before.tobytes()
    assert (low.carried_ns, high.carried_ns) == (1_000_000, 2_000_000)
    assert (low.carried_bytes, high.carried_bytes) == (144, 144), "a header of 128 bytes and two numbers"
    assert not list((tmp_path / "raw").glob("*.npy"))


def test_the_time_that_a_worker_says_it_carried_is_cut_to_its_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Worker.fed

    def lying(worker: Worker, timeout_s: float, window: Any) -> Fed:
        return fed(worker, timeout_s, window).model_copy(update={"carried_ns": 10**15})

    monkeypatch.setattr(Worker, "fed", lying)
    for record in chained(tmp_path, carried=True):
        done = not_none(record.completions)
        assert record.carried_ns == int((done.yielded_ns[done.ends - 1] - done.issued_ns).sum()) // len(done)


def ran(record: Record) -> bool:
    return record.route.suite == "high"


def test_a_run_with_a_pipeline(duo: Shell) -> None:
    """Its stages alone are measured anyway, and it runs after the mix."""
    chain = '[mine]\nstages = [{ suite = "low" }, { suite = "high" }]\ndeadline_s = { smoke = 9 }\n'
    (duo.folder / "mine.toml").write_text(chain)
    done = run(duo, "--pipeline", "mine.toml")
    assert done.returncode == 0, done.stderr
    assert "in the pipeline, low on npu:" in done.stderr
    assert "pipeline mine" in done.stdout and "alone" in done.stdout
    result = store.open(duo.folder / "out")
    assert [phase.name for phase in result.phases if phase.placement] == ["mix1", "pipeline1", "pipeline1-alone"]
    found = judge(result).experiments["pipeline"]
    assert isinstance(found, PipelineFigures)
    assert [each.problems for each in found.turns] == [(), ()] and found.gain is not None
