from __future__ import annotations

import json

import pytest

from mixmark.harness.capabilities.ladder.levels import Ladder
from mixmark.harness.cli.eta import Eta
from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store
from tests.cli.shell import Shell
from tests.measure.test_benchmark import result, run

pytestmark = pytest.mark.usefixtures("inline_workers")


def test_a_ladder_follows_the_mix_and_levels_that_cannot_be_are_told(duo: Shell) -> None:
    done = run(duo, "--ladder", "60,0.001")
    assert done.returncode == 0, done.stderr
    assert "at 60 % load, low on npu:" in " ".join(done.stderr.split())
    assert [phase["name"] for phase in result(duo)["phases"] if phase["placement"]] == ["mix1", "load60"]
    assert "not served: duo at 0.0" in " ".join(done.stdout.split())
    found = judge(store.open(duo.folder / "out")).experiments["ladder"]
    assert isinstance(found, Ladder)
    [planned] = found.levels
    assert planned.actual == pytest.approx(0.6, rel=0.2)
    assert all(each.answered == each.arrived for each in planned.responses)
    told = store.open(duo.folder / "out")
    alone = told.model_copy(update={"experiments": {"ladder": {"levels": [0.6]}}})
    eta = Eta(told, False)
    keys = [share.key for phase in told.phases if phase.name == "load60" for share in phase.shares]
    level_s = eta.seconds("phase", "load60") + sum(eta.seconds("audit", key) for key in keys)
    assert eta.total_s - Eta(alone, False).total_s == pytest.approx(level_s), "the next level is as long"
    shown = json.loads(duo("report", "out", "--format", "json").stdout)
    assert [each["target"] for each in shown["experiments"]["ladder"]["levels"]] == [0.6]
