"""A policy that is not built in runs in a process of its own, and whatever it does there is its own failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from mixmark.harness.capabilities.serving import process
from mixmark.harness.capabilities.serving.attendant import OfPolicy
from mixmark.harness.capabilities.serving.contract import BY_PLAN, DeviceLoad, Request
from mixmark.harness.capabilities.serving.process import PolicyProcess, PolicyService, policy_of
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.measure.audit import Auditor
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import calls
from tests.worker.test_plugin_process import children, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("importable")]

LOADS = (DeviceLoad("cpu:0", 0.0, True),)
CHOICE: dict[str, Any] = {
    "arrived": (Request(number=7, suite="a", due_ns=2**60, limit_ns=None),),
    "gone": (6,),
    "devices": (DeviceLoad(device="cpu:0", busy_s=1 / 3, has_room=True),),
    "now_ns": 2**60,
}


def arrived(number: int) -> Request:
    return Request(number=number, suite="a", due_ns=number, limit_ns=None)


def test_a_call_and_its_reply_are_the_same_after_their_lines() -> None:
    line = calls.write_call(PolicyService.choose, **CHOICE)
    assert calls.read(line, PolicyService) == calls.Call(PolicyService.choose, CHOICE)
    reply = calls.read(calls.write_reply(PolicyService.choose, (7, "cpu:0")), PolicyService)
    assert isinstance(reply, calls.Reply) and reply.of(PolicyService.choose) == (7, "cpu:0")


def test_a_policy_cannot_replace_the_comparison_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Auditor.__dict__["_compared"]
    monkeypatch.setattr(Auditor, "_compared", own)  # so that it is restored if the policy does replace it
    spec = f"{Path(__file__).with_name('intruder.py')}:Policy"
    choice = policy_of(Plugin("policies", "policy", spec, "test"))({"a": {}}, {}).choose((arrived(0),), LOADS, 0)
    assert choice is not None and int(choice[1]) != os.getpid()
    assert Auditor.__dict__["_compared"] is own


def test_a_built_in_policy_runs_here() -> None:
    planned = registry.find("policies")[BY_PLAN]
    assert planned.built_in and policy_of(planned) is planned.load()
    assert not psutil.Process().children()


@pytest.fixture
def policy(tmp_path: Path) -> Iterator[Callable[[str], PolicyProcess]]:
    """Makes a policy with this body of `choose`."""
    made: list[PolicyProcess] = []

    def make(body: str) -> PolicyProcess:
        head = "import os, time\nclass Mine:\n  def __init__(self, seconds, plan): self.seconds = seconds\n"
        source = f"{head}  def choose(self, waiting, devices, now_ns):\n    {body}\n"
        made.append(PolicyProcess(written(tmp_path, "policies", source)))
        return made[-1]({"a": {"cpu:0": 0.5}}, {})

    yield make
    for each in made:
        each.end()


def test_a_policy_sees_what_waits_in_the_order_of_arrival(inline: None, policy: Callable[[str], PolicyProcess]) -> None:
    chosen = policy("return waiting[-1], f'{[each.number for each in waiting]} {self.seconds} {devices[0]} {now_ns}'")
    for numbers in ((0, 1), (0, 1), (1, 2, 3), (0, 3)):  # the request 0 waits again: its device was lost
        waiting = tuple(map(arrived, numbers))
        seen = f"{[*numbers]} { {'a': {'cpu:0': 0.5}} } {LOADS[0]} 5"
        assert chosen.choose(waiting, LOADS, 5) == (waiting[-1], seen)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", None),
        ("raise KeyError('lost my list')", "KeyError: 'lost my list' (mine.py, line 5); see "),
        ("return 'cpu:0'", "it chose 'cpu:0', and not a request and a device"),
        ("os._exit(3)", "the worker ended with exit code 3 while calling choose"),
        ("time.sleep(1000)", "no reply within 0 s while calling choose"),
        ("from dataclasses import replace; return replace(waiting[0], number=9), 'x'", "it chose request 9, which"),
    ],
)
def test_what_a_policy_does_is_its_own_failure(
    request: pytest.FixtureRequest,
    policy: Callable[[str], PolicyProcess],
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    reason: str | None,
) -> None:
    if body not in ("os._exit(3)", "time.sleep(1000)"):
        request.getfixturevalue("inline")
    chosen = policy(body)
    monkeypatch.setattr(process, "CHOOSING_S", 0.4)
    if reason is None:
        assert chosen.choose((arrived(0),), LOADS, 0) is None
        return
    with pytest.raises(MixmarkError) as failed:
        chosen.choose((arrived(0),), LOADS, 0)
    assert str(failed.value).startswith(reason)


def test_the_process_of_a_policy_is_the_runs_own_in_the_phase_that_it_serves(
    policy: Callable[[str], PolicyProcess],
) -> None:
    pids: list[int] = []
    with ExitStack() as stack:
        OfPolicy(policy("return None")).ready(stack, pids)
        (pid,) = children()
        assert pids == [pid]
    assert not psutil.pid_exists(pid)
