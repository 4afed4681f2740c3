"""The latency and the bandwidth of a path, from times that are known to the digit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mixmark.harness.capabilities.paths import blocks
from mixmark.harness.capabilities.paths.facts import CopyFault, CopySample, CopyWork, Move, PathRecord
from mixmark.harness.capabilities.paths.figures import PathFigures, paths, predicted
from mixmark.harness.contracts.device_ids import on
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Failure, Hosts, Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.plan import mixes
from tests.capabilities.paths.fakes import PATH, on_host, with_paths
from tests.fakes.machine import EDGE, example, one_run, recorded, turn, with_turns
from tests.golden import sample

KIB, MIB = 1 << 10, 1 << 20
CALL = 1000


def samples(size: int, *times_ns: int, copies: int = 10) -> tuple[CopySample, ...]:
    """The samples of a size whose copies take these times, each after a call without a copy."""
    made: list[CopySample] = []
    for ns in times_ns:
        made.append(CopySample(size_bytes=size, copies=0, ns=CALL))
        made.append(CopySample(size_bytes=size, copies=copies, ns=CALL + copies * ns))
    return tuple(made)


def result(*records: PathRecord, caches: dict[str, str] | None = None) -> Result:
    moves = (Move(suite="llm", what="weights", size_bytes=100 * MIB),)
    found = sample.result()
    system = found.system.model_copy(update={"caches": caches or {}})
    return with_paths(found.model_copy(update={"system": system}), *records, moves=moves)


def figures_of(assessment: Assessment) -> tuple[PathFigures, ...]:
    found = assessment.experiments["paths"]
    assert isinstance(found, tuple)
    return found


def judged(result: Result) -> tuple[PathFigures, ...]:
    return figures_of(judge(result))


def figures(*of_sizes: tuple[CopySample, ...], through_caches: bool = False, **caches: str) -> PathFigures:
    path = PATH.model_copy(update={"through_caches": through_caches})
    (found,) = paths(result(PathRecord(path=path, samples=sum(of_sizes, ())), caches=caches))
    return found


def line(size: int) -> int:
    """5 µs and 2 bytes a nanosecond."""
    return 5000 + size // 2


def on_line(*sizes: int, slower: int = 1) -> tuple[CopySample, ...]:
    """Six copies of each size, in so many times the time of the line."""
    return sum((samples(size, *[slower * line(size)] * 6) for size in sizes), ())


def test_the_pair_is_that_of_the_line() -> None:
    found = figures(on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB))
    assert found.latency_s is not None and found.bytes_per_s is not None
    assert (found.latency_s.estimate, *found.latency_s.ends) == pytest.approx((5e-6, 5e-6, 5e-6))
    assert (found.bytes_per_s.estimate, *found.bytes_per_s.ends) == pytest.approx((2e9, 2e9, 2e9))
    (move,) = found.moves
    assert move.predicted_s.estimate == pytest.approx(5e-6 + 50 * MIB * 1e-9)
    assert [each.call_s for each in found.sizes] == [1e-6] * 4
    assert found.sizes[0].bytes_per_s == pytest.approx(4 * KIB / 7.048e-6)


def test_the_interval_is_that_of_the_median() -> None:
    times = [line(MIB) * percent // 100 for percent in (99, 100, 100, 100, 101, 190)]
    (found,) = figures(samples(MIB, *times)).sizes
    assert found.seconds.estimate == pytest.approx(line(MIB) / 1e9)
    assert found.seconds.ends == pytest.approx((min(times) / 1e9, max(times) / 1e9))
    (few,) = figures(samples(MIB, *times[:5])).sizes
    assert few.seconds.half_width is None


def test_copies_below_four_times_the_last_cache_are_called_cache() -> None:
    sizes = (4 * KIB, 16 * KIB, 64 * MIB, 128 * MIB)
    times = [samples(size, line(size)) for size in sizes]
    found = figures(*times, through_caches=True, L3="32M")
    assert [each.memory for each in found.sizes] == ["cache", "cache", "cache", "memory"]
    assert found.bytes_per_s is not None
    assert found.bytes_per_s.estimate == pytest.approx(2e9)
    assert [each.memory for each in figures(*times, L3="32M").sizes] == ["memory"] * 4
    larger = figures(*times, through_caches=True, L3="64M")
    assert (larger.bytes_per_s, larger.moves, len(larger.sizes)) == (None, (), 4)
    assert larger.reason == "no copy was four times as large as the last cache"
    assert {each.memory for each in figures(*times, through_caches=True).sizes} == {None}


def test_a_latency_that_does_not_show_has_a_reason() -> None:
    found = figures(samples(4 * KIB, 100), samples(16 * KIB, 1000), samples(MIB, line(MIB)))
    assert (found.latency_s, found.reason) == (None, "no latency follows from the times of its copies")
    assert found.bytes_per_s is not None and found.moves == ()
    assert figures(samples(4 * KIB, 100)).reason == "fewer than two sizes"
    assert figures(samples(4 * KIB, 0)).sizes == ()


def scattered(*latencies_ns: int) -> PathFigures:
    """The figures of a path whose copies of 4 KiB have these times more than the line's 2,048 ns, and no latency
    else."""
    return figures(
        samples(4 * KIB, *(2048 + ns for ns in latencies_ns)),
        samples(16 * KIB, *(8192 + ns for ns in latencies_ns)),
        on_line(64 * MIB),
    )


def test_a_figure_that_says_nothing_is_not_known() -> None:
    """The ends of an interval below zero, or further apart than a factor of ten."""
    known = scattered(700, 5000, 5000, 5000, 5000, 6900)
    assert known.latency_s is not None
    assert (known.latency_s.estimate, *known.latency_s.ends) == pytest.approx((5e-6, 0.7e-6, 6.9e-6))
    for least_ns in (-1000, 0, 680):
        found = scattered(least_ns, 5000, 5000, 5000, 5000, 6900)
        assert (found.latency_s, found.reason) == (None, "no latency follows from the times of its copies")
        assert found.bytes_per_s is not None and len(found.sizes) == 3
    alone = PathRecord(path=PATH, samples=samples(MIB, *[100_000] * 5, 10_001))
    slow, slower = (samples(MIB, *[100_000] * 5, most) for most in (100_009, 100_011))
    for beside, known_left in ((slow, True), (slower, False)):
        _, shared = judged(result(alone, PathRecord(path=PATH, opposing="fake/back", samples=beside)))
        assert (shared.left is not None) is known_left
    assert figures(samples(4 * KIB, *[1000] * 5, 10_001)).sizes == ()


def test_what_a_plugin_copied_by_its_own_code_is_no_ceiling_and_has_no_joules() -> None:
    record = PathRecord(path=PATH, samples=on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB), own_code=True)
    (found,) = judged(result(record))
    assert found.latency_s is not None and found.bytes_per_s is not None
    assert (found.own_code, found.moves, found.ceilings) == (True, (), ())
    assert (found.energy, found.energy_reason) == (None, "the copies are a plugin's own")
    assert blocks.table([found]).rows[0][2] == "fake/copy (direct), as its plugin says"


def test_a_path_that_failed_has_the_reason_of_the_failure() -> None:
    failed = PathRecord(path=PATH, samples=samples(4 * KIB, 100), failure=Failure(kind="raised", message="it is gone"))
    (found,) = paths(result(failed))
    assert (found.latency_s, found.reason) == (None, "it is gone")


def test_a_prediction_has_both_ends_of_the_pair() -> None:
    found = predicted(1000, Estimate(1.0, 0.5, 2.0), Estimate(1000.0, 500.0, 2000.0))
    assert found == Estimate(2.0, 1.0, 4.0)
    assert predicted(1000, Estimate(1.0), Estimate(1000.0)) == Estimate(2.0)


@pytest.mark.parametrize("kind", ["corrupted", "short", "repeated", "late"])
def test_a_wrong_copy_is_a_finding_and_no_figure(kind: str) -> None:
    right = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)))))
    assert not any(each.rule.startswith("path") for each in right.findings)
    fault = CopyFault.model_validate({"kind": kind, "size_bytes": 4096, "first_byte": 7})
    assessment = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)), fault=fault)))
    (finding,) = (each for each in assessment.findings if each.rule == "path_verified")
    assert (finding.code, finding.about) == (f"path_verified.{kind}", PATH.id)
    assert finding.values == {"size_bytes": 4096, "first_byte": 7}
    (found,) = paths(assessment.result)
    assert (found.sizes, found.bytes_per_s, found.moves) == ((), None, ())


def beside(*of_sizes: tuple[CopySample, ...], **caches: str) -> PathFigures:
    path = PATH.model_copy(update={"through_caches": True})
    record = PathRecord(path=path, opposing="fake/back", samples=sum(of_sizes, ()))
    (found,) = paths(result(record, caches=caches))
    return found


def test_beside_an_opposing_path_the_rate_of_the_size_is_the_bandwidth() -> None:
    times = [line(MIB) * percent // 100 for percent in (99, 100, 100, 100, 101, 190)]
    found = beside(samples(MIB, *times), L3="256K")
    assert found.bytes_per_s is not None
    expected = [MIB * 1e9 / ns for ns in (line(MIB), max(times), min(times))]
    assert [found.bytes_per_s.estimate, *found.bytes_per_s.ends] == pytest.approx(expected)
    assert (found.opposing, found.latency_s, found.moves, found.reason) == ("fake/back", None, (), None)
    small = beside(samples(MIB, *times), L3="1M")
    assert (small.bytes_per_s, small.reason) == (None, "no copy was four times as large as the last cache")
    assert beside().reason == "fewer than two sizes"


def test_a_path_has_the_rate_that_it_allows_a_suite_on_its_device() -> None:
    """Inputs of 32 units and 2,000,000 bytes take 5 µs + 1 ms. The memory of cpu:0 is the host's."""
    record = PathRecord(
        path=PATH.model_copy(update={"destination": "host"}),
        samples=on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB),
    )
    alone = judge(sample.sample()).solos
    rate = max(
        each.units_per_s.estimate
        for each in alone
        if (each.route.suite, each.route.device) == ("llm", "cpu:0") and each.units_per_s
    )
    moves = (
        Move(suite="llm", what="inputs of 32", size_bytes=2_000_000, units=32),
        Move(suite="llm", what="weights", size_bytes=2_000_000),
        Move(suite="none", what="inputs of 32", size_bytes=2_000_000, units=32),
    )
    whole = with_paths(sample.sample(), record, moves=moves)
    (found,) = paths(whole, alone)
    assert [(each.suite, each.device, each.units_per_s) for each in found.ceilings] == [("llm", "cpu:0", rate)]
    assert found.ceilings[0].ceiling_per_s == pytest.approx(32 / 1.005e-3)
    assert found.ceilings[0].fraction == pytest.approx(rate * 1.005e-3 / 32)
    (elsewhere,) = paths(with_paths(whole, record.model_copy(update={"path": PATH}), moves=moves), alone)
    assert elsewhere.ceilings == ()
    wrong = [replace(each, status="invalid") for each in alone]
    assert paths(whole, wrong)[0].ceilings == (), "a rate that does not count is no figure"


