"""Copies are timed by the parent, and each destination is compared whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn, cast
from unittest import mock

import numpy as np
import pytest

from mixmark.harness.capabilities.paths import beside as phase_beside
from mixmark.harness.capabilities.paths import measuring
from mixmark.harness.capabilities.paths.beside import BESIDE, beside
from mixmark.harness.capabilities.paths.facts import CopyWork, DataPath, PathRecord
from mixmark.harness.capabilities.paths.figures import paths
from mixmark.harness.capabilities.paths.measuring import (
    Data,
    SteadyCopies,
    measure,
    measured,
    moves,
    opposed,
    way_back,
)
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.schema import Absent, Metering, Phase, Record, Tier
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import executor, mixed
from mixmark.harness.measure.executor import LocalExecutor, PhaseRequest
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.phase import Driver
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from tests.capabilities.paths import fakes as copies
from tests.capabilities.paths.fakes import BACK, PATH, Dying, Halved, Known, with_paths
from tests.capabilities.paths.test_plugins import BY_LINUX
from tests.fakes.clock import JumpingClock
from tests.fakes.machine import EDGE, of_experiment, one_run
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
        (copies.Once, "short", 0),
        (copies.Short, "short", 4000),
        (copies.Repeating, "repeated", 0),
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
    lacking, fine, opposed, raises, dies = measure(seed=1)
    assert isinstance(opposed, PathRecord)
    assert (opposed.key, opposed.fault, opposed.failure) == ("fakes/fine against fakes/fine", None, None)
    assert {sample.size_bytes for sample in opposed.samples} == {1 << 20}
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
    found = [each for each in measure([absent("fakes/fine against fakes/fine")]) if isinstance(each, PathRecord)]
    assert [(each.key, each.failure is None) for each in found] == [("fakes/dies", False), ("fakes/fine", True)]


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
    found = {each.key: each for each in measure() if isinstance(each, PathRecord)}
    both_ways = [f"{name} against {name}" for name in ("host/copy", *BY_LINUX)]
    assert {*both_ways, "host/copy", *BY_LINUX, "host/bf16-fp32", "host/heads-tokens"} <= found.keys()
    for record in found.values():
        assert (record.fault, record.failure) == (None, None)
        assert len(record.samples) == (1 if record.opposing else 3) * 2 * measuring.SAMPLES


@pytest.mark.slow
def test_paths_that_are_known_are_left_out(only: Callable[[str], Plugin]) -> None:
    only("Fakes")
    alone = [path for path in copies.Fakes().paths() if isinstance(path, DataPath)]
    opposing = [PathRecord(path=path, opposing=path.id) for path in alone if path.id != "fakes/fine"]
    (found,) = measure([*(PathRecord(path=path) for path in alone), *opposing, absent("fakes/none")])
    assert isinstance(found, PathRecord)
    assert (found.key, found.fault, found.failure) == ("fakes/fine against fakes/fine", None, None)
    assert list(measure([absent("fakes")])) == []


def with_back(fake: Known, other: Known) -> PathRecord:
    return opposed(PATH, BACK, fake, other, Data(1), 1 << 40)


@pytest.mark.usefixtures("_simulated")
def test_beside_an_opposing_path_the_largest_size_is_measured() -> None:
    other = Known(2_000, 0.05)
    record = with_back(Halved(2_000, 0.05, rival=other), other)
    (found,) = paths(with_paths(sample.result(), record))
    assert (record.key, record.fault, record.failure) == ("fake/copy against fake/back", None, None)
    assert [each.size_bytes for each in found.sizes] == [1 << 20]
    assert found.bytes_per_s is not None
    assert found.bytes_per_s.estimate == pytest.approx(1e9 / 0.1, rel=0.03), (
        "the other way takes a half of the bandwidth"
    )
    assert (found.opposing, found.latency_s, found.moves, found.reason) == ("fake/back", None, (), None)


@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize(("rival", "kind"), [(copies.Corrupting, "corrupted"), (copies.Repeating, "repeated")])
def test_an_opposing_path_that_copies_wrongly_opposes_nothing(rival: type[Known], kind: str) -> None:
    record = with_back(Known(2_000, 0.05), rival(2_000, 0.05))
    assert record.fault is not None
    assert (record.fault.kind, record.opposing, record.samples) == (kind, "fake/back", ())


@pytest.mark.usefixtures("_simulated")
def test_an_opposing_path_that_fails_leaves_its_reason() -> None:
    record = with_back(Known(2_000, 0.05), Dying(2_000, 0.05))
    assert record.failure is not None
    assert (record.failure.message, record.samples) == ("it ended with exit code 3", ())


@pytest.mark.usefixtures("_simulated")
def test_no_copy_is_timed_before_the_opposing_process_has_copied() -> None:
    """Its first call takes a second, in which six copies are over."""
    other = Known(10**9 / measuring.OPPOSING, 0)
    seen: list[int] = []

    class Watching(Known):
        def copy(self, times: int, word_at: int) -> int:
            seen.append(other.calls_ended)
            return super().copy(times, word_at)

    assert with_back(Watching(2_000, 0.05), other).samples
    assert min(seen) >= 2, "one call prepares"


@pytest.mark.usefixtures("jumping_clock")
def test_copies_without_an_opponent_do_not_count() -> None:
    """The opposing process copies for as long as nine of ten samples take, and then no more."""
    made = SteadyCopies(WORK, Known(2_000, 0.05), Data(1))
    with made.going_on():
        clock.sleep(1)
    made.check()
    end_ns = clock.now_ns()
    assert made.covers(end_ns - 9 * 10**8, end_ns + 9 * 10**7)
    assert not made.covers(end_ns - 9 * 10**8, end_ns + 11 * 10**7)
    record = measured(PATH, Known(2_000, 0.05), Data(1), 1 << 40, (4096,), made.covers)
    assert record.failure is not None
    assert (record.failure.kind, record.samples) == ("unsupported", ())


@pytest.mark.parametrize(
    ("update", "found"),
    [
        ({}, "fake/back"),
        ({"host_pages": "pageable"}, None),
        ({"route": "staged"}, None),
        ({"converts": "layout"}, None),
    ],
)
def test_the_way_back_is_of_the_same_kind(update: dict[str, str], found: str | None) -> None:
    back = way_back(PATH.model_copy(update=update), [PATH, BACK])
    assert (back and back.id) == found
    itself = PATH.model_copy(update={"destination": "host"})
    assert way_back(itself, [PATH, BACK]) == itself


def moved(suite: str, tier: Tier) -> dict[str, int]:
    return {each.what: each.size_bytes for each in moves([registry.find("suites")[suite]], tier)}


def test_a_language_model_moves_weights_a_kv_cache_and_embeddings() -> None:
    """The KV cache of Llama-3.2-1B: 2 × 16 layers × 8 heads × 64 values of 2 bytes, 32 KiB a token."""
    assert moved("llm", "edge") == {
        "weights": 2_471_628_800,
        "KV cache of 1024 tokens, a layer": 2 << 20,
        "KV cache of 1024 tokens": 32 << 20,
        "KV cache of 8192 tokens, a layer": 16 << 20,
        "KV cache of 8192 tokens": 256 << 20,
        "embeddings of 1024 tokens": 2 * 2048 * 1024,
        "embeddings of 8192 tokens": 2 * 2048 * 8192,
    }


def test_other_suites_move_their_inputs_and_embeddings() -> None:
    images, ratings, prompts = (moved(suite, "edge") for suite in ("resnet50", "dlrm", "diffusion"))
    assert images["inputs of 32"] == 32 * 3 * 224 * 224
    assert images.keys() == {"weights", "inputs of 32"}
    assert ratings["embeddings of 32"] == 32 * 26 * 128 * 2
    assert prompts["embeddings of a prompt"] == 77 * 768 * 2
    assert prompts.keys() == {"weights", "embeddings of a prompt"}


def test_suites_of_others_move_nothing_since_none_of_their_code_runs_here() -> None:
    assert list(moves([Plugin("suites", "mine", "none_such:Mine", "mine 1")], "edge")) == []


WORK = CopyWork(path="fake/copy", size_bytes=1 << 20)


def steady(fake: copies.Counted) -> PathRecord:
    """Its window reaches from within the fourth call to within the sixteenth, if there are so many."""
    made = SteadyCopies(WORK, fake, Data(1))
    with made.going_on():
        fake.reached.wait()
    return made.record("path", fake.at_ns[min(3, len(fake.at_ns) - 1)], fake.at_ns[min(15, len(fake.at_ns) - 1)])


@pytest.mark.usefixtures("jumping_clock")
def test_copies_beside_a_phase_count_inside_of_its_window() -> None:
    record = steady(copies.Counted(calls=20))
    assert (record.key, record.alone, record.fault, record.failure) == ("fake/copy beside path", False, None, None)
    assert [sample.size_bytes for sample in record.samples] == [1 << 20] * measuring.SAMPLES
    assert sum(sample.copies for sample in record.samples) == 11 * measuring.OPPOSING, "neither call at an edge"


@pytest.mark.usefixtures("jumping_clock")
@pytest.mark.parametrize(
    ("fake", "kind"), [(copies.CountedWrong(calls=2), "corrupted"), (copies.CountedDying(calls=2), "raised")]
)
def test_copies_beside_a_phase_that_end_or_are_wrong_count_nothing(fake: copies.Counted, kind: str) -> None:
    record = steady(fake)
    ended = record.fault or record.failure
    assert ended is not None
    assert (ended.kind, record.samples) == (kind, ())


@pytest.mark.usefixtures("jumping_clock")
def test_a_window_in_which_no_call_was_over_had_no_copies_beside_it() -> None:
    made = SteadyCopies(WORK, copies.Counted(calls=1), Data(1))
    with made.going_on():
        pass
    record = made.record("path", 0, 1)
    assert record.failure is not None
    assert (record.failure.message, record.samples) == (
        "no call of the copies was over within the window of the mix",
        (),
    )


@pytest.mark.usefixtures("jumping_clock")
def test_a_phase_does_not_wait_for_the_last_call_of_its_copies() -> None:
    """The watch of a phase ends with its window."""
    fake = copies.Held()
    made = SteadyCopies(WORK, fake, Data(1))
    with made.going_on():
        fake.begun.wait()
    assert fake.ended == 2, "the call that prepared, and the first one"
    fake.let_go.set()
    record = made.record("path", 0, clock.now_ns() + 10**10)
    assert (fake.ended, sum(sample.copies for sample in record.samples)) == (3, 2 * measuring.OPPOSING)


@pytest.mark.usefixtures("jumping_clock")
def test_a_path_that_is_gone_is_refused() -> None:
    with pytest.raises(Unsupported, match="gone/copy is no longer here"):
        SteadyCopies(CopyWork(path="gone/copy", size_bytes=8), Known(1, 1), Data(1))
    with (
        pytest.raises(Unsupported, match="the plugin of the path gone/copy"),
        beside(CopyWork(path="gone/copy", size_bytes=8)),
    ):
        pass
    with (
        pytest.raises(Unsupported, match="do not fit into the memory"),
        beside(CopyWork(path="host/copy", size_bytes=1 << 50)),
    ):
        pass


@pytest.mark.usefixtures("jumping_clock")
def test_the_windows_of_the_meters_have_the_parts_of_time_that_copies_take() -> None:
    """A copy of 1 MiB takes 1.05 ms, and each call 0.1 ms more."""
    fake = Known(0, 1.0)
    windows = tuple(SteadyCopies(WORK, fake, Data(1)).duty())
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
    (fine,) = copies.One().paths()
    assert isinstance(fine, DataPath)
    known = [PathRecord(path=fine, opposing=fine.id)]
    (own,) = measure(known, seed=1, meters=cast(Meters, Reading()))
    assert isinstance(own, PathRecord) and own.samples
    assert (own.own_code, own.duty) == (True, ()), "a plugin's own code has no joules"
    monkeypatch.setitem(registry.BUILT_IN, "paths", {"fakes": plugin.spec})
    record, metering = measure(known, seed=1, meters=cast(Meters, Reading()))
    assert isinstance(record, PathRecord) and isinstance(metering, Metering)
    assert not record.own_code
    assert (record.key, record.metering, metering.phase) == ("fakes/fine", "paths.fakes.0", "paths.fakes.0")
    assert [bool(window.copied_bytes) for window in record.duty] == [bool(part) for part in measuring.DUTIES]
    assert metering.begin_ns <= record.duty[0].begin_ns
    assert record.duty[-1].end_ns <= metering.end_ns
    assert [window.end_ns for window in record.duty] == sorted(window.end_ns for window in record.duty)


def test_copies_that_cannot_begin_fail_no_record_of_the_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = CopyWork(path=PATH.id, size_bytes=4096)
    phase = of_experiment("paths", work, one_run(None).phases[0])

    def gone(work: CopyWork) -> NoReturn:
        raise Unsupported("the bus is gone")

    def attend(phase: Phase, equipment: object, folder: Path, drive: Driver, *more: Any) -> list[Record]:
        *_, on_ready = more
        on_ready([])
        drive([])
        return []

    monkeypatch.setattr(mixed, "local_driver", lambda *_: mock.Mock())
    monkeypatch.setattr(executor, "attend", attend)
    monkeypatch.setattr(phase_beside, "beside", gone)
    with Meters(Config(), (), {}) as meters:
        made = LocalExecutor(cast(Equipment, None), tmp_path, meters)
        facts = next(made.measure(PhaseRequest(phase, 0, EDGE, ()), lambda event: None))
    assert facts.found == (Absent(kind="path", name=BESIDE, reason="the bus is gone"),)
