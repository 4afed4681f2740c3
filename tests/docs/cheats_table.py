"""The table of cheats in docs/method.md: what each engine of tests/fakes/cheats.py does, and what catches it."""

from __future__ import annotations

from pathlib import Path

from tests.docs import parts
from tests.fakes import cheats
from tests.measure import test_cheats as caught

PAGE = Path(__file__).parents[2] / "docs" / "method.md"
WORDS = {"finished": "the measurement fails", "cut short": "its part of the mix is cut short"}
"""What is not the name of a rule."""


def table() -> str:
    engines = {**caught.CAUGHT, **caught.PATCHING, **caught.CAUGHT_WITH_BULK, **caught.CAUGHT_AS_PROBES}
    found = {name: code for name, (code, _) in engines.items()}
    for name, (code, _) in caught.CAUGHT_AS_SERVERS.items():
        found.setdefault(name, code)
    found |= dict.fromkeys((*caught.GAIN_NOTHING, *caught.GAIN_NOTHING_AS_PROBES), "it gains nothing")
    deeds: dict[str, list[str]] = {}
    for name, code in found.items():
        rule, in_the_mix = (
            WORDS.get(each.partition(".")[0], each.partition(".")[0])
            for each in (code, caught.CAUGHT_IN_THE_MIX.get(name, (code, ""))[0])
        )
        deed = (getattr(cheats, name).__doc__ or "").split("\n")[0]
        assert deed.endswith("."), name  # each engine says what it does
        deeds.setdefault(rule, []).append(deed if in_the_mix == rule else f"{deed[:-1]} (in the mix: {in_the_mix}).")
    rows = ["| what catches it | what the adapter does |", "|---|---|"]
    return "\n".join([*rows, *(f"| {rule} | {' '.join(each)} |" for rule, each in deeds.items())]) + "\n"


def pages() -> dict[Path, str]:
    return {PAGE: parts.renewed(PAGE.read_text("utf-8"), cheats=table())}
