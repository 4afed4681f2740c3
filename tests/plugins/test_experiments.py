"""A new experiment is its modules and their entries in the manifest: no other file names it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import click
import pytest

from mixmark.harness.cli.eta import Eta
from mixmark.harness.cli.run import run as command
from mixmark.harness.contracts.schema import Fact, Result
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.mixed_run import ScoredRun, run_of
from mixmark.harness.measure.experiments import Experiment
from mixmark.harness.measure.run_state import RunState, Steps
from mixmark.harness.plugins import experiments, options
from mixmark.harness.plugins.experiments import Facts
from mixmark.harness.plugins.manifest import BUILT_IN, OPTIONS
from mixmark.harness.record import store
from mixmark.reporters.experiments import Section
from tests.cli.shell import Shell
from tests.measure.test_benchmark import run
from tests.measure.test_benchmark import shell as duo

__all__ = ["duo"]

pytestmark = pytest.mark.usefixtures("inline_workers")


# The modules of the experiment begin here.
ENCORE_OPTIONS = (click.Option(["--encore"], is_flag=True, help="Also run the mix once more."),)


class Asked(Fact):
    encore: bool


FACTS = Facts(of_run=Asked)


class Encore(Experiment):
    name = "encore"

    def next(self, state: RunState) -> Steps:
        return () if state.of(self.name) else (state.experiment(self.name, Fact()),)


def figures(judged: Assessment) -> ScoredRun | None:
    phase = next(each for each in judged.result.phases if each.experiment == "encore")
    return run_of(judged.result, judged.score.mix, phase, judged.doubts) if judged.score else None


class EncoreSection(Section):
    def lines(self, judged: Assessment, figures: ScoredRun) -> Iterable[tuple[str, str]]:
        yield "once more", in_words(figures)


def in_words(run: ScoredRun) -> str:
    return f"{run.mixes_per_hour.estimate:.0f} mixes per hour"


PARTS = {"experiments": "FACTS", "stages": "Encore", "figures": "figures", "sections": "EncoreSection"}
# They end here.


@contextmanager
def installed() -> Iterator[None]:
    """Has the entries of the manifest, which the command line reads when it is imported."""
    caches = options.options, experiments.parts
    for each in caches:
        each.cache_clear()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(OPTIONS, {"encore": f"{__name__}:ENCORE_OPTIONS"}))
        stack.enter_context(mock.patch.object(command, "params", [*command.params, *ENCORE_OPTIONS]))
        for kind, part in PARTS.items():
            stack.enter_context(mock.patch.dict(BUILT_IN[kind], {"encore": f"{__name__}:{part}"}))
        yield
    for each in caches:
        each.cache_clear()


def expected_s(header: Result, **changes: Any) -> float:
    changed = header.model_copy(update=changes)
    return Eta(changed, False).total_s


def test_a_new_experiment_needs_no_change_of_another_file(duo: Shell) -> None:
    with installed():
        shown = duo("run", "--help").stdout.partition("Experiments, which are in no score:")[2]
        assert "--encore  " in shown
        done = run(duo, "--encore")
        assert done.returncode == 0, done.stderr
        assert "in the encore, low on npu:a" in " ".join(done.stderr.split())
        result = store.open(duo.folder / "out")
        assert [phase.name for phase in result.phases if phase.placement] == ["mix1", "encore"]
        assert result.experiments == {"encore": {"encore": True}}
        judged = judge(result)
        figures = judged.experiments["encore"]
        assert isinstance(figures, ScoredRun)
        assert f"once more {in_words(figures)}" in " ".join(done.stdout.split())
        of_json = json.loads(duo("report", "out", "--json").stdout)["experiments"]["encore"]
        assert of_json["mixes_per_hour"]["estimate"] == figures.mixes_per_hour.estimate
        header = result.model_copy(update={"phases": [each for each in result.phases if not each.placement]})
        mix_s = expected_s(header, experiments={}) - expected_s(header, experiments={}, mix=None)
        assert expected_s(header) - expected_s(header, experiments={}) == pytest.approx(mix_s) and mix_s > 0
    without = judge(store.open(duo.folder / "out"))
    assert (without.score, without.experiments) == (judged.score, {})
    done = duo("report", "out", "--verbose")
    assert "experiment encore" in done.stdout and "once more" not in done.stdout
