"""What `mixmark selftest` measures, when it is stored, and what `mixmark doctor` says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from mixmark.harness.capabilities.compare.noise_floor import checks
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts.protocols import Check
from mixmark.harness.contracts.schema import NoiseFloor, Result, Tier
from mixmark.harness.machine import noise_floor
from tests.cli.shell import ACME, Shell
from tests.golden.sample import closed_loop, record, result
from tests.judge.found import SECOND, block

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def floor_checks(created: Mapping[Tier, str]) -> list[Check]:
    """The checks of the noise floors that were measured at these times, each by its tier."""
    for tier, at in created.items():
        noise_floor.keep(NoiseFloor(fraction=0.0123, tier=tier, created_utc=at))
    return [*checks(lambda: NOW)]


def test_a_noise_floor_has_a_tier_a_date_and_an_age() -> None:
    edge, server = floor_checks({"edge": "2026-11-21T12:00:00+00:00", "server": "2026-10-22T12:00:01+00:00"})
    assert edge == Check("noise floor edge", "ok", "1.2 %, measured 1 day ago (2026-11-21T12:00:00+00:00)")
    assert (server.state, server.fix) == ("ok", "")
    assert "30 days ago" in server.message


@pytest.mark.parametrize(
    ("created", "age"), [("2026-10-22T11:00:00+00:00", "31 days ago"), ("once", "on an unknown day")]
)
def test_an_old_noise_floor_is_measured_again(created: str, age: str) -> None:
    (found,) = floor_checks({"server": created})
    message = f"1.2 %, measured {age} ({created}): too old (limit 30 days)"
    assert found == Check("noise floor server", "warn", message, "mixmark selftest --tier server")


def test_a_floor_of_the_smoke_tier_is_not_enough() -> None:
    none = floor_checks({})
    missing, smoke = floor_checks({"smoke": "2026-11-22T11:00:00+00:00"})
    assert (missing.name, missing.state, missing.fix) == ("noise floor", "warn", "mixmark selftest")
    assert (smoke.name, smoke.state) == ("noise floor smoke", "ok")
    assert none == [missing]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_noise_floor_of_a_busy_machine_is_not_stored(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[NoiseFloor] = []

    def keep(floor: NoiseFloor) -> Path:
        kept.append(floor)
        return Path("kept")

    monkeypatch.setattr("mixmark.harness.machine.noise_floor.keep", keep)
    monkeypatch.setattr("mixmark.harness.capabilities.compare.command.reserve", lambda *_: nullcontext())
    monkeypatch.setattr("mixmark.harness.measure.run.opened", lambda *_: None)
    measured = pairs(busy_s=1 if quiet else 2)
    monkeypatch.setattr("mixmark.harness.measure.run.measure", lambda *_: measured)
    words = ["selftest", "--suite", "llm", "--adapter", "torch", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "The noise floor of the edge tier is" in done.stdout
    assert (len(kept), "It is stored in kept" in done.stdout) == (quiet, quiet)
    assert quiet or "It is not stored: other programs used up to 50 % of the machine (12 of 12" in done.stdout


def pairs(busy_s: int) -> Result:
    """Twelve runs of a suite; other programs use one of two CPUs if both are busy."""
    runs = [record(f"a{run}", "llm", "token", closed_loop([[SECOND // 10]] * 60)) for run in range(1, 13)]
    state = block(0, busy_ns=6 * busy_s * SECOND, own_ns=6 * SECOND).model_copy(update={"end_ns": 6 * SECOND})
    runs = [each.model_copy(update={"run": run, "conditions": (state,)}) for run, each in enumerate(runs, 1)]
    return result(*runs)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_selftest_keeps_the_floor_that_compare_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs other tests is busy, and then a floor is not stored (test_usage)."""
    shell = Shell(tmp_path)
    monkeypatch.setattr("mixmark.harness.judge.rules.registered.disturbances", lambda *_: ())
    (shell.folder / "mixmark.toml").write_text("[adapter.acme]\nwork_s = 0.02\n")
    done = shell("selftest", "--suite", "null", "--adapter", ACME, "--tier", "smoke", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert 0 < shown["noise_floor"] < 10
    assert shown["tier"] == "smoke"
    kept = json.loads((shell.folder / "data/mixmark/noise-floor.json").read_text())["floors"]
    assert {tier: each["fraction"] for tier, each in kept.items()} == {"smoke": shown["noise_floor"]}
    shell.run()
    noise_floor = json.loads((shell.folder / "out/result.json").read_text())["noise_floor"]
    assert noise_floor["fraction"] == shown["noise_floor"]
