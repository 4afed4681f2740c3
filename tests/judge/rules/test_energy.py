"""The rules about energy: what keeps them and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from mixmark.harness.contracts.schema import Absent, Domain, Metering, Result, Samples
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.rules import energy
from tests.fakes.machine import WATTS_AT_THE_WALL, one_run
from tests.golden.sample import GPU, closed_loop, record, result
from tests.judge.found import SECOND, done, said

FLICKER = 1e-3  # a power that is the same at rest and at work is taken for frozen


def metered(watts: float = 50.0, lost: dict[str, str] | None = None, cpu_ns: int = 0, seconds: int = 60) -> Result:
    """A record of a minute on a host with two sources of joules: a counter, and power beside it."""
    at_ns = np.arange(-5, seconds + 5, 0.1) * SECOND
    begin, end = int(at_ns[0]), int(at_ns[-1])
    base: dict[str, Any] = {"meter": "m", "covers": ("cpu:0",), "boundary": "devices", "source": "a test"}
    domains = (
        Domain(id="package", quantity="energy", method="counter", **base),
        Domain(id="power", quantity="power", method="integrated", parent="package", **base),
    )
    end_of = {id: len(at_ns) // 2 if id in (lost or {}) else len(at_ns) for id in ("package", "power")}
    stamps = at_ns.astype(np.int64)
    values = {"package": 50.0 * at_ns / SECOND, "power": watts + FLICKER * np.resize((0, 1), len(at_ns))}
    samples = {id: Samples(stamps[:end], stamps[:end], values[id][:end]) for id, end in end_of.items()}
    metering = Metering(phase="a", begin_ns=begin, end_ns=end, cpu_ns=cpu_ns, samples=samples, lost=lost or {})
    whole = result(record("a", "llm", "token", closed_loop([[SECOND] * seconds])))
    changed = {"devices": whole.devices[:1], "domains": domains, "meterings": (metering,)}
    return whole.model_copy(update=changed)


def test_a_run_without_a_meter_says_where_to_look() -> None:
    assert said(energy.energy_measured, metered()) == []
    [(severity, _, message)] = said(energy.energy_measured, done())
    assert severity == "note" and f"nothing meters cpu:0, {GPU}; mixmark meters says" in message
    absent = (Absent(kind="meter", name="rapl", reason="sudo chmod"),)
    assert "absent meters" in said(energy.energy_measured, done().model_copy(update={"absent": absent}))[0][2]


def test_energy_of_a_part_is_a_warning() -> None:
    gpu = result().devices[1]
    whole = metered()
    assert said(energy.energy_complete, whole) == []
    more = whole.model_copy(update={"devices": (*whole.devices, gpu)})
    [(severity, about, message)] = said(energy.energy_complete, more)
    assert (severity, about, gpu.id in message) == ("warning", "run", True)
    modelled = tuple(each.model_copy(update={"method": "modelled"}) for each in whole.domains)
    assert (
        "package, power is modelled"
        in said(energy.energy_complete, whole.model_copy(update={"domains": modelled}))[0][2]
    )
    assert said(energy.energy_complete, done()) == []


def test_energy_that_is_not_known_says_why() -> None:
    assert said(energy.energy_valid, metered()) == []
    assert said(energy.energy_valid, metered(lost={"package": "its peer closed it"})) == [
        ("warning", "a", "no energy of package: lost, its peer closed it")
    ]
    assert said(energy.energy_valid, metered(lost={"power": "gone"})) == [], "it is not added"
    [(severity, _, message)] = said(energy.energy_valid, metered(seconds=10))
    assert (severity, message.split(":")[0]) == ("note", "energy of package")
    assert said(energy.energy_valid, metered(seconds=3)) == [
        ("note", "a", "no energy of package: 40 of its updates do not fit into the window")
    ]
    unread = metered().model_copy(update={"meterings": ()})
    assert said(energy.energy_valid, unread) == [("warning", "a", "no energy: the meters were not read in its phase")]


def test_energy_of_a_mix_that_is_not_known_says_why() -> None:
    told = one_run(WATTS_AT_THE_WALL)
    assert said(energy.energy_valid, told) == []
    metering, *others = told.meterings
    [wall] = told.domains
    samples = metering.samples[wall.id]
    half = slice(len(samples.values) // 2)
    torn = Samples(samples.before_ns[half], samples.after_ns[half], samples.values[half])
    cut = metering.model_copy(update={"samples": {wall.id: torn}, "lost": {wall.id: "line 9 is torn"}})
    broken = told.model_copy(update={"meterings": (cut, *others)})
    reason = f"{wall.id}: lost, line 9 is torn"
    assert said(energy.energy_valid, broken) == [("warning", "run", f"{metering.phase}: no energy of {reason}")]
    found = judge(broken).score
    assert found is not None and found.headline.endswith(f"EFFICIENCY NOT MEASURED: {reason}")


def test_a_counter_and_the_integral_of_power_agree_within_5_percent() -> None:
    assert said(energy.energy_agrees, metered(watts=52.0)) == []
    [(severity, _, message)] = said(energy.energy_agrees, metered(watts=53.0))
    assert (severity, "power is +6.0 % off package, which meters the same" in message) == ("warning", True)


def test_a_wall_that_uses_less_than_the_package_behind_it_is_in_doubt() -> None:
    whole = metered()
    [metering] = whole.meterings
    stamps = metering.samples["package"].before_ns
    wall = whole.domains[1].model_copy(
        update={"id": "wall", "boundary": "wall", "covers": ("cpu:0", "node"), "parent": None, "method": "external"}
    )
    for watts, message in (
        (48.0, None),
        (0.05, "wall used 100 % less than what it holds: are its unit and its clock right?"),  # kilowatts
    ):
        samples = {
            **metering.samples,
            "wall": Samples(stamps, stamps, watts + FLICKER * np.resize((0, 1), len(stamps))),
        }
        read = metering.model_copy(update={"samples": samples})
        told = whole.model_copy(update={"domains": (*whole.domains, wall), "meterings": (read,)})
        assert said(energy.energy_agrees, told) == ([("warning", "a", message)] if message else [])


def test_a_metered_run_with_a_phase_that_was_not_metered_is_told_and_no_crash() -> None:
    dark = metered(watts=52.0).model_copy(update={"meterings": ()})
    assert said(energy.energy_agrees, dark) == []
    assert said(energy.energy_valid, dark)[0][2] == "no energy: the meters were not read in its phase"


def test_metering_takes_half_a_percent_of_a_core_at_most() -> None:
    assert said(energy.low_metering_overhead, metered(cpu_ns=SECOND // 4)) == []
    [(severity, _, message)] = said(energy.low_metering_overhead, metered(cpu_ns=SECOND))
    assert (severity, "1.4 % of one core" in message) == ("warning", True)


def at_the_wall(late_s: float = 0.0, clock_s: float = 0.0) -> Result:
    """A minute at 300 W between rests at 100 W, by a meter whose clock is late and whose lines come late."""
    whole = metered()
    at_ns = (np.arange(-20, 80, 0.1) * SECOND).astype(np.int64)
    watts = np.where((at_ns >= 0) & (at_ns < 60 * SECOND), 300.0, 100.0) + FLICKER * np.resize((0, 1), len(at_ns))
    wall = Domain(
        id="plug", meter="external", covers=("cpu:0", "node"), boundary="wall", quantity="power", method="external",
        source="a test",
    )  # fmt: skip
    stamps = at_ns - round(clock_s * SECOND)
    metering = Metering(
        phase="a",
        begin_ns=-20 * SECOND,
        end_ns=80 * SECOND,
        cpu_ns=0,
        samples={"plug": Samples(stamps, stamps, watts)},
        reading_age_ns={"plug": round((late_s + clock_s) * SECOND)},
    )
    return whole.model_copy(update={"domains": (wall,), "meterings": (metering,)})


def test_a_meter_whose_stamps_come_late_is_told_with_the_figure() -> None:
    """3 of 60 s then count as a rest, at a third of the power."""
    assert said(energy.meter_timestamps_recent, at_the_wall()) == []
    assert said(energy.meter_timestamps_recent, at_the_wall(late_s=1.4)) == [], "whole seconds, read ten times a second"
    assert said(energy.meter_timestamps_recent, metered()) == [], "a counter is stamped by the harness"
    assert said(energy.meter_timestamps_recent, at_the_wall(clock_s=3)) == [
        (
            "warning",
            "a",
            "the timestamps of plug are 3.0 s old or more when they arrive (limit 1.5 s): if its clock is late, its "
            "joules are off by -3.3 %; set its clock by NTP, or declare late_s",
        )
    ]
    [(_, _, message)] = said(energy.meter_timestamps_recent, at_the_wall(late_s=25))
    assert "are off by an unknown part" in message, "so long before the window nothing was read"


def test_two_sources_that_are_one_reading_are_told() -> None:
    whole = metered()
    [metering] = whole.meterings
    stamps = metering.samples["package"].before_ns
    joules = 50 * stamps / SECOND + 40 * np.cos(stamps / SECOND)
    other = whole.domains[0].model_copy(update={"id": "copy"})

    def told(copy: Any) -> Result:
        seen = {"package": Samples(stamps, stamps, joules), "copy": Samples(stamps, stamps, copy)}
        domains = (whole.domains[0], other)
        return whole.model_copy(
            update={"domains": domains, "meterings": (metering.model_copy(update={"samples": seen}),)}
        )

    assert said(energy.energy_agrees, told(1.01 * joules)) == []
    [(severity, _, message)] = said(energy.energy_agrees, told(joules))
    assert (severity, message.split(":")[0]) == ("warning", "package and copy show one and the same reading")
    assert said(energy.energy_agrees, told(2 * joules))[0][2] == (
        "package is -50.0 % off copy, which meters the same (limit 5.0 %)"
    )