def placed(host: str, result: Result) -> Result:
    """The result of a run over several hosts, of which this host measured everything."""
    devices = (
        each.model_copy(update={"id": on(host, each.id), "memory_pool": on(host, each.memory_pool)})
        for each in result.devices
    )
    routes = (each.route.model_copy(update={"device": on(host, each.route.device)}) for each in result.records)
    records = (each.model_copy(update={"route": route}) for each, route in zip(result.records, routes, strict=True))
    return result.model_copy(update={"devices": tuple(devices), "records": tuple(records)})


def test_over_several_hosts_a_path_has_the_cache_and_the_suites_of_its_own_host() -> None:
    """The cache of host1 is of 16 MiB, so that copies of 64 MiB reach memory. The cache of host2 holds them."""
    whole = placed("host1", sample.sample())
    caches = {"host1": "16M", "host2": "32M"}
    groups = tuple(
        Hosts(names=(name,), system=whole.system.model_copy(update={"caches": {"L3": size}}))
        for name, size in caches.items()
    )
    path = PATH.model_copy(update={"destination": "host", "through_caches": True})
    own = PathRecord(path=path, samples=on_line(MIB, 4 * MIB, 64 * MIB))
    to_host1 = own.path.model_copy(
        update={"id": "hosts/host2:host1", "source": "host2/host", "destination": "host1/host"}
    )
    records = (*(on_host(name, own) for name in caches), own.model_copy(update={"path": to_host1}))
    moves = (Move(suite="llm", what="inputs of 32", size_bytes=2_000_000, units=32),)
    several = whole.model_copy(update={"hosts": groups, "system": groups[1].system})
    run = with_paths(several, *records, moves=moves)
    first, second, between = paths(run, judge(run).solos)
    assert [each.sizes[-1].memory for each in (first, second)] == ["memory", "cache"]
    assert (first.path.source, second.path.source) == ("host1/host", "host2/host")
    assert ([each.device for each in first.ceilings], second.ceilings, between.ceilings) == (["host1/cpu:0"], (), ())
    through = to_host1.model_copy(update={"through_caches": False})
    (between,) = paths(with_paths(several, own.model_copy(update={"path": through}), moves=moves), judge(run).solos)
    assert [each.device for each in between.ceilings] == ["host1/cpu:0"], "its inputs may come from host2"


