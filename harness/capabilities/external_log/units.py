"""Reads units of power and energy from options, names of columns, and paths in a reply. A unit is never guessed."""

from __future__ import annotations

import re

BASES = {"W": 1.0, "J": 1.0, "Ws": 1.0, "Wmin": 60.0, "Wh": 3600.0}
PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNITS = {prefix + base: factor * one for base, one in BASES.items() for prefix, factor in PREFIXES.items()}
"""The watts or joules of one unit."""
POWER = frozenset(unit for unit in UNITS if unit.endswith("W"))
"""The units of power; the others are units of energy."""

SPELLED = {
    "watts?": "W",
    "joules?": "J",
    "hours?|hrs?": "h",
    "minutes?": "min",
    "seconds?": "s",
    "nano": "n",
    "micro|[µμ]": "u",
    "milli": "m",
    "kilo": "k",
    "mega": "M",
    "giga": "G",
    "tera": "T",
}
IN_BRACKETS = re.compile(r"[\[(]\s*([^\])]+?)\s*[\])]")
OTHER_UNIT = re.compile(r"(?i)[nuµmkMG]?(V|VA|VAr|VAh|VArh|Ah|Hz)|mA|%|°[CF]|dBm|rpm")
"""A unit of neither power nor energy."""
MEASURED = re.compile(r"(?i)[ACFs]|pct|percent|celsius|volts|amps|[um]s|[KMG]i?B")
"""A unit of no meter, as columns beside the reading have it."""
AMPERES = re.compile(r"(?i)(?!.*(?:power|energy)).*[\[(]\s*A\s*[\])]")
"""Power and energy in brackets with an A are of a phase."""
RATIO = re.compile(r"(?<![a-z])per(?![a-z])|per(?=_?(?:watt|joule))")
BOUND = re.compile(
    r"(?<![a-z])(?:power)?(?:limit|cap|max|maximum|min|minimum|rated|rating|nominal|tdp|budget|threshold|target|setpoint"
    r"|capacity|headroom|factor|share|ratio|efficiency)(?:s|ped)?(?![a-z])"
)
"""The words for a bound, a setting or a fraction of a power."""
APPARENT = re.compile(r"(?i)apparent|aprt|reactive|(?:^|[\s_.\-])[mk]?VA(?:r|h|rh)?$")


def units_of_word(word: str) -> list[str]:
    """The units that a word may be: `kW`, `KWH`, `milliwatts`, `watt_hours`. A capital M may be milli or mega: tools
    write whole headers in capital letters."""
    sign = re.sub(r"[\s_.·*-]", "", word)
    for spelled, letter in SPELLED.items():
        sign = re.sub(f"(?i){spelled}", letter, sign)
    found = [unit for unit in UNITS if unit.lower() == sign.lower()]
    return [unit for unit in found if not (sign.startswith("m") and unit.startswith("M"))]


def units_of_name(name: str, bound: bool = False) -> list[str]:
    """The units that a name may carry: `P [kW]`, `power_mw`, `watts`, `PkgWatt`, `phases.power_mw.0`. Empty if it
    carries none, or a unit of something else. bound: whether it is asked for as a bound, and not as a reading."""
    if is_other(name) or is_bound(name) is not bound:
        return []
    words = _words(re.sub(r"(\.\d+)+$", "", IN_BRACKETS.sub("", name)))
    last = re.split(r"[\s_.\-]+", words)[-2:]
    spoken = () if "/" in "".join(last) else (" ".join(last), last[-1])  # `tokens / W`
    places = (*reversed(IN_BRACKETS.findall(name)), *spoken)
    return next((units for place in places if (units := units_of_word(place))), [])


def is_other(name: str) -> bool:
    """Whether a name says that its values are neither power nor energy, but for example volts, apparent power or tokens
    per watt."""
    in_brackets = any(OTHER_UNIT.fullmatch(text) for text in IN_BRACKETS.findall(name))
    return in_brackets or bool(APPARENT.search(name) or AMPERES.fullmatch(name) or RATIO.search(_words(name).lower()))


def measures(name: str, text: str) -> bool:
    """Whether a value is a decimal, or a number whose name or text has a unit of any kind: `fan_rpm`, `1980 MHz`."""
    number = re.fullmatch(r"[+-]?(\d+(?:\.\d*)?|\.\d+)(?:\s*(%|°?[a-zA-Z]{2,}|°?[CFVWJAs]))?", text)
    if number is None:
        return False
    words = (number[2] or "", *IN_BRACKETS.findall(name), re.split(r"[\s_.]", name)[-1])
    return "." in number[1] or any(
        OTHER_UNIT.fullmatch(word) or MEASURED.fullmatch(word) or units_of_word(word) for word in words
    )


def is_bound(name: str) -> bool:
    """Whether a name says that its values are no readings, but for example a limit."""
    return bool(BOUND.search(_words(name).lower()))


def _words(name: str) -> str:
    return re.sub(r"([a-z])([A-Z][a-z])", r"\1 \2", name).strip()


def unit_of(name: str, declared: str | None, usual: str | None = None) -> str:
    """The unit of the values of a column or a path. declared: by the owner. usual: by the documentation of the tool.
    Raises ValueError if none of them and not the name says it, or if they contradict one another."""
    named = units_of_name(name, is_bound(name))
    said = set(re.findall("energy|power(?!.*consum)", name.lower()))
    if declared and declared not in UNITS:
        raise ValueError(f"{declared!a} is not a unit of power or energy, such as W, mW, J or kWh")
    if is_other(name):
        raise ValueError(f"{name!a} is neither power nor energy by its name")
    if declared and not named and len(said) == 1 and (declared in POWER) == (said == {"energy"}):
        raise ValueError(f"{name!a} is {said.pop()} by its name, and unit = {declared!a}")
    if declared and named and declared not in named:
        raise ValueError(f"{name!a} is in {' or '.join(named)} by its name, and unit = {declared!a}")
    if declared:
        return declared
    if len(named) > 1:
        raise ValueError(f"{name!a} may be in {' or '.join(named)}: add unit")
    if not named and usual is None:
        raise ValueError(f"{name!a} does not say its unit: add unit, as the documentation of its tool has it")
    return named[0] if named else usual or ""
