"""Power caps in a whole run."""

from __future__ import annotations

import os
import time

import pytest

from mixmark.harness.capabilities.caps import power_caps
from mixmark.harness.capabilities.caps.facts import PowerLimit
from mixmark.harness.capabilities.caps.limiters import Packages
from tests.capabilities.caps.test_power_caps import laid_out, limit_w
from tests.cli.shell import Shell
from tests.measure.test_benchmark import BAND, MIXED, result, run

LIMIT = "rapl/intel-rapl:0"
AS_ROOT = """
from pathlib import Path
from mixmark.harness.capabilities.caps import power_caps
from mixmark.harness.capabilities.caps.facts import PowerLimit
from mixmark.harness.capabilities.caps.limiters import Packages
from mixmark.harness.worker import handle
from tests.fakes.inline import InlineProcess
handle.ChildProcess = InlineProcess
power_caps.STATE = Path("power-limits.json").absolute()
power_caps.LIMITERS["rapl"] = Packages(Path("root").absolute())
Packages.limits = lambda self, devices: [PowerLimit(id="rapl/intel-rapl:0", watts=self.read("rapl/intel-rapl:0"))]
power_caps.os.geteuid = lambda: 0
"""


@pytest.mark.slow
@pytest.mark.realtime
def test_caps_follow_the_mix_and_leave_the_limit_as_it_was_also_after_a_kill(
    duo: Shell, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power_caps, "STATE", duo.folder / "power-limits.json")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tree = laid_out(duo.folder / "root")
    monkeypatch.setitem(power_caps.LIMITERS, "rapl", Packages(tree))
    monkeypatch.setattr(Packages, "limits", lambda self, devices: [PowerLimit(id=LIMIT, watts=self.read(LIMIT))])
    done = run(duo, "--power-cap", "100,80,60")
    assert done.returncode == 0, done.stderr
    content = result(duo)
    assert [phase["name"] for phase in content["phases"] if phase["placement"]] == ["mix1", "cap80", "cap60"]
    assert content["experiments"]["caps"]["limits"] == [{"id": LIMIT, "watts": 125.0, "least_watts": 0.0}]
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
    assert f"a killed run left the power limit of {LIMIT} lowered; it is restored" in again.stderr
    assert again.returncode == 0, again.stderr
    assert limit_w(tree) == 125
