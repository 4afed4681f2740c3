"""The rules about energy: what keeps them and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Metering, Result, Samples
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules import quality
from tests.fakes.machine import OUTSIDE, WATTS_AT_THE_WALL, one_run
from tests.golden.sample import but, closed_loop, domain, record, result
from tests.judge.found import SECOND, block, done, said, says

FLICKER = 1e-3  # a power that is the same at rest and at work is taken for frozen


def metered(watts: float = 50.0, lost: dict[str, str] | None = None, cpu_ns: int = 0, seconds: int = 60) -> Result:
    """A record of a minute on a host with two sources of joules: a counter, and power beside it."""
    at_ns = np.arange(-5, seconds + 5, 0.1) * SECOND
    begin, end = int(at_ns[0]), int(at_ns[-1])
    domains = (domain("package"), domain("power", quantity="power", method="integrated", parent="package"))
    end_of = {id: len(at_ns) // 2 if id in (lost or {}) else len(at_ns) for id in ("package", "power")}
    stamps = at_ns.astype(np.int64)
    values = {"package": 50.0 * at_ns / SECOND, "power": watts + FLICKER * np.resize((0, 1), len(at_ns))}
    samples = {id: Samples(stamps[:end], stamps[:end], values[id][:end]) for id, end in end_of.items()}
    metering = Metering(phase="a", begin_ns=begin, end_ns=end, cpu_ns=cpu_ns, samples=samples, lost=lost or {})
    whole = result(record("a", "llm", "token", closed_loop([[SECOND] * seconds])))
    changed = {"devices": whole.devices[:1], "domains": domains, "meterings": (metering,)}
    return whole.model_copy(update=changed)


def test_a_run_without_a_meter_says_where_to_look() -> None:
    assert said(quality.energy_measured, metered()) == []
    assert said(quality.energy_measured, done()) == [says("energy_measured", "run", missing=("the machine",))]


def test_energy_of_a_part_is_a_warning() -> None:
    gpu = result().devices[1]
    whole = metered()
    assert said(quality.energy_complete, whole) == []
    more = but(whole, devices=(*whole.devices, gpu))
    [(code, about, values)] = said(quality.energy_complete, more)
    assert (code, about, gpu.id in values["why"]) == ("energy_complete", "run", True)
    modelled = tuple(but(each, method="modelled") for each in whole.domains)
    assert said(quality.energy_complete, but(whole, domains=modelled)) != []
    assert said(quality.energy_complete, done()) == []


def test_energy_that_is_not_known_says_why() -> None:
    assert said(quality.energy_valid, metered()) == []
    package = {"phase": "", "domain": "package"}
    lost = says("energy_valid.unknown", "a", **package, why=("lost", "its peer closed it"))
    assert said(quality.energy_valid, metered(lost={"package": "its peer closed it"})) == [lost]
    assert said(quality.energy_valid, metered(lost={"power": "gone"})) == [], "it is not added"
    for seconds, told in (
        (10, says("energy_valid.short", "a", **package, needed=200)),
        (3, says("energy_valid.too_short", "a", **package, needed=40, longer="--preset quick is long enough")),
    ):
        assert said(quality.energy_valid, metered(seconds=seconds)) == [told]
    slow = tuple(but(each, averaging_ns=None if each.parent else 2 * SECOND) for each in metered().domains)
    assert said(quality.energy_valid, but(metered(), domains=slow)) == [], "the counter's power is added"
    unread = but(metered(watts=52.0), meterings=())
    assert said(quality.energy_valid, unread) == [says("energy_valid.not_read", "a", phase="")]
    assert said(quality.energy_agrees, unread) == []


def test_energy_of_a_mix_that_is_not_known_says_why() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert said(quality.energy_valid, told) == []
    metering, *others = told.meterings
    [wall] = told.domains
    samples = metering.samples[wall.id]
    half = slice(len(samples.values) // 2)
    torn = Samples(samples.before_ns[half], samples.after_ns[half], samples.values[half])
    cut = but(metering, samples={wall.id: torn}, lost={wall.id: "line 9 is torn"})
    broken = but(told, meterings=(cut, *others))
    reason = ("lost", "line 9 is torn")
    assert said(quality.energy_valid, broken) == [
        says("energy_valid.unknown", "run", phase=metering.phase, domain=wall.id, why=reason)
    ]
    found = judge(broken).score
    assert found is not None and (found.unmeasured or "").endswith(", ".join(reason))


def test_a_counter_and_the_integral_of_power_agree_within_5_percent() -> None:
    assert said(quality.energy_agrees, metered(watts=52.0)) == []
    [(code, about, values)] = said(quality.energy_agrees, metered(watts=53.0))
    assert (code, about) == ("energy_agrees.differ", "a")
    assert (values["domain"], values["source"], round(values["by_pct"], 1)) == ("power", "package", 6.0)


@pytest.mark.parametrize(("supply_watts", "measured"), [(None, True), (600.1, True), (599.0, False)])
def test_a_wall_that_reads_more_than_its_supply_can_take_sets_no_mx(supply_watts: float | None, measured: bool) -> None:
    """600 W at the wall. The nameplate bounds it, and no figure is made of it."""
    whole = one_run(WATTS_AT_THE_WALL)
    [wall] = whole.domains
    found = judge(but(whole, domains=(but(wall, supply_watts=supply_watts),)))
    assert found.score is not None and (found.score.mixes_per_kwh is not None) is measured
    assert found.score.mixes_per_kwh == (judge(whole).score.mixes_per_kwh if measured else None)  # type: ignore[union-attr]
    said = {each.values["why"] for each in found.findings if each.code == "energy_valid.unknown"}
    assert said == (set() if measured else {("more than its supply",)})
    assert measured or (found.score.unmeasured or "").endswith("wall: more than its supply")


def test_metering_takes_half_a_percent_of_a_core_at_most() -> None:
    assert said(quality.low_metering_overhead, metered(cpu_ns=SECOND // 4)) == []
    used = says("low_metering_overhead", "a", used=1 / 69.9, limit=0.005)
    assert said(quality.low_metering_overhead, metered(cpu_ns=SECOND)) == [used]


@pytest.mark.parametrize(("seconds", "each_ms", "used"), [(40, 4, None), (40, 6, 0.006), (5, 18, None), (5, 22, 0.022)])
def test_plugins_take_half_a_percent_of_a_core_at_most(seconds: int, each_ms: int, used: float | None) -> None:
    """By the parent's count, with or without a meter. each_ms: their CPU time in each second; less than ten ticks of
    10 ms in a window are noise."""
    blocks = tuple(block(second, plugins_ns=each_ms * 1_000_000) for second in range(1, seconds + 1))
    measured = record("b", "llm", "token", closed_loop([[(seconds + 1) * SECOND]]))
    told = said(quality.low_metering_overhead, result(but(measured, conditions=blocks)))
    assert told == ([] if used is None else [says("low_metering_overhead.plugins", used=used, limit=0.005)])


def at_the_wall(late_s: float = 0.0, clock_s: float = 0.0) -> Result:
    """A minute at 300 W between rests at 100 W, by a meter whose clock is late and whose lines come late."""
    whole = metered()
    at_ns = (np.arange(-20, 80, 0.1) * SECOND).astype(np.int64)
    watts = np.where((at_ns >= 0) & (at_ns < 60 * SECOND), 300.0, 100.0) + FLICKER * np.resize((0, 1), len(at_ns))
    wall = domain("plug", ("cpu:0", "node"), **OUTSIDE)
    stamps = at_ns - round(clock_s * SECOND)
    metering = Metering(
        phase="a",
        begin_ns=-20 * SECOND,
        end_ns=80 * SECOND,
        cpu_ns=0,
        samples={"plug": Samples(stamps, stamps, watts)},
        reading_age_ns={"plug": round((late_s + clock_s) * SECOND)},
    )
    return but(whole, domains=(wall,), meterings=(metering,))


def test_a_meter_whose_stamps_come_late_is_told() -> None:
    assert said(quality.meter_timestamps_recent, at_the_wall()) == []
    assert said(quality.meter_timestamps_recent, at_the_wall(late_s=1.4)) == [], (
        "whole seconds, read ten times a second"
    )
    assert said(quality.meter_timestamps_recent, metered()) == [], "a counter is stamped by the harness"
    late = says("meter_timestamps_recent", "a", phase="", domain="plug", age_s=3.0, limit_s=1.5)
    assert said(quality.meter_timestamps_recent, at_the_wall(clock_s=3)) == [late]


def test_two_sources_that_are_one_reading_are_told() -> None:
    whole = metered()
    [metering] = whole.meterings
    stamps = metering.samples["package"].before_ns
    joules = 50 * stamps / SECOND + 40 * np.cos(stamps / SECOND)
    other = but(whole.domains[0], id="copy")

    def told(copy: Any) -> Result:
        seen = {"package": Samples(stamps, stamps, joules), "copy": Samples(stamps, stamps, copy)}
        domains = (whole.domains[0], other)
        return but(whole, domains=domains, meterings=(but(metering, samples=seen),))

    assert said(quality.energy_agrees, told(1.01 * joules)) == []
    twins = {"phase": "", "domain": "package", "other": "copy"}
    assert said(quality.energy_agrees, told(joules)) == [says("energy_agrees.twins", "a", **twins)]
