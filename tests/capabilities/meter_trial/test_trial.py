"""A meter that follows a load is tried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mixmark import Device, Domain, Sample
from mixmark.harness.capabilities.meter_trial import trial as meter_trial
from mixmark.harness.capabilities.meter_trial.command import _disagreements
from mixmark.harness.capabilities.meter_trial.trial import MeterTrial, StepResponse
from mixmark.harness.machine import config, other_load
from mixmark.harness.machine.other_load import OtherLoad
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plugins import registry
from mixmark.harness.resources import clock
from tests.cli.shell import Shell
from tests.fakes.machine import WALL
from tests.measure.test_metering import CPU

LOAD = [60.0]


class Follows:
    """Reads 60 W, and 160 W while the CPUs are busy."""

    name = "follows"
    needs_section = True

    def __init__(self, options: Mapping[str, str]) -> None:
        pass

    def domains(self, devices: Iterable[Device]) -> Iterable[Domain]:
        return [WALL.model_copy(update={"id": "follows", "meter": "follows"})]

    def read(self, domain: Domain) -> Sequence[Sample]:
        return [Sample(LOAD[0] + clock.now_ns() % 97 / 1000)]


class Late(Follows):
    """Reports each reading 1.5 s late."""

    def read(self, domain: Domain) -> Sequence[Sample]:
        (sample,) = super().read(domain)
        return [Sample(sample.value, clock.now_ns() - 1_500_000_000)]


@contextmanager
def load() -> Iterator[None]:
    LOAD[0] = 160.0
    yield
    LOAD[0] = 60.0


def test_sources_of_the_same_parts_are_compared() -> None:
    response = StepResponse(watts=(), idle_watts=60.0, full_watts=160.0, noise_watts=1.0, lag_ns=None)
    ids = {"a": response, "b": replace(response, full_watts=200.0), "silent": replace(response, full_watts=None)}
    tried = [MeterTrial(WALL.model_copy(update={"id": id}), each, None, "") for id, each in ids.items()]
    tried.append(MeterTrial(WALL.model_copy(update={"id": "other", "covers": ("gpu:0",)}), response, None, ""))
    assert [*_disagreements(tried)] == ["b reads 1.25 × the watts of a under load."]


def waits(load: OtherLoad | None) -> Callable[[Callable[[float], object]], OtherLoad | None]:
    def sample(wait: Callable[[float], object]) -> OtherLoad | None:
        wait(other_load.SAMPLE_S)
        return load

    return sample


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "meters", {**registry.BUILT_IN["meters"], "follows": f"{__name__}:Follows"})


def test_a_meter_is_tried_against_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meters: None, jumping_clock: object
) -> None:
    monkeypatch.setattr(other_load, "sample", waits(OtherLoad(1.82, 2, {})))
    monkeypatch.setattr(meter_trial.trials, "__defaults__", (load,))
    (tmp_path / "mixmark.toml").write_text('[meter.follows]\nboundary = "wall"\n')
    shell = Shell(tmp_path)
    done = shell("meters", "--load", "3")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    for words in (
        "follows (wall), covers",
        "it follows the load",
        "with the boundary wall",
        "other programs used 91.0 % of the machine's CPU time",
    ):
        assert words in text
    monkeypatch.setattr(other_load, "sample", waits(None))
    shown = json.loads(shell("meters", "--load", "3", "--json").stdout)
    assert (shown["busy"], shown["boundary"]) == (None, "wall")
    [source] = shown["tried"]
    assert source["idle_watts"] == pytest.approx(60, abs=5)
    assert source["full_watts"] == pytest.approx(160, abs=5)
    assert len(source["watts"]) == 60


def test_a_source_that_reports_late_is_read_to_the_end(jumping_clock: object, in_process: None) -> None:
    plugin = registry.Plugin("meters", "follows", f"{__name__}:Late", "test")
    with Meters(config.Config(meters={"follows": {}}), (CPU,), {"follows": plugin}) as found:
        (live,) = meter_trial.live(found, 5.0)
    assert "ended early" not in live.reading.reasons
    assert live.watts == pytest.approx(60, abs=0.1)
