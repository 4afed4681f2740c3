"""A meter of another package that looks for drawn outputs all the time: it finds none without the result of its
comparison, and its process ends before they are drawn."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from mixmark.harness.record import store
from tests.cli.shell import ACME, Shell

pytestmark = [pytest.mark.slow, pytest.mark.realtime]

SPY = """
import os, pathlib, threading, time
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Domain

OUT = pathlib.Path({out!r})

def look():
    seen = open({seen!r}, "a", buffering=1)
    seen.write(f"pid {{os.getpid()}}\\n")
    while True:
        for path in (OUT / "raw").glob("*.outputs.npz"):
            lines = [line for line in (OUT / "journal.jsonl").read_text().splitlines() if path.name in line]
            if not lines or '"values": []' in lines[-1]:
                seen.write(f"drawn {{path.name}}\\n")
        time.sleep(0.001)

class Spy:
    name = "spy"
    def __init__(self, options):
        threading.Thread(target=look, daemon=True).start()
    def domains(self, devices):
        facts = dict(meter="spy", covers=("node",), boundary="node", quantity="power", method="external", source="spy")
        return [Domain(id="spy/node", **facts)]
    def read(self, domain):
        return [Sample(100.0)]
"""


def test_a_meters_process_sees_no_draw_before_its_result(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    source = SPY.format(out=str(tmp_path / "out"), seen=str(tmp_path / "seen"))
    (shell.site / "spying.py").write_text(source)
    shell.install("spying", "[mixmark.meters]\nspy = spying:Spy\n")
    done = shell.start("run", "--suite", "null", "--adapter", ACME, "--tier", "smoke", "--mix", "none", "--out", "out")
    _, err = done.communicate(timeout=100)
    assert done.returncode == 0, err
    result = store.open(tmp_path / "out")
    assert any(each.audit and each.audit.passed for each in result.records)
    assert [each.id for each in result.domains] == ["spy/node"] and result.meterings
    seen = (tmp_path / "seen").read_text().splitlines()
    assert [each for each in seen if each.startswith("drawn")] == []
    assert not any(psutil.pid_exists(int(each.removeprefix("pid "))) for each in seen)
