"""Adapters that do what no adapter may: each is listed or recorded with its reason, and disturbs no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.contracts.schema import Record
from mixmark.harness.machine import devices as discover
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.devices import Found
from mixmark.harness.measure import solo
from mixmark.harness.measure.phase import attend
from mixmark.harness.plugins.registry import Plugin
from tests.measure.test_phase import equipment, phase, share

SHAPE = """
class Bad:
  name = "bad"
  def __init__(self, options): ...
  def open(self, device, suite, precision, use): ...
  def discover(self):
    DISCOVER
"""
DEVICE = "Device(id='{id}', kind='{kind}', memory_pool='{pool}', precisions=('fp32',))"
NPU = DEVICE.format(id="npu:acme0", kind="npu", pool="npu:acme0")


@pytest.fixture(autouse=True)
def _inline(inline_workers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def found(tmp_path: Path, source: str) -> Found:
    """What is found by a good adapter and by one of this source."""
    (tmp_path / "bad.py").write_text(source)
    good = Plugin("adapters", "acme", "tests.fakes.acme:Acme", "test")
    bad = Plugin("adapters", "bad", f"{tmp_path / 'bad.py'}:Bad", "test")
    return discover.discover({"acme": good, "bad": bad}, Config())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('no licence')", "does not load: OSError: no licence (bad.py, line 1)"),
        ("import acme_driver", "does not load: ModuleNotFoundError: No module named 'acme_driver' (bad.py, line 1)"),
        ("def :", "does not load: SyntaxError: invalid syntax (bad.py, line 1)"),
        ("return 1 / 0", "ZeroDivisionError: division by zero (bad.py, line 8)"),
        ("import json; return json.loads('{')", "JSONDecodeError: Expecting property name"),
        ("raise SystemExit(3)", "SystemExit: 3 (bad.py, line 8)"),
        ("return 3", "discover returned 3, and not devices"),
        ("return None", "discover returned None, and not devices"),
        ("return ['cpu:0']", "discover yielded 'cpu:0', and not a Device"),
        ("return 'cpu:0'", "discover yielded 'c', and not a Device"),
        ("return [Device(id='no id', kind='cpu', memory_pool='host')]", "1 validation error for Device"),
        (
            "from mixmark.harness.resources import clock; clock.sleep(1000)",
            "no reply within 120 s while calling discover",
        ),
    ],
)
def test_an_adapter_that_tells_of_no_device_is_absent_with_its_reason(tmp_path: Path, source: str, said: str) -> None:
    alone = source.startswith(("raise OS", "import acme", "def"))
    body = source if alone else "from mixmark import Device\n" + SHAPE.replace("DISCOVER", source)
    seen = found(tmp_path, body)
    assert [target.adapter for target in seen.targets] == ["acme"]
    ((kind, name, reason),) = ((each.kind, each.name, each.reason) for each in seen.absent)
    assert (kind, name, said in reason) == ("adapter", "bad", True), reason
    log = tmp_path / "state/mixmark/log/bad.log"
    assert reason.endswith(f"; see {log}") and log.is_file()
    assert list(seen.environments) == ["acme"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Bad: name = 'bad'", "lacks discover, open; docs/vendors/contract.md shows the shape"),
        (SHAPE.replace('"bad"', '"other"').replace("DISCOVER", "..."), "calls itself other"),
    ],
)
def test_an_adapter_of_another_shape_is_absent_with_its_reason(tmp_path: Path, source: str, said: str) -> None:
    seen = found(tmp_path, source)
    assert [said in each.reason for each in seen.absent] == [True], seen.absent


@pytest.mark.parametrize(
    ("devices", "name", "said"),
    [
        ([NPU, NPU.replace("fp32", "int8")], "npu:acme0 by bad", "the adapter lists it twice"),
        (
            [NPU.replace("pool='npu:acme0'", "pool='host'")],
            "npu:acme0 by bad",
            "acme says that it is of kind npu with the memory pool npu:acme0, and bad that it is of "
            "kind npu with the memory pool host",
        ),
        (
            [DEVICE.format(id="cpu:0", kind="gpu", pool="host")],
            "cpu:0 by bad",
            "cpu:0 is the host's processor, and not of kind gpu with the memory pool host",
        ),
        ([NPU.replace("('fp32',)", "()")], "npu:acme0 by bad", "it offers no precision"),
    ],
)
def test_a_device_that_is_claimed_wrongly_is_absent_with_the_reason(
    tmp_path: Path, devices: list[str], name: str, said: str
) -> None:
    seen = found(tmp_path, "from mixmark import Device\n" + SHAPE.replace("DISCOVER", f"return [{','.join(devices)}]"))
    assert ("npu:acme0", "acme") in [(target.device.id, target.adapter) for target in seen.targets]
    assert [(each.kind, each.name, each.reason) for each in seen.absent] == [("device", name, said)]
    assert len([target for target in seen.targets if target.adapter == "bad"]) == len(devices) - 1


def measured(tmp_path: Path, mode: str) -> Record:
    (tmp_path / "raw").mkdir()
    (record,) = attend(phase(share("one")), equipment(mode=mode), tmp_path, solo.drive)
    return record


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("raises in open", "RuntimeError: the device is gone (acme.py, line "),
        ("gives a text", "open gave 'a text', which is not a runner: it lacks concurrency, facts, __call__"),
        ("raises in the loop", "RuntimeError: a kernel failed (acme.py, line "),
    ],
)
def test_an_adapter_that_breaks_in_a_cell_is_recorded_with_its_log(tmp_path: Path, mode: str, said: str) -> None:
    record = measured(tmp_path, mode)
    assert record.error is not None and said in record.error.message, record.error
    assert (record.error.kind, record.error.hint) == ("raised", "see 000.npu-acme0.acme.log")


def test_an_adapter_that_breaks_when_it_is_closed_keeps_its_figures_and_is_told(tmp_path: Path) -> None:
    record = measured(tmp_path, "raises at close")
    assert record.completions is not None and record.error is None
    assert record.close_failure is not None
    assert record.close_failure.message.startswith("RuntimeError: the device will not let go (acme.py, line ")
    assert record.close_failure.hint == "see 000.npu-acme0.acme.log"
