"""Limits of power on made-up files, on a made-up library, and on a control that fails at every step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mixmark.harness.capabilities.caps import power_caps
from mixmark.harness.capabilities.caps.experiment import Lowering
from mixmark.harness.capabilities.caps.facts import PowerLimit
from mixmark.harness.capabilities.caps.limiters import Packages
from mixmark.harness.capabilities.caps.power_caps import CapFailed, LimitLeft, find, lowered, recover
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.resources import clock
from tests.machine.nvml import FakeNvml

PACKAGE = "intel-rapl:0"


@pytest.fixture(autouse=True)
def _limiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may replace what sets limits."""
    monkeypatch.setattr(power_caps, "LIMITERS", {**power_caps.LIMITERS})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    power_caps.LIMITERS["rapl"] = Packages(tmp_path / "root")
    return laid_out(tmp_path / "root")


def laid_out(root: Path, package: str = PACKAGE, watts: int = 125) -> Path:
    zone = root / "sys/class/powercap" / package
    zone.mkdir(parents=True)
    files = {
        "name": f"package-{package[-1]}",
        "enabled": "1",
        "constraint_0_name": "long_term",
        "constraint_0_power_limit_uw": str(watts * 1_000_000),
        "constraint_1_name": "short_term",
        "constraint_1_power_limit_uw": "250000000",
    }
    for name, text in files.items():
        (zone / name).write_text(f"{text}\n")
    return root


def limit_w(root: Path, package: str = PACKAGE) -> float:
    path = root / "sys/class/powercap" / package / "constraint_0_power_limit_uw"
    while not (text := path.read_text()):  # it is being written
        pass
    return int(text) / 1e6


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


class Flaky:
    """A limit of 100 W that counts its calls and fails at one of them."""

    def __init__(self, fails_at: int = -1, id: str = "nvml/GPU-1") -> None:
        self.watts, self.calls, self.fails_at = 100.0, 0, fails_at
        self.gone = self.ignores = self.signalled = False
        self.error: type[Exception] = OSError
        self.after: float | None = None
        """What it reads once it was written."""
        self.limit = PowerLimit(id=id, watts=100)
        power_caps.LIMITERS[id.partition("/")[0]] = self

    def _count(self) -> None:
        self.calls += 1
        if self.gone or self.calls - 1 == self.fails_at:
            raise self.error("the driver hangs")

    def limits(self, devices: Iterable[str]) -> list[PowerLimit]:
        return [self.limit]

    def read(self, id: str) -> float:
        self._count()
        return self.watts if self.after is None or self.calls < 3 else self.after

    def write(self, id: str, watts: float) -> None:
        self._count()
        assert watts <= 100, "never above what it was"
        if self.signalled:
            self.signalled = False
            raise KeyboardInterrupt
        self.watts = self.watts if self.ignores else watts


def test_the_long_term_limit_of_each_package_is_lowered_watched_and_restored(
    tree: Path, tmp_path: Path, as_root: None
) -> None:
    state, both = tmp_path / "kept/state.json", (PACKAGE, "intel-rapl:1")
    laid_out(tree, both[1], 200)
    found = find(["cpu:0.0", "cpu:0.1"])
    assert found == [
        PowerLimit(id=f"rapl/{package}", watts=watts) for package, watts in zip(both, (125, 200), strict=True)
    ]
    with lowered(found, 0.6, state), Lowering(tuple(found), 0.6).window():
        assert [limit_w(tree, package) for package in both] == [75, 120]
        assert json.loads(state.read_text()) == {each.id: each.watts for each in found}
    assert [limit_w(tree, package) for package in both] == [125, 200]
    assert not state.exists()
    raised = pytest.raises(CapFailed, match="was set to 75 W, and reads 125 W")
    with lowered(found, 0.6, state), raised, Lowering(tuple(found), 0.6).window():
        power_caps.LIMITERS["rapl"].write(found[0].id, 125)


