"""Copies are timed by the parent, and each destination is compared whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from mixmark.harness.capabilities.paths import measuring
from mixmark.harness.capabilities.paths.facts import DataPath, PathRecord
from mixmark.harness.capabilities.paths.figures import paths
from mixmark.harness.capabilities.paths.measuring import Data, duty_windows, measure, measured
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.contracts.schema import Absent, Metering
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from tests.capabilities.paths import fakes as copies
from tests.capabilities.paths.fakes import PATH, Known, with_paths
from tests.fakes.clock import JumpingClock
from tests.golden import sample


def absent(name: str) -> Absent:
    return Absent(kind="path", name=name, reason="no path")


@pytest.fixture
def _simulated(_small: None, jumping_clock: JumpingClock) -> None: ...


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "SIZES", (4096, 1 << 16, 1 << 20))


def of(fake: Known) -> PathRecord:
    return measured(PATH, fake, Data(1), 1 << 40)


@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize(("latency_ns", "ns_per_byte"), [(2_000, 0.05), (30_000, 0.5), (400, 0.01)])
def test_a_known_path_is_recovered_within_two_percent(latency_ns: float, ns_per_byte: float) -> None:
    record = of(Known(latency_ns, ns_per_byte))
    (found,) = paths(with_paths(sample.result(), record))
    assert found.latency_s is not None and found.bytes_per_s is not None
    assert found.latency_s.estimate == pytest.approx(latency_ns / 1e9, rel=0.02)
    assert found.bytes_per_s.estimate == pytest.approx(1e9 / ns_per_byte, rel=0.02)
    assert [each.size_bytes for each in found.sizes] == [4096, 1 << 16, 1 << 20]
    assert (record.fault, record.failure) == (None, None)


@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize(
    ("fake", "kind", "first"),
    [
        (copies.Corrupting, "corrupted", 1000),
        (copies.Once, "corrupted", 0),
        (copies.Short, "corrupted", 4000),
        (copies.Repeating, "corrupted", 0),
        (copies.Late, "late", 0),
    ],
)
def test_a_wrong_copy_is_named(fake: type[Known], kind: str, first: int) -> None:
    record = of(fake(2_000, 0.05))
    assert record.fault is not None
    assert (record.fault.kind, record.fault.size_bytes) == (kind, 4096)
    assert record.fault.first_byte == pytest.approx(first, abs=2)
    assert record.samples == ()


@pytest.mark.usefixtures("_simulated")
def test_what_does_not_fit_into_memory_is_left_out_with_its_reason() -> None:
    record = measured(PATH, Known(2_000, 0.05), Data(1), 1 << 16)
    assert {sample.size_bytes for sample in record.samples} == {4096, 1 << 16}
    assert record.failure is not None and record.failure.kind == "unsupported"


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, _small: None, importable: None) -> Callable[[str], Plugin]:
    """Makes a class of the fakes the only plugin."""

    def installed(name: str) -> Plugin:
        plugin = Plugin("paths", "fakes", f"{copies.__file__}:{name}", "test")
        monkeypatch.setattr(registry, "find", lambda kind: {"fakes": plugin})
        return plugin

    return installed


@pytest.mark.slow
def test_a_plugin_runs_in_a_process_of_its_own_and_its_errors_are_its_own(only: Callable[[str], Plugin]) -> None:
    only("Fakes")
    fine, raises, dies, lacking = measure()
    assert isinstance(fine, PathRecord) and isinstance(raises, PathRecord) and isinstance(dies, PathRecord)
    assert (fine.fault, fine.failure) == (None, None)
    assert {sample.size_bytes for sample in fine.samples} == {4096, 1 << 16, 1 << 20}
    assert raises.failure is not None and "the engine is lost" in raises.failure.message
    assert dies.failure is not None and "exit code 3" in dies.failure.message
    assert {sample.size_bytes for sample in dies.samples} == {4096}  # nothing measured is lost
    assert isinstance(lacking, Absent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Brief", "4095 of 4096 bytes were returned"),
        ("BriefWord", "returned 7 bytes"),
        ("Twice", "path fakes/fine is listed twice; each path needs a name of its own that begins with fakes/"),
        ("Foreign", "path host/copy is not the plugin's own"),
        ("Hiding", "mix fakes/edge-1 is not the plugin's own"),
    ],
)
def test_a_plugin_that_breaks_its_contract_is_refused_with_the_reason(
    name: str, reason: str, only: Callable[[str], Plugin]
) -> None:
    only(name)
    (found,) = measure()
    if isinstance(found, PathRecord):
        assert found.failure and reason in found.failure.message
    else:
        assert isinstance(found, Absent) and reason in found.reason


@pytest.mark.slow
def test_a_path_that_ends_its_process_ends_no_other_path(only: Callable[[str], Plugin]) -> None:
    only("DiesFirst")
    found = [each for each in measure() if isinstance(each, PathRecord)]
    assert [(each.path.id, each.failure is None) for each in found] == [("fakes/dies", False), ("fakes/fine", True)]


@pytest.mark.slow
def test_a_full_disk_between_the_processes_fails_its_path_alone(
    only: Callable[[str], Plugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PathProcess(only("One"))) as process:
        monkeypatch.setattr(process, "_file", Path("/dev/full"))
        record = measured(PATH.model_copy(update={"id": "fakes/fine"}), process, Data(1), 1 << 40)
    assert record.failure and "cannot exchange the bytes of a path" in record.failure.message


@pytest.mark.slow
@pytest.mark.usefixtures("_small")
def test_the_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host = registry.find("paths")["host"]
    monkeypatch.setattr(registry, "find", lambda kind: {"host": host})
    found = {each.path.id: each for each in measure() if isinstance(each, PathRecord)}
    assert "host/copy" in found
    for record in found.values():
        assert (record.fault, record.failure, len(record.samples)) == (None, None, 3 * 2 * measuring.SAMPLES)


@pytest.mark.slow
def test_paths_that_are_known_are_left_out(only: Callable[[str], Plugin]) -> None:
    only("Fakes")
    known = [PathRecord(path=path) for path in copies.Fakes().paths() if isinstance(path, DataPath)]
    (found,) = measure([*known[1:], absent("fakes/none")])
    assert isinstance(found, PathRecord)
    assert (found.path.id, found.fault, found.failure) == ("fakes/fine", None, None)
    assert list(measure([absent("fakes")])) == []


@pytest.mark.usefixtures("jumping_clock")
def test_the_windows_of_the_meters_have_the_parts_of_time_that_copies_take() -> None:
    """A copy of 1 MiB takes 1.05 ms, and each call 0.1 ms more."""
    fake = Known(0, 1.0)
    fake.open(PATH.id, 1 << 20, 1)
    windows = tuple(duty_windows(fake, 1 << 20))
    took_ns = 100_000 + (1 << 20)
    parts = [each.copied_bytes / (1 << 20) * took_ns / (each.end_ns - each.begin_ns) for each in windows]
    assert parts == pytest.approx(measuring.DUTIES, abs=0.01)
    assert np.corrcoef(measuring.DUTIES, range(5))[0, 1] == pytest.approx(0, abs=1e-9), "no drift is taken for copies"


class Reading:
    """A meter that says which metering was drained."""

    domains = ("wall",)

    def begin(self) -> None:
        self.begin_ns = clock.now_ns()

    def drain(self, name: str) -> Metering:
        return Metering(phase=name, begin_ns=self.begin_ns, end_ns=clock.now_ns(), cpu_ns=0)


@pytest.mark.slow
def test_a_path_has_the_windows_in_which_its_meters_were_read(
    only: Callable[[str], Plugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = only("One")
    monkeypatch.setattr(measuring, "DUTY_NS", 100_000_000)
    (own,) = measure(meters=cast(Meters, Reading()))
    assert isinstance(own, PathRecord) and own.samples
    assert (own.own_code, own.duty) == (True, ()), "a plugin's own code has no joules"
    monkeypatch.setitem(registry.BUILT_IN, "paths", {"fakes": plugin.spec})
    record, metering = measure(meters=cast(Meters, Reading()))
    assert isinstance(record, PathRecord) and isinstance(metering, Metering)
    assert not record.own_code
    assert (record.path.id, record.metering, metering.phase) == ("fakes/fine", "paths.fakes.0", "paths.fakes.0")
    assert [bool(window.copied_bytes) for window in record.duty] == [bool(part) for part in measuring.DUTIES]
    assert metering.begin_ns <= record.duty[0].begin_ns
    assert record.duty[-1].end_ns <= metering.end_ns
    assert [window.end_ns for window in record.duty] == sorted(window.end_ns for window in record.duty)