MIXED = one_run(None)
ALONE = PathRecord(path=PATH, samples=on_line(MIB, 64 * MIB))
BESIDE = PathRecord(path=PATH, beside="path", samples=on_line(64 * MIB, slower=2))


def mixed_at(pace: float, *paths: PathRecord, base: Result = MIXED, failure: Failure | None = None) -> PathFigures:
    """The figures of the last path, beside a run of the mix at a part of its pace."""
    made, placement = recorded(example(pace), "path")
    made[0] = made[0].model_copy(update={"cut_short": failure})
    beside_mix = turn("paths", CopyWork(path=PATH.id, size_bytes=64 * MIB), made, placement)
    return judged(with_paths(with_turns(base, {}, beside_mix), *paths))[-1]


def test_beside_the_mix_both_are_parts_of_what_they_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
    found = mixed_at(0.8, ALONE, BESIDE)
    assert found.left is not None and found.mix_left is not None
    assert (found.beside, found.left.estimate, *found.left.ends) == ("path", *[pytest.approx(0.5)] * 3)
    assert found.mix_left.estimate == pytest.approx(0.8, rel=0.01)
    assert (found.mix_reason, found.moves, found.ceilings, found.energy) == (None, (), (), None)
    assert found.bytes_per_s is not None
    assert found.bytes_per_s.estimate == pytest.approx(64 * MIB / (2 * line(64 * MIB)) * 1e9)