@pytest.mark.parametrize("watts", [80.0, 81.0, 79.0, 70.0, 100.0])
@pytest.mark.usefixtures("jumping_clock")
def test_a_limit_that_is_another_one_for_a_second_of_the_window_voids_it(tmp_path: Path, watts: float) -> None:
    """80 W are asked for, and drivers round by up to 1 %."""
    flaky = Flaky()
    voided = pytest.raises(CapFailed, match=f"was set to 80 W, and reads {watts:g} W")
    expected = nullcontext() if abs(watts - 80) <= 0.8 else voided
    with lowered([flaky.limit], 0.8, tmp_path / "state.json"), expected, Lowering([flaky.limit], 0.8).window():
        clock.sleep(7.1)
        flaky.watts = watts
        clock.sleep(1)
        flaky.watts = 80
        clock.sleep(4)
    assert flaky.watts == 100


@pytest.mark.parametrize("step", range(7))
def test_whichever_step_fails_the_limit_is_back(step: int, tmp_path: Path) -> None:
    """The steps: read; write, read back; at the end read, write, read again; and none."""
    flaky, state, ran = Flaky(step), tmp_path / "state.json", False
    try:
        with lowered([flaky.limit], 0.8, state):
            ran = True
            assert flaky.watts == 80
    except CapFailed:
        assert not ran
    assert ran == (step > 2), "a cap that is not sure measures nothing"
    assert flaky.watts == 100
    assert not state.exists()


def test_a_signal_in_the_middle_of_restoring_does_not_stop_it(tmp_path: Path) -> None:
    first, second, state = Flaky(), Flaky(id="acme/1"), tmp_path / "state.json"
    with pytest.raises(KeyboardInterrupt), lowered([first.limit, second.limit], 0.8, state):
        first.signalled = True
    assert (first.watts, second.watts) == (100, 100)
    assert not state.exists()


@pytest.mark.parametrize("error", [OSError, ZeroDivisionError])
def test_of_two_limits_the_first_is_back_if_the_second_fails(tmp_path: Path, error: type[Exception]) -> None:
    odd, other = Flaky(1, id="acme/1"), Flaky()
    odd.error = error
    both = lowered([other.limit, odd.limit], 0.8, tmp_path / "state.json")
    with pytest.raises(CapFailed, match=r"acme/1 cannot be lowered.*the driver hangs"), both:
        pytest.fail("it began with one of two caps")
    assert (odd.watts, other.watts) == (100, 100)


@pytest.mark.parametrize(
    ("facts", "refused", "message"),
    [
        ({"ignores": True}, CapFailed, "was set to 80 W, and reads 100 W"),
        ({"ignores": True, "after": float("nan")}, LimitLeft, "is not back at 100 W"),
        ({"watts": 60}, CapFailed, "60 W by now"),  # it is never raised
    ],
)
def test_a_limit_that_is_not_what_was_set_is_refused(
    tmp_path: Path, facts: dict[str, Any], refused: type[Exception], message: str
) -> None:
    odd = Flaky()
    vars(odd).update(facts)
    with pytest.raises(refused, match=message), lowered([odd.limit], 0.8, tmp_path / "state.json"):
        pytest.fail("it began without knowing the cap")
    assert odd.watts == facts.get("watts", 100)


def test_without_a_place_for_the_limits_nothing_is_lowered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    flaky = Flaky()
    with pytest.raises(CapFailed, match="no limit was lowered"), lowered([flaky.limit], 0.8, tmp_path / "file/state"):
        pytest.fail("it began without a way back")
    assert flaky.calls == 1, "it was only read"


def test_a_limit_that_cannot_be_restored_is_told_and_stays_on_disk(tmp_path: Path) -> None:
    flaky, state = Flaky(), tmp_path / "state.json"
    with pytest.raises(LimitLeft, match="GPU-1 is not back at 100 W"), lowered([flaky.limit], 0.8, state):
        flaky.gone = True
    assert state.exists()
    flaky.gone = False
    assert recover(state) == ["nvml/GPU-1"]
    assert flaky.watts == 100
    assert not state.exists() and recover(state) == []


