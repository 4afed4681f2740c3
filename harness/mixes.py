"""The mixes: the frozen ones that are shipped, and others from a file of the same form with one table.

[mine]
tier = "edge"
units = { llm = 100, resnet50 = 2000 }

[mine.limits]
resnet50 = { total_s = 0.5 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.errors import UsageError
from harness.pick import pick
from harness.schema import Mix, Tier

SHIPPED = Path(__file__).with_suffix(".toml")
NS_PER_S = 1_000_000_000


@cache
def frozen() -> Mapping[str, Mix]:
    """The shipped ones, by name."""
    content = tomllib.loads(SHIPPED.read_text("utf-8"))
    return {name: _mix(name, table) for name, table in content.items()}


def load(asked: str | None, tier: Tier, suites: Collection[str]) -> Mix:
    """A frozen mix by its name, another by the path of its file (which ends in .toml), or the tier's first where none
    is asked for.

    suites: that there are. Raises UsageError for a mix that does not exist, cannot be read or is of another tier, and
    for units that are not above 0 or of no suite.
    """
    if asked is not None and asked.endswith(".toml"):
        mix = _from_file(Path(asked))
    else:
        (name,) = pick("mix", [asked or f"{tier}-1"], frozen())
        mix = frozen()[name]
    if mix.tier != tier:
        raise UsageError(
            f"mix {mix.name} is for the {mix.tier} tier, not for {tier}", hint=f"--tier {mix.tier}, or another --mix"
        )
    pick(f"suite for mix {mix.name}:", list(mix.units), suites)
    return mix


def choose(asked: str | None, tier: Tier, running: Collection[str], suites: Collection[str]) -> Mix | None:
    """The mix that a run ends with: the asked one, or the tier's first where nothing is asked. None where `none` is
    asked, or where nothing is asked and a suite of the tier's mix does not run.

    running: the suites that this run measures; suites: all suites that exist. Raises UsageError as `load` does, and for
    an asked mix with a suite that does not run.
    """
    if asked == "none":
        return None
    mix = load(asked, tier, suites)
    missing = [suite for suite in mix.units if suite not in running]
    if asked and missing:
        raise UsageError(
            f"the mix {mix.name} needs {', '.join(missing)}, which this run does not measure",
            hint="leave out --suite and --rate, or give --mix none",
        )
    return None if missing else mix


def _from_file(path: Path) -> Mix:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the mix {path}: {error}") from error
    if len(content) != 1 or not all(isinstance(table, dict) for table in content.values()):
        raise UsageError(f"{path} must hold one table, named like the mix", hint="see harness/mixes.toml for the form")
    [(name, table)] = content.items()
    try:
        mix = _mix(name, table)
    except ValidationError as error:
        raise UsageError(f"{path}: {_said(error)}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    if mix.frozen:
        raise UsageError(
            f"{path}: the name {name} is kept for frozen mixes", hint="any other will do; such a mix is never ranked"
        )
    return mix


def _mix(name: str, table: Mapping[str, Any]) -> Mix:
    """Raises ValidationError, a ValueError, for what is no mix; another ValueError for what is no limit."""
    limits = table.get("limits", {})
    if not isinstance(limits, dict):
        raise ValueError(f"{name}.limits must be a table")
    limits = {suite: _limits(f"{name}.limits.{suite}", seconds) for suite, seconds in limits.items()}
    return Mix.model_validate({"name": name, **table, "limits": limits})


def _limits(where: str, seconds: Any) -> dict[str, int]:
    kinds = {"first_s": "first_ns", "per_unit_s": "per_unit_ns", "total_s": "total_ns"}
    if not isinstance(seconds, dict) or not seconds or not seconds.keys() <= kinds.keys():
        raise ValueError(f"{where} must hold some of {', '.join(kinds)}")
    if not all(type(value) in (int, float) and 0 < value < 1e9 for value in seconds.values()):
        raise ValueError(f"{where} must be seconds above 0")
    return {kinds[kind]: round(value * NS_PER_S) for kind, value in seconds.items()}


def _said(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": Value error, ") for each in error.errors()
    )