def test_without_a_baseline_nothing_is_left_of_it() -> None:
    assert mixed_at(0.8, BESIDE).left is None
    other_size = PathRecord(path=PATH, samples=on_line(MIB))
    assert mixed_at(0.8, other_size, BESIDE).left is None
    lone = result(ALONE, BESIDE)
    (_, found) = judged(lone)
    assert (found.mix_left, found.mix_reason) == (None, "the mixed runs have no rate")
    assert found.left is not None


def test_a_run_of_the_mix_that_counts_nothing_has_its_reason() -> None:
    failed = mixed_at(0.8, ALONE, BESIDE, failure=Failure(kind="crashed", message="it is gone"))
    assert failed.mix_left is None
    assert "it is gone" in (failed.mix_reason or "")
    lost = BESIDE.model_copy(update={"samples": (), "failure": Failure(kind="raised", message="it ended")})
    assert mixed_at(0.8, ALONE, lost).mix_reason == "the copies ended: it ended"
    fault = CopyFault(kind="short", size_bytes=64 * MIB, first_byte=7)
    wrong = mixed_at(0.8, ALONE, BESIDE.model_copy(update={"fault": fault}))
    assert (wrong.left, wrong.mix_left, wrong.mix_reason) == (None, None, "the copies ended: short")


def test_a_part_has_both_ends_of_its_two_rates() -> None:
    alone = PathRecord(path=PATH, samples=samples(MIB, *[100_000] * 2, 80_000, 100_000, 100_000, 160_000))
    slow = samples(MIB, *[400_000] * 2, 320_000, 400_000, 400_000, 1_600_000)
    _, found = judged(result(alone, PathRecord(path=PATH, opposing="fake/back", samples=slow)))
    assert found.left is not None
    assert (found.left.estimate, *found.left.ends) == pytest.approx((0.25, 0.05, 0.5))
    assert (found.mix_left, found.mix_reason) == (None, None), "the mix was not run beside it"


def test_of_copies_without_a_call_alone_its_time_is_not_known() -> None:
    timed = tuple(each for each in BESIDE.samples if each.copies)
    (found,) = paths(result(BESIDE.model_copy(update={"samples": timed})))
    assert [each.call_s for each in found.sizes] == [None]


def test_of_a_phase_that_was_measured_twice_the_later_copies_count() -> None:
    slower = BESIDE.model_copy(update={"samples": on_line(64 * MIB, slower=4)})
    _, found = judged(result(ALONE, BESIDE, slower))
    assert found.left is not None
    assert found.left.estimate == pytest.approx(0.25)
