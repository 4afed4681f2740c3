"""Units of columns and paths: known ones are converted, and none is guessed."""

from __future__ import annotations

import pytest

from mixmark.harness.capabilities.external_log.units import POWER, UNITS, unit_of, units_of_name


@pytest.mark.parametrize(
    ("name", "declared", "usual", "unit"),
    [
        ("watts", None, None, "W"),
        ("Power (W)", None, None, "W"),
        ("PkgWatt", None, None, "W"),
        ("power_mw", None, None, "mW"),
        ("emeter.power_mw.0", None, None, "mW"),
        ("milliwatts", None, None, "mW"),
        ("P [µW]", None, None, "uW"),
        ("GPU energy (nJ)", None, None, "nJ"),
        ("energy_uj", None, None, "uJ"),
        ("Energy (mWh)", None, None, "mWh"),
        ("watt_hours", None, None, "Wh"),
        ("TOTAL KWH", None, None, "kWh"),
        ("kilowatt hours", None, None, "kWh"),
        ("joules", None, None, "J"),
        ("ENERGY [MWH]", "mWh", None, "mWh"),
        ("Energy (MWh)", "MWh", None, "MWh"),
        ("Power (A)", "W", None, "W"),  # of phase A
        ("Power (total)", "kW", None, "kW"),
        ("total_energy_consumption", "J", None, "J"),
        ("power_limit_w", None, None, "W"),  # if its owner names it
        ("P/W", "W", None, "W"),
        ("ENERGY.Power", "W", None, "W"),
        ("total power consumption", "kWh", None, "kWh"),
        ("power.draw", None, "W", "W"),
        ("power.draw [W]", None, "W", "W"),
    ],
)
def test_a_unit_is_that_of_the_name_the_owner_or_the_tool(
    name: str, declared: str | None, usual: str | None, unit: str
) -> None:
    assert unit_of(name, declared, usual) == unit


@pytest.mark.parametrize(
    ("name", "declared", "says"),
    [
        ("total_energy_consumption", None, "does not say its unit: add unit"),
        ("Power", None, "does not say its unit: add unit"),
        ("network", None, "does not say its unit: add unit"),
        ("POWER [MW]", None, "may be in mW or MW: add unit"),
        ("Energy (mWh)", "Wh", "is in mWh by its name, and unit = 'Wh'"),
        ("power_mw", "MW", "is in mW by its name, and unit = 'MW'"),
        ("Power", "hp", "'hp' is not a unit of power or energy"),
        ("Power", "VA", "'VA' is not a unit of power or energy"),
        ("S (VA)", "W", "is neither power nor energy by its name"),
        ("power_kva", "kW", "is neither power nor energy by its name"),
        ("ENERGY.ApparentPower", "W", "is neither power nor energy by its name"),
        ("Reactive Power [W]", None, "is neither power nor energy by its name"),
        ("Power (%)", "W", "is neither power nor energy by its name"),
        ("U [mV]", "W", "is neither power nor energy by its name"),
        ("I [A]", "W", "is neither power nor energy by its name"),
        ("tokens per watt", "W", "is neither power nor energy by its name"),
        ("perfPerWatt", None, "is neither power nor energy by its name"),
        ("joules_per_token", "J", "is neither power nor energy by its name"),
        ("total_energy_consumption", "W", "is energy by its name, and unit = 'W'"),
        ("GPU Energy", "kW", "is energy by its name, and unit = 'kW'"),
        ("power", "J", "is power by its name, and unit = 'J'"),
    ],
)
def test_a_unit_that_is_not_known_or_contradicts_the_name_is_refused(
    name: str, declared: str | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        unit_of(name, declared)


@pytest.mark.parametrize(
    "name",
    """
    tokens per watt|perf_per_watt|SamplesPerWatt|tokens/W|tokens / W|Efficiency [tokens/J]|Cost [EUR per kWh]
    |power_limit_w|PowerCapWatts|power.max_limit [W]|max_power_w|Rated Power (kW)|tdp_watts|enforced limit W
    |PowerCapacityWatts|budget_w|power factor W|power_share_w|Nominal Power [W]|iops per kilowatt
    """.replace("\n", "").split("|"),
)
def test_a_ratio_and_a_bound_are_no_readings(name: str) -> None:
    assert units_of_name(name.strip()) == []


@pytest.mark.parametrize("name", ["operating_power_w", "PerfMon Power [W]", "capture W", "minute_power_w", "person_w"])
def test_a_word_that_holds_another_one_is_not_that(name: str) -> None:
    assert units_of_name(name) == ["W"]


def test_each_prefix_scales_each_unit() -> None:
    values = {"nW": 1e-9, "mW": 1e-3, "kJ": 1e3, "MJ": 1e6, "Wmin": 60.0, "mWh": 3.6, "kWh": 3.6e6, "TWh": 3.6e15}
    assert {unit: UNITS[unit] for unit in values} == pytest.approx(values, rel=1e-12)
    assert {"W", "mW", "GW"} < POWER and POWER.isdisjoint({"Wh", "Ws", "Wmin", "J"})
