from __future__ import annotations

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.judge.assessment import judge
from mixmark.harness.measure.request import RunRequest
from mixmark.harness.measure.run import prepare
from mixmark.harness.record import store
from tests.capabilities.policies.test_policies import compared
from tests.cli.shell import Shell
from tests.measure.test_benchmark import result, run

pytestmark = pytest.mark.usefixtures("inline_workers")
MINE = """
class Mine:
    def __init__(self, seconds, plan):
        self.seconds = seconds

    def choose(self, waiting, devices, now_ns):
        return waiting[-1], next(each.device for each in devices if each.device in self.seconds[waiting[-1].suite])
"""


def test_a_policy_takes_turns_with_the_plan(duo: Shell) -> None:
    (duo.folder / "mine.py").write_text(MINE)
    done = run(duo, "--policy", "./mine.py:Mine")
    assert done.returncode == 0, done.stderr
    assert "in the mix by mine, low on npu:" in " ".join(done.stderr.split())
    assert [phase["name"] for phase in result(duo)["phases"] if phase["placement"]] == ["mix1", "mine1"]
    assert "plan over mine" in " ".join(done.stdout.split())
    judged = judge(store.open(duo.folder / "out"))
    assert compared(judged)[0].gain is not None


def test_a_policy_that_fails_costs_its_own_phases_alone(duo: Shell) -> None:
    (duo.folder / "mine.py").write_text(MINE.replace("waiting[-1], next", "waiting[9999], next"))
    done = run(duo, "--policy", "./mine.py:Mine")
    assert done.returncode == 1
    assert "the policy failed: IndexError" in " ".join(done.stderr.split())
    judged = judge(store.open(duo.folder / "out"))
    assert judged.score is not None and judged.score.mixes_per_hour is not None
    assert compared(judged)[0].gain is None


def test_a_policy_that_does_not_exist_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="there is no policy 'round-robbin'"):
        prepare(RunRequest(tier="smoke", experiments={"policies": {"policies": ("round-robbin",)}}))
