"""A plugin that is not built in runs in a process of its own, and whatever it does there is its own failure."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from mixmark.harness.contracts.errors import PluginError, Unsupported
from mixmark.harness.contracts.protocols import Watcher
from mixmark.harness.contracts.schema import AcceleratorConditions, Device, Domain
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.counters import MachineCounters, between
from mixmark.harness.measure.audit import Auditor
from mixmark.harness.measure.local_executor import LocalExecutor
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Kind, Plugin
from mixmark.harness.worker import plugin_process
from mixmark.harness.worker.messages import MeterCalls, SuiteChoice
from mixmark.harness.worker.plugin_process import suite_of, watcher_of
from mixmark.harness.worker.process import orphans
from tests.fakes.watchers import ID
from tests.fakes.workers import FAKES
from tests.marks import linux

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("importable")]

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
WELL = AcceleratorConditions(id=ID, reasons=("power cap",), clock_mhz=900, foreign_pids=())


@pytest.fixture(autouse=True)
def _no_suites() -> Iterator[None]:
    yield
    plugin_process.suite_process.cache_clear()


def plugin(kind: Kind, name: str, file: str = "intruders.py") -> Plugin:
    return Plugin(kind, name.lower(), f"{FAKES / file}:{name}", "test")


def written(tmp_path: Path, kind: Kind, body: str) -> Plugin:
    (tmp_path / "mine.py").write_text(body)
    return Plugin(kind, "mine", f"{tmp_path / 'mine.py'}:Mine", "test")


def children() -> list[int]:
    return [each.pid for each in psutil.Process().children()]


def of_a_meter(monkeypatch: pytest.MonkeyPatch) -> str:
    with Meters(Config(), (CPU,), {"meter": plugin("meters", "Meter")}) as meters:
        return meters.absent[0].reason


def of_a_watcher(monkeypatch: pytest.MonkeyPatch) -> str:
    with Accelerators({"watcher": plugin("watchers", "Watcher")}) as accelerators:
        assert [each.id for each in accelerators.read(set(), Path("/proc"))] == [str(*children())]
        return accelerators.disclose()[0]["id"]


def of_a_suite(monkeypatch: pytest.MonkeyPatch) -> str:
    return suite_of(plugin("suites", "Suite")).describe().version


@pytest.mark.parametrize("where", [of_a_meter, of_a_watcher, of_a_suite])
def test_a_plugin_cannot_replace_the_comparison_of_outputs(
    where: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Auditor.__dict__["_compared"]
    monkeypatch.setattr(Auditor, "_compared", own)  # so that it is restored if a plugin does replace it
    pid = int(where(monkeypatch))
    assert pid != os.getpid()
    assert Auditor.__dict__["_compared"] is own


def test_a_plugin_that_was_ended_is_started_anew_by_its_next_call(tmp_path: Path) -> None:
    """Its process is gone meanwhile, and a meter is asked for its domains again before it is read."""
    body = "import os\nfrom mixmark.harness.contracts.protocols import Sample\nclass Mine:\n  name = 'mine'\n"
    body += "  def __init__(self, options): self.asked = None\n"
    body += "  def domains(self, devices):\n    self.asked = [each.id for each in devices]\n    return []\n"
    body += "  def read(self, domain): return [Sample(float(self.asked == ['cpu:0']), os.getpid())]\n"
    calls = {"domains": 30.0, "read": 30.0}
    meter: Any = plugin_process.PluginProxy(written(tmp_path, "meters", body), MeterCalls, calls)
    assert list(meter.domains((CPU,))) == []
    before = meter.pid
    LocalExecutor.end_plugins(cast(LocalExecutor, None))
    assert not psutil.pid_exists(before)
    meter.resume()
    assert meter.pid != before and psutil.pid_exists(meter.pid)
    facts = {"id": "mine/a", "meter": "mine", "covers": ("cpu:0",), "boundary": "devices", "quantity": "power"}
    domain = Domain.model_validate(facts | {"method": "counter", "source": "mine"})
    assert [(each.at_ns, each.value) for each in meter.read(domain)] == [(meter.pid, 1.0)]
    meter.end()
    plugin_process.end_all()
    meter.resume()
    assert not psutil.pid_exists(meter.pid), "it was ended for good"


BURNING = """
import subprocess, sys
BURN = sys.executable, "-c", "while True: pass"
class Mine:
  name = "mine"
  def __init__(self, options): pass
  def read(self, domain): ...
  def domains(self, devices):
    subprocess.Popen(BURN)
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.Popen({BURN}, start_new_session=True)"])
    return []
