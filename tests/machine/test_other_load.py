"""Who else uses the machine, and how long a command waits for that to end."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from mixmark.harness.cli.machine_lock import reserve
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.machine import counters, machine_lock, other_load
from mixmark.harness.machine.counters import MachineCounters
from mixmark.harness.machine.other_load import OtherLoad
from tests.machine.test_counters import counted, kernel_threads, quiet, write

QUIET = OtherLoad(0.01, 2, {})
BUSY = OtherLoad(0.9, 2, {"python": 0.7, "node": 0.1})
SLIGHT = OtherLoad(0.1, 2, {"node": 0.1})


class Clock:
    """Each look takes two seconds."""

    def __init__(self, *looks: OtherLoad | None) -> None:
        self.now_s, self.looks = 0.0, [*looks]
        self.told: list[OtherLoad] = []

    def look(self) -> OtherLoad | None:
        self.now_s += 2
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def wait(self, seconds: float) -> OtherLoad | None:
        return other_load.wait(seconds, self.told.append, self.look, lambda: self.now_s)


def test_the_limit_is_that_of_the_rule() -> None:
    assert (OtherLoad(0, 2, {}).limit_cores, OtherLoad(0, 100, {}).limit_cores) == (0.02, 0.25)
    assert [OtherLoad(cores, 2, {}).busy for cores in (0.02, 0.021)] == [False, True]


def test_programs_are_told_with_their_shares() -> None:
    assert str(BUSY) == "45.0 % of the machine's CPU time (limit 1.0 %): python 35.0 %, node 5.0 %, others 5.0 %"
    assert str(OtherLoad(0.9, 2, {"python": 0.89})).endswith("(limit 1.0 %): python 44.5 %")
    assert str(OtherLoad(0.9, 2, {})).endswith("(limit 1.0 %): others 45.0 %")


@pytest.mark.parametrize(
    ("seconds", "looks", "found", "now_s", "told"),
    [
        (0, (BUSY,), BUSY, 2, []),
        (0, (QUIET,), QUIET, 2, []),
        (60, (QUIET,), QUIET, 4, []),  # it must be idle twice in a row
        (60, (BUSY, QUIET, BUSY, QUIET, QUIET, BUSY), QUIET, 10, [BUSY]),
        (7, (BUSY,), BUSY, 8, [BUSY]),
        (60, (None,), None, 2, []),  # the machine does not say how busy it is
    ],
)
def test_a_busy_machine_is_waited_for(
    seconds: float, looks: tuple[OtherLoad | None, ...], found: OtherLoad | None, now_s: float, told: list[OtherLoad]
) -> None:
    clock = Clock(*looks)
    assert (clock.wait(seconds), clock.now_s, clock.told) == (found, now_s, told)


def test_a_look_names_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds; one of two CPUs was busy for 1.5 s of them. Two programs have one name, two are new."""
    root = quiet(tmp_path)
    now_ns = iter((5_000_000_000, 7_000_000_000))
    machine = MachineCounters(root=root, clock=lambda: next(now_ns))
    before = {5: ("cc1", 10.0), 6: ("cc1", 4.0), 7: ("bash", 1.0), 8: ("sshd", 1.0)}
    after = before | {5: ("cc1", 10.5), 6: ("cc1", 4.3), 7: ("bash", 1.02), 9: ("ld", 0.4), 10: ("x", 0.1)}
    lists = iter((before, after))
    others = other_load.sample(
        machine, lambda seconds: write(root, {"proc/stat": counted(cpu0=150)}), lambda: next(lists)
    )
    assert others is not None
    assert others.cpus == 2
    assert {name: round(cores, 6) for name, cores in others.names.items()} == {"cc1": 0.4, "ld": 0.2, "x": 0.05}
    assert others.cores == pytest.approx(0.75)


