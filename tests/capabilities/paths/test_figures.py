"""The latency and the bandwidth of a path, from times that are known to the digit."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.paths import blocks
from mixmark.harness.capabilities.paths.facts import CopyFault, CopySample, PathRecord
from mixmark.harness.capabilities.paths.figures import PathFigures, paths
from mixmark.harness.contracts.schema import Failure, Hosts, Result
from mixmark.harness.judge.assessment import Assessment, judge
from tests.capabilities.paths.fakes import PATH, on_host, with_paths
from tests.golden import sample
from tests.golden.sample import but

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
    found = sample.result()
    system = but(found.system, caches=caches or {})
    return with_paths(but(found, system=system), *records)


def figures_of(assessment: Assessment) -> tuple[PathFigures, ...]:
    found = assessment.experiments["paths"]
    assert isinstance(found, tuple)
    return found


def judged(result: Result) -> tuple[PathFigures, ...]:
    return figures_of(judge(result))


def figures(*of_sizes: tuple[CopySample, ...], through_caches: bool = False, **caches: str) -> PathFigures:
    path = but(PATH, through_caches=through_caches)
    (found,) = paths(result(PathRecord(path=path, samples=sum(of_sizes, ())), caches=caches))
    return found


def line(size: int) -> int:
    """5 µs and 2 bytes a nanosecond."""
    return 5000 + size // 2


def on_line(*sizes: int) -> tuple[CopySample, ...]:
    """Six copies of each size, in the time of the line."""
    return sum((samples(size, *[line(size)] * 6) for size in sizes), ())


def test_the_pair_is_that_of_the_line() -> None:
    found = figures(on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB))
    assert found.latency_s is not None and found.bytes_per_s is not None
    assert (found.latency_s.estimate, *found.latency_s.ends) == pytest.approx((5e-6, 5e-6, 5e-6))
    assert (found.bytes_per_s.estimate, *found.bytes_per_s.ends) == pytest.approx((2e9, 2e9, 2e9))
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
    assert (larger.bytes_per_s, len(larger.sizes)) == (None, 4)
    assert larger.reason == "no copy was four times as large as the last cache"
    assert {each.memory for each in figures(*times, through_caches=True).sizes} == {None}


def test_a_latency_that_does_not_show_has_a_reason() -> None:
    found = figures(samples(4 * KIB, 100), samples(16 * KIB, 1000), samples(MIB, line(MIB)))
    assert (found.latency_s, found.reason) == (None, "no latency follows from the times of its copies")
    assert found.bytes_per_s is not None
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
    assert figures(samples(4 * KIB, *[1000] * 5, 10_001)).sizes == ()


def test_what_a_plugin_copied_by_its_own_code_has_no_joules() -> None:
    record = PathRecord(path=PATH, samples=on_line(4 * KIB, 16 * KIB, MIB, 64 * MIB), own_code=True)
    (found,) = judged(result(record))
    assert found.latency_s is not None and found.bytes_per_s is not None
    assert (found.energy, found.energy_reason) == (None, "the copies are a plugin's own")
    assert blocks.table([found]).rows[0][2] == "fake/copy, as its plugin says"


def test_a_path_that_failed_has_the_reason_of_the_failure() -> None:
    failed = PathRecord(path=PATH, samples=samples(4 * KIB, 100), failure=Failure(kind="raised", message="it is gone"))
    (found,) = paths(result(failed))
    assert (found.latency_s, found.reason) == (None, "it is gone")


@pytest.mark.parametrize("kind", ["corrupted", "late"])
def test_a_wrong_copy_is_a_finding_and_no_figure(kind: str) -> None:
    right = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)))))
    assert not any(each.rule.startswith("path") for each in right.findings)
    fault = CopyFault.model_validate({"kind": kind, "size_bytes": 4096, "first_byte": 7})
    assessment = judge(result(PathRecord(path=PATH, samples=samples(MIB, line(MIB)), fault=fault)))
    (finding,) = (each for each in assessment.findings if each.rule == "path_verified")
    assert (finding.code, finding.about) == (f"path_verified.{kind}", PATH.id)
    assert finding.values == {"size_bytes": 4096, "first_byte": 7}
    (found,) = paths(assessment.result)
    assert (found.sizes, found.bytes_per_s) == ((), None)


def test_over_several_hosts_a_path_has_the_cache_of_its_own_host() -> None:
    """The cache of host1 is of 16 MiB, so that copies of 64 MiB reach memory. The cache of host2 holds them."""
    whole = sample.sample()
    caches = {"host1": "16M", "host2": "32M"}
    groups = tuple(Hosts(names=(name,), system=but(whole.system, caches={"L3": size})) for name, size in caches.items())
    path = but(PATH, destination="host", through_caches=True)
    own = PathRecord(path=path, samples=on_line(MIB, 4 * MIB, 64 * MIB))
    several = but(whole, hosts=groups, system=groups[1].system)
    first, second = paths(with_paths(several, *(on_host(name, own) for name in caches)))
    assert [each.sizes[-1].memory for each in (first, second)] == ["memory", "cache"]
    assert (first.path.source, second.path.source) == ("host1/host", "host2/host")