"""


@linux
@pytest.mark.realtime
def test_what_a_plugin_starts_and_leaves_behind_is_counted_and_is_not_the_runs_own(tmp_path: Path) -> None:
    """A child of a meter, and a process that left its group and lost its parent while a worker lives."""
    worker = subprocess.Popen(["sleep", "600"])
    orphans.start(lambda: worker.pid)
    meter: Any = plugin_process.PluginProxy(written(tmp_path, "meters", BURNING), MeterCalls, {"domains": 30.0})
    meter.domains(())
    [left] = [each for each in psutil.Process().children() if each.pid not in (meter.pid, worker.pid)]
    [child] = psutil.Process(meter.pid).children()
    machine = MachineCounters([worker.pid])
    try:
        for burning in ((left, child), (left,)):
            before, spent_s = machine.read(), sum(each.cpu_times().user for each in burning)
            while (burnt_s := sum(each.cpu_times().user for each in burning) - spent_s) < 0.3:
                time.sleep(0.02)
            block = between(before, machine.read())
            assert block.plugins_ns is not None and block.own_ns is not None
            assert block.plugins_ns > burnt_s * 0.9e9 > 5 * block.own_ns
            meter.end()
    finally:
        meter.end()
        for each in (child, left):
            each.kill()
            each.wait()
        orphans.end(worker.pid, worker.kill)
        worker.wait()


def test_built_in_plugins_run_here() -> None:
    names = ("watchers", "nvidia"), ("suites", "llm")
    assert all(registry.find(kind)[name].built_in for kind, name in names)
    assert not psutil.Process().children()


def test_a_plugin_that_does_not_load_is_named_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"watcher mine \(.*mine.py:Mine\) does not load: ZeroDivisionError"):
        watcher_of(written(tmp_path, "watchers", "1 / 0\n"))
    assert not psutil.Process().children()


def test_a_process_ends_with_the_last_reference(tmp_path: Path) -> None:
    process: Any = watcher_of(plugin("watchers", "Watcher"))
    pid = process.pid
    assert psutil.pid_exists(pid)
    del process
    assert not psutil.pid_exists(pid)


def test_a_watcher_is_read_there_and_its_time_counts() -> None:
    with Accelerators({"slow": plugin("watchers", "Slow", "watchers.py")}) as accelerators:
        (pid,) = children()
        before_ns = accelerators.cpu_ns
        assert accelerators.read(set(), Path("/proc")) == (WELL,)
        assert accelerators.cpu_ns - before_ns >= 50_000_000
    assert not accelerators.absent and not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Raising", "RuntimeError: the driver is gone (watchers.py"),
        ("Babbling", "the worker's reply while calling read cannot be read: the reply to read has a wrong field"),
        ("Flooding", "the worker's reply while calling read cannot be read: a line of more than 1 MiB"),
    ],
)
def test_a_watcher_that_fails_there_is_left_out(name: str, reason: str) -> None:
    broken = {name.lower(): plugin("watchers", name, "watchers.py")}
    with Accelerators(broken, read_s=0.5) as accelerators:
        states = [accelerators.read(set(), Path("/proc")) for _ in range(3)]
        (absent,) = accelerators.absent
        assert not children()
    assert states[-1] == () and absent.reason.startswith(reason)


def test_a_suite_gives_its_facts_and_nothing_else(inline: None) -> None:
    null = plugin("suites", "Null", "null.py")
    source = suite_of(null)
    assert suite_of(null) is source, "it is loaded once"
    assert (source.describe().version, source.describe().summary) == ("1", "Nothing, as fast as possible.")
    built = source.build(SuiteChoice(name="null", spec=null.spec, tier="smoke"))
    assert (built.version, built.unit, built.units(3)) == ("1", "sample", 3)
    assert built.latency is not None and built.latency.total_ns == 50_000_000
    gate = built.gate("fp32")
    assert gate is not None and gate.at_most == 0.5
    assert [each.yields for each in built.costs("fp32", 1)] == [1]


def test_a_suite_without_the_tier_is_unsupported(inline: None, tmp_path: Path) -> None:
    refuses = "from mixmark import Unsupported\nfrom tests.fakes.null import Null\nclass Mine(Null):\n"
    refuses += "  def __init__(self, tier, options, weight_class): raise Unsupported(f'mine has no tier {tier}')\n"
    mine = written(tmp_path, "suites", refuses)
    with pytest.raises(Unsupported, match="mine has no tier edge"):
        suite_of(mine).build(SuiteChoice(name="mine", spec=mine.spec, tier="edge"))


def test_a_process_lives_longer_than_the_thread_that_asked_for_it() -> None:
    """On Linux a child process gets a signal when the thread that started it ends."""
    import threading

    made: list[Watcher] = []
    thread = threading.Thread(target=lambda: made.append(watcher_of(plugin("watchers", "Onyx", "watchers.py"))))
    thread.start()
    thread.join()
    time.sleep(0.05)
    assert [each["id"] for each in made[0].disclose()] == [ID]
    made[0].close()