def test_an_idle_machine_whose_kernel_reclaims_memory_is_quiet(tmp_path: Path) -> None:
    """In two seconds of two CPUs, 4 % of the time went to the kernel's threads and 0.5 % to a program."""
    write(quiet(tmp_path), kernel_threads(0, 0))
    now_ns = iter((0, 2_000_000_000))
    machine = MachineCounters(root=tmp_path, clock=lambda: next(now_ns))
    change = {"proc/stat": counted(cpu0=18), **kernel_threads(10, 6)}
    others = other_load.sample(machine, lambda seconds: write(tmp_path, change), dict)
    assert others is not None
    assert others.cores == pytest.approx(0.01) and not others.busy


def test_a_machine_without_counters_says_nothing(tmp_path: Path) -> None:
    assert other_load.sample(MachineCounters(root=tmp_path), lambda seconds: None, dict) is None


def test_the_processes_that_are_listed_are_those_of_others() -> None:
    found = other_load.processes()
    assert os.getpid() not in found
    assert os.getppid() in found
    assert not found.keys() & counters.kernel_threads().keys()


def told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: OtherLoad | None,
    wait_idle_s: float | None = None,
    tier: Literal["smoke", "edge"] = "edge",
) -> str:
    """What `reserve` prints where the machine is found so, after one busy look."""

    def wait(seconds: float, report: Callable[[OtherLoad], None]) -> OtherLoad | None:
        if seconds > 0 and found is not None:
            report(BUSY)
        return found

    monkeypatch.setattr(other_load, "wait", wait)
    with reserve(Path("results/x"), tier, wait_idle_s):
        pass
    out, err = capsys.readouterr()
    assert not out
    return err


def test_a_busy_machine_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(monkeypatch, capsys, BUSY) == (
        "mixmark: other programs use 45.0 % of the machine's CPU time (limit 1.0 %): python 35.0 %, node 5.0 %, others "
        "5.0 %\n         The run begins all the same; its result will be called disturbed. --wait-idle 60 waits up to "
        "60 s.\n"
    )
    assert told(monkeypatch, capsys, QUIET) == ""
    assert told(monkeypatch, capsys, None) == ""


def test_a_little_load_does_not_disturb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict is disturbed beyond 5 % of the machine, and warns beyond 1 %."""
    assert [OtherLoad(cores, 2, {}).disturbs for cores in (0.1, 0.11)] == [False, True]
    assert "its result will have a warning. --wait-idle 60" in told(monkeypatch, capsys, SLIGHT)
    assert told(monkeypatch, capsys, SLIGHT, 60).endswith("its result will have a warning.\n")


def test_what_is_waited_for_is_told_and_whether_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting, after, end = told(monkeypatch, capsys, BUSY, 60).splitlines()
    assert waiting.startswith("mixmark: waiting up to 60 s: other programs use 45.0 %")
    assert after.startswith("mixmark: after 60 s of waiting, other programs still use 45.0 %")
    assert end == "         The run begins all the same; its result will be called disturbed."
    assert told(monkeypatch, capsys, QUIET, 60).count("\n") == 1
    assert "does not say how busy it is" in told(monkeypatch, capsys, None, 60)


def test_nobody_looks_before_the_smoke_tier_unless_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(monkeypatch, capsys, BUSY, tier="smoke") == ""
    assert "other programs use" in told(monkeypatch, capsys, BUSY, 0, tier="smoke")


def test_a_second_run_is_refused_and_a_machine_without_a_lock_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(machine_lock.VARIABLE, str(tmp_path / "lock"))
    with reserve(tmp_path / "one", "smoke", None):
        with pytest.raises(UsageError) as refused, reserve(tmp_path / "two", "smoke", None):
            pass
        assert f"another run measures on this machine: process {os.getpid()}, since " in str(refused.value)
        assert str(refused.value).endswith(f"which writes to {tmp_path / 'one'}")
        assert "--wait-idle 600" in refused.value.hint
    monkeypatch.setenv(machine_lock.VARIABLE, str(tmp_path / "lock/none"))
    with reserve(tmp_path / "one", "smoke", None), reserve(tmp_path / "two", "smoke", None):
        pass
    assert capsys.readouterr().err.count("so another run at the same time would not be noticed") == 2