@pytest.fixture
def killed(tree: Path, tmp_path: Path) -> Iterator[Path]:
    """The state that a process left which held a cap of 60 % and was killed."""
    state = tmp_path / "state.json"
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from mixmark.harness.capabilities.caps import power_caps\n"
        "power_caps.LIMITERS['rapl'] = power_caps.Packages(Path(sys.argv[1]))\n"
        "os.geteuid = lambda: 0\n"
        "with power_caps.lowered(power_caps.find(['cpu:0']), 0.6, Path(sys.argv[2])):\n"
        "    print('lowered', flush=True)\n"
        "    time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, tree, state], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "lowered\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert limit_w(tree) == 75
    yield state


def test_after_a_kill_no_other_cap_begins_before_that(killed: Path, as_root: None) -> None:
    with pytest.raises(CapFailed, match="keeps the limits of another run"), lowered(find(["cpu:0"]), 0.5, killed):
        pytest.fail("it forgot the limit of 125 W")
    assert json.loads(killed.read_text()) == {f"rapl/{PACKAGE}": 125}


def test_after_a_kill_a_user_without_the_right_is_told(killed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Packages, id: str, watts: float) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Packages, "write", refused)
    with pytest.raises(UsageError, match="not back at 125 W") as caught:
        recover(killed)
    assert "as root once" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}', '{"a/b": 5}'])
def test_a_damaged_file_stops_the_run(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    with pytest.raises(UsageError, match=r"cannot be read|power limits lowered: a/b is not"):
        recover(state)


@pytest.mark.parametrize(
    ("device", "spoil"),
    [
        ("cpu:0", shutil.rmtree),
        ("npu:0", lambda root: None),  # only devices of the run are capped
        ("cpu:0", lambda root: (root / "sys/class/powercap" / PACKAGE / "enabled").write_text("0\n")),
    ],
)
def test_a_machine_without_a_limit_is_refused(
    tree: Path, as_root: None, device: str, spoil: Callable[[Path], object]
) -> None:
    spoil(tree)
    with pytest.raises(UsageError, match="no device here has a limit"):
        find([device])


def test_who_is_not_root_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="cannot be lowered") as caught:
        find(["cpu:0"])
    assert "run mixmark as root" in (caught.value.hint or "")


class Nvml(FakeNvml):
    """As its documentation says, with one GPU of 700 W."""

    limit_mw = 700_000

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        return self.limit_mw

    def nvmlDeviceSetPowerManagementLimit(self, handle: str, milliwatts: int) -> None:
        if not 200_000 <= milliwatts <= 700_000:
            raise self.NVMLError("Invalid Argument")
        self.limit_mw = milliwatts


def test_a_gpu_is_limited_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_root: None) -> None:
    library = Nvml(answers={"nvmlDeviceGetPowerManagementLimitConstraints": (200_000, 700_000)})
    monkeypatch.setitem(sys.modules, "pynvml", library)
    [found] = find(["gpu:GPU-1", "gpu:GPU-2"])
    assert found == PowerLimit(id="nvml/GPU-1", watts=700, least_watts=200)
    with lowered([found], 0.6, tmp_path / "state.json"):
        assert library.limit_mw == 420_000
    assert library.limit_mw == 700_000
    with pytest.raises(CapFailed, match="NVML: Invalid Argument"), lowered([found], 0.1, tmp_path / "state.json"):
        pytest.fail("it began without the cap")


def test_caps_that_cannot_be_set_are_misuse() -> None:
    done = CliRunner().invoke(main, ["run", "--power-cap", "0,50"])
    assert (done.exit_code, "'0,50' is not a list of power caps" in done.stderr) == (2, True), done.stderr
