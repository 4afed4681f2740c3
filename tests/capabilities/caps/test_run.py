"""Power caps in a whole run, and their limiters in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mixmark.harness.capabilities.caps import power_caps
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from tests.capabilities.caps.test_power_caps import laid_out, limit_w
from tests.cli.shell import Shell
from tests.measure.test_benchmark import BAND, ENTRY_POINTS, MIXED, result, run

PACKAGE = """
from pathlib import Path
from mixmark.harness.capabilities.caps.facts import PowerLimit
from mixmark.harness.capabilities.caps.limiters import Packages

class Limiter(Packages):
    name = "duo"

    def __init__(self):
        super().__init__(Path(__file__).parents[1] / "root")

    def limits(self, devices):
        yield PowerLimit(id="duo/intel-rapl:0", watts=self.read("duo/intel-rapl:0"))
"""
AS_ROOT = """
from pathlib import Path
from mixmark.harness.capabilities.caps import power_caps
from mixmark.harness.worker import handle
from tests.fakes.inline import InlineProcess
handle.ChildProcess = InlineProcess
power_caps.STATE = Path("power-limits.json").absolute()
power_caps.os.geteuid = lambda: 0
"""


@pytest.mark.slow
@pytest.mark.realtime
def test_caps_follow_the_mix_and_leave_the_limit_as_it_was_also_after_a_kill(
    duo: Shell, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_caps, "STATE", duo.folder / "power-limits.json")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    duo.install("duo", f"{ENTRY_POINTS}[mixmark.limiters]\nduo = duo:Limiter\n")
    with (duo.folder / "site/duo.py").open("a") as suites:
        suites.write(PACKAGE)
    tree = laid_out(duo.folder / "root")
    done = run(duo, "--power-cap", "100,80,60")
    assert done.returncode == 0, done.stderr
    content = result(duo)
    assert [phase["name"] for phase in content["phases"] if phase["placement"]] == ["mix1", "cap80", "cap60"]
    assert content["experiments"]["caps"]["limits"] == [{"id": "duo/intel-rapl:0", "watts": 125.0, "least_watts": 0.0}]
    assert "at 80 % power, low on npu:" in " ".join(done.stderr.split())
    assert "less power" in done.stdout
    assert limit_w(tree) == 125

    (duo.folder / "out").rename(duo.folder / "first")
    with duo.start("run", *MIXED, "--power-cap", "60", first=f"exec({AS_ROOT!r})") as child:
        while limit_w(tree) == 125:
            assert child.poll() is None, child.communicate()
            time.sleep(0.01)
        child.kill()
    assert limit_w(tree) == 75
    again = duo("run", "--adapter", BAND, "--resume", "out")
    assert "a killed run left the power limit of duo/intel-rapl:0 lowered; it is restored" in again.stderr
    assert again.returncode == 0, again.stderr
    assert limit_w(tree) == 125


@pytest.mark.slow
def test_a_limiter_of_another_package_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Plugin("limiters", "limiter", f"{Path(__file__).with_name('limiter.py')}:Limiter", "acme 1.0")
    monkeypatch.setattr(registry, "find", lambda kind: {"limiter": here})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (control,) = power_caps.find(["cpu:0"])
    assert control.read() == 100
    with pytest.raises(MixmarkError, match="OSError: "):
        control.write(80)
    assert int(control.limit.id.partition("/")[2]) != os.getpid()
