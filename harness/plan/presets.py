"""The presets, and the numbers that planning and judging share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mixmark.harness.contracts.schema import Limits

SECOND = 1_000_000_000
OUT_OF_CACHE = 4
"""A probe streams this many times the last-level cache, so that little of it is read from the cache."""
MOST_REPEATS = 2  # a machine that is always busy must not keep a run going


@dataclass(frozen=True)
class Preset:
    """How much to measure. quick and ranked measure each suite's native scenario, the other presets all closed loops.

    The server scenario is measured only with `--scenario server`, because the search for a rate takes many feeds.
    """

    name: str
    all_scenarios: bool
    limits: Limits
    mix: Limits
    """The limits of the mixed phase, with each suite's solo warm-up."""
    idle_s: float = 0.0
    """How long the meters read the idle machine before and after each phase, but not around probes and screening
    runs."""
    runs: int = 1
    """The number of mixed phases, each with fresh workers."""
    confirm: bool = False
    """Whether the routes of the plan have a confirmation run before the first mixed phase, so that a lucky rate does
    not decide the bound."""
    score_first: bool = False
    """Whether the mix is planned by audited quick checks and run before the suites are measured alone."""
    equals_once: bool = False
    """Whether, if the score comes first, only one of several equal devices is measured outside of the mix."""
    repeats: int = MOST_REPEATS
    """How many disturbed mixed phases are repeated at most."""
    bare: bool = False
    """Whether neither probes nor meters are used: measurements are only repeated."""


def _limits(
    warmup_s: float,
    search_s: float,
    min_s: float,
    max_s: float,
    min_feeds: int,
    half_width: float | None = None,
    audits: int = 0,
) -> Limits:
    warmup_ns, search_ns, min_ns, max_ns = (int(seconds * SECOND) for seconds in (warmup_s, search_s, min_s, max_s))
    return Limits(
        warmup_ns=warmup_ns,
        search_ns=search_ns,
        min_ns=min_ns,
        max_ns=max_ns,
        min_feeds=min_feeds,
        half_width=half_width,
        audits=audits,
    )


QUICK = _limits(5, 12, 10, 28, 1, 0.05, 1)  # 45 s a solo measurement but for one long feed
LONG = _limits(10, 60, 30, 300, 3, 0.02, 3)
LONGEST = LONG.model_copy(update={"audits": 30})
PRESETS = {
    "quick": Preset("quick", False, QUICK, _limits(3, 0, 60, 600, 1, audits=1), 5, score_first=True, equals_once=True),
    "ranked": Preset("ranked", False, QUICK, _limits(3, 0, 120, 600, 1, audits=3), 5, runs=3),
    "standard": Preset("standard", True, LONG, _limits(10, 0, 120, 1200, 1, audits=3), 10, runs=3, confirm=True),
    "official": Preset("official", True, LONGEST, _limits(60, 0, 240, 3600, 1, audits=30), 60, runs=5, confirm=True),
}


def longer(window_ns: int) -> str:
    """The presets whose mix may last longer, in words: --preset official waits up to 60 minutes. Empty if there is
    none, as at the smoke tier, whose windows are the same in all presets."""
    if window_ns < PRESETS["quick"].mix.min_ns:
        return ""
    minutes = {
        name: preset.mix.max_ns / 60 / SECOND for name, preset in PRESETS.items() if preset.mix.max_ns > window_ns
    }
    return ", ".join(f"--preset {name} waits up to {most:.0f} minutes" for name, most in minutes.items())


def long_enough(window_ns: int, mixed: bool, tier: str) -> str:
    """The first preset whose windows last that long, in words; or else the first one whose windows may. mixed: whether
    the window is of the mix. tier: of the run; smoke has the same windows in all presets."""
    named = f"{'--tier edge ' if tier == 'smoke' else ''}--preset"
    limits = {name: preset.mix if mixed else preset.limits for name, preset in PRESETS.items()}
    for bound, words in (("min_ns", "is long enough"), ("max_ns", "may be long enough")):
        if name := next((name for name, each in limits.items() if getattr(each, bound) >= window_ns), None):
            return f"{named} {name} {words}"
    return "no preset is long enough"


SMOKE = _limits(0.3, 1, 1, 5, 1, audits=1)  # never ranked; the smoke tier shows that everything works


SMOKE_MIX = _limits(0.3, 0, 5, 30, 1, audits=1)


BARE = Preset("bare", False, _limits(3, 0, 5, 10, 3), SMOKE_MIX, confirm=True, bare=True)
"""The preset of a capability that measures on its own: many short measurements, since each has a new process."""


def of(name: str, tier: str) -> Preset:
    """The preset of a run; `BARE` if a capability gave it another name.

    The smoke tier, which is never ranked, shortens it and repeats nothing.
    """
    preset = PRESETS.get(name, BARE)
    if tier == "smoke":
        return replace(preset, mix=SMOKE_MIX, repeats=0, confirm=False, idle_s=0.0)
    return preset


PROBING = _limits(0, 0, 1.5, 10, 2, audits=2)


SCREENING = _limits(1, 3, 2, 4, 1).model_copy(update={"screening": True})


SMOKE_SCREENING = _limits(0.1, 0.5, 0.3, 0.6, 1).model_copy(update={"screening": True})
