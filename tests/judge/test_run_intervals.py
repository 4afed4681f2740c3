"""The interval of TX on machines of known speed, by the dispatcher and the figures of a real run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from bench import intervals
from mixmark.harness.judge import mixed_run
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.score import figures
from tests.fakes import machine
from tests.judge.found import not_none


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 3.0)])
def test_runs_of_constant_speed_are_as_uncertain_as_their_surplus(
    speeds: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs end with about the same surplus, so neither the blocks of one nor the scatter of several show it."""
    monkeypatch.setattr(intervals, "FEED_NOISE", 0.0)
    run, truth = intervals.run(speeds, {}, np.random.default_rng(1))
    most = (1 + 0.001 * (len(speeds) > 1)) / (1 - run.surplus)
    assert 0.003 < run.surplus <= 0.005 and run.of_suite("llm").feeds == (2 if len(speeds) == 1 else 6)
    for runs, kind in (([run], "window"), ([run] * 3, "interval")):
        tx = not_none(figures(runs)[0])
        assert (tx.low, tx.high) == pytest.approx((tx.estimate, tx.estimate * most), rel=1e-3)
        assert tx.kind == kind and tx.half_width == pytest.approx(most - 1, rel=0.1)
        assert tx.ends[0] < truth < tx.ends[1] and truth > tx.estimate * 1.003


def test_the_feeds_of_a_suite_with_few_vary_as_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two outputs of llm show no pace of their own. With a self-test of the machine its floor is added in squares."""

    def half(fewest: int, floor: float | None = None) -> float:
        monkeypatch.setattr(mixed_run, "FEWEST_FEEDS", fewest)
        random = np.random.default_rng(5)
        run, _ = intervals.run((1.0,), {"npu:0": intervals.wandering(0.01, 2, random)}, random, floor)
        assert run.mixes_per_hour.kind == ("window" if floor is None else "interval")
        return 1 - not_none(run.mixes_per_hour.low) / run.mixes_per_hour.estimate

    seen, imputed, with_floor = half(1), half(6), half(6, 0.03)
    assert (seen, imputed, with_floor) == pytest.approx((0.00305, 0.00353, np.hypot(imputed, 0.03)), rel=5e-3)
    assert intervals.run((1.0,), {}, np.random.default_rng(1))[0].mixes_per_hour.low is not None
    monkeypatch.setattr(mixed_run, "FEWEST_FEEDS", 1000)
    assert intervals.run((1.0,), {}, np.random.default_rng(1))[0].mixes_per_hour.low is None, "none shows a pace"


@pytest.mark.parametrize(("fewest", "paces"), [(2, [4.0, 4.0]), (3, [2.0, 6.0])])
def test_a_record_of_few_feeds_paces_by_the_time_that_they_took(
    fewest: int, paces: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feed of 1 s and one of 3 s, in blocks as long: that they differ is no change of the machine's pace."""
    monkeypatch.setattr(mixed_run, "FEWEST_FEEDS", fewest)
    edges_ns = np.array([0, 10**9, 4 * 10**9])
    done = machine.completions(list(pairwise(edges_ns.tolist())), 10)
    counted = mixed_run._Counted(machine.record("mix1", ("a", "gpu:0"), done, (0, 4 * 10**9)), done, np.ones(2, bool))
    assert mixed_run._paces([counted], {"gpu:0": 2.0}, edges_ns)[0].tolist() == paces


@pytest.mark.parametrize(("slower", "half"), [(1.0, 0.0), (1.1, 0.05), (1.3, 0.15), (1.6, None)])
def test_what_the_probes_around_a_mix_differ_by_is_part_of_its_margin(slower: float, half: float | None) -> None:
    """A neighbour on the host who came meanwhile widens the figure of one run, and forbids it only the rank."""
    told = machine.one_run(None)
    probes = [machine.probe("gpu:0", machine.GEMM, machine.READ, took_ns=round(each * 1e9)) for each in (1, slower)]
    around = [
        each.model_copy(update={"key": f"around{at}.p", "phase": f"around{at}.p"}) for at, each in enumerate(probes)
    ]
    found = judge(told.model_copy(update={"records": (*told.records, *around)}))
    tx, alone = not_none(not_none(found.score).mixes_per_hour), not_none(not_none(judge(told).score).mixes_per_hour)
    assert (tx.estimate, found.verdict.word) == (alone.estimate, "rough" if slower > 1.1 else "fair")
    if half is None:
        assert tx.low is None, "a quarter is the widest"
    else:
        own = 1 - not_none(alone.low) / alone.estimate
        assert 1 - not_none(tx.low) / tx.estimate == pytest.approx(np.hypot(own, half))


def test_a_stretch_at_another_speed_widens_the_figure_by_what_it_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour takes a quarter of the speed from the 40th to the 70th second."""
    monkeypatch.setattr(intervals, "FEED_NOISE", 0.0)
    at_s, work_s = np.array([0.0, 40, 70, 1000]), np.array([0.0, 40, 62.5, 992.5])

    def clock(since_s: float, needs_s: float) -> float:
        return float(np.interp(np.interp(since_s, at_s, work_s) + needs_s, work_s, at_s) - since_s)

    run, truth = intervals.run((1.0,), {"npu:0": clock}, np.random.default_rng(1))
    tx, moved = run.mixes_per_hour, not_none(run.stretch).moved
    assert (run.steady, round(moved, 3), run.widened_by) == (False, 0.038, "speed")
    assert tx.estimate < 0.96 * truth < truth < tx.ends[1] and moved < 1 - tx.ends[0] / tx.estimate < moved + 0.02
