"""Published mixes, which are frozen, and mixes from a user's TOML file with one table.

[mine]
tier = "edge"
units = { llm = 100, resnet50 = 2000 }

[mine.limits]
resnet50 = { total_s = 0.5 }

[models.ocr]
file = "det.onnx"
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic import ValidationError

from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.schema import Mix, Tier
from mixmark.harness.contracts.toml import read_toml
from mixmark.harness.plugins.manifest import BUILT_IN

SHIPPED = Path(__file__).with_suffix(".toml")
NS_PER_S = 1_000_000_000
SHORT = "a name may lack its tier"
PAGE = "docs/rules.md shows one"
MODELS = "models"
RANKED = "1"
"""The end of the name of a tier's ranked mix."""


@cache
def frozen() -> Mapping[str, Mix]:
    """Returns the published mixes by name."""
    shipped = {**read_toml(SHIPPED, "the published mixes"), **_added()}
    return {name: _mix(name, table) for name, table in shipped.items()}


def without_rank() -> Collection[str]:
    """The names of the published mixes that no score is ranked with."""
    return _added().keys()


def _added() -> Mapping[str, Any]:
    """The tables of the mixes of capabilities."""
    return {name: table for spec in BUILT_IN["mixes"].values() for name, table in resolve_name(spec).items()}


def load(asked: str | None, tier: Tier, suites: Collection[str]) -> Mix:
    """Loads a published mix by its name, with or without its tier (`edge-1`, `1`), another mix from a file
    (whose name ends in .toml), or, if `asked` is None, the tier's ranked mix.

    suites: the names of all suites. Raises UsageError for a mix that does not exist, cannot be read or belongs to
    another tier, for units that are not above 0, and for an unknown suite.
    """
    if asked is not None and asked.endswith(".toml"):
        mix = _from_file(Path(asked))
    else:
        names, of_tier = frozen(), f"{tier}-{asked or RANKED}"
        (name,) = choose_by_name("mix", [of_tier if of_tier in names else str(asked)], names, SHORT)
        mix = names[name]
    if mix.tier != tier:
        raise UsageError(
            f"the mix {mix.name} is for the tier {mix.tier}, not for {tier}",
            hint=f"give --tier {mix.tier} or another --mix",
        )
    choose_by_name(f"suite for mix {mix.name}:", list(mix.units), suites)
    return mix


def choose(asked: str | None, tier: Tier, running: Collection[str], suites: Collection[str]) -> Mix | None:
    """Chooses the mix of a run: the requested mix, or by default the tier's first mix. Returns None if `none` is
    requested, or by default if the run does not measure every suite of the mix.

    running: the names of the suites that the run measures; suites: the names of all suites. Raises UsageError like
    `load`, and for a requested mix with a suite that the run does not measure.
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


def remedy(asked: str | None) -> str:
    """What gives a run a mix. asked: the value of --mix."""
    return "it needs a mix: leave --mix none away" if asked == "none" else "it needs a mix: leave --suite away"


def lacking(tier: Tier, measured: Collection[str]) -> tuple[str, Sequence[str]]:
    """The name of the first mix of a tier, which is its ranked one, and its suites that a run has not measured."""
    name, units = next(((mix.name, mix.units) for mix in frozen().values() if mix.tier == tier), ("", {}))
    return name, [suite for suite in units if suite not in measured]


def models(asked: str | None) -> Mapping[str, Mapping[str, Any]]:
    """The tables [models.NAME] of a mix's file: suites that it brings along. Raises UsageError."""
    if asked is None or not asked.endswith(".toml"):
        return {}
    tables = read_toml(Path(asked), "the mix", PAGE).get(MODELS, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageError(f"{asked}: {MODELS} is not a table of tables, such as [{MODELS}.ocr]", hint=PAGE)
    return tables


def one_table(path: Path, what: str, page: str, beside: str = "") -> tuple[str, Mapping[str, Any]]:
    """The name and the content of the only table of a file, `beside` which there may be another one. what: as in
    `read_toml`. Raises UsageError."""
    content = read_toml(path, what, page)
    content.pop(beside, None)
    if len(content) != 1 or not all(isinstance(table, dict) for table in content.values()):
        raise UsageError(f"{path} must have exactly one table, named after {what}", hint=page)
    [(name, table)] = content.items()
    return name, table


def _from_file(path: Path) -> Mix:
    name, table = one_table(path, "the mix", PAGE, MODELS)
    try:
        mix = _mix(name, table)
    except ValidationError as error:
        raise UsageError(f"{path}: {words_of(error)}") from error
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    if mix.frozen:
        raise UsageError(
            f"{path}: the name {name} is reserved for a published mix",
            hint="choose another name; only published mixes are ranked",
        )
    return mix


def _mix(name: str, table: Mapping[str, Any]) -> Mix:
    """Builds a mix from its table. Raises ValidationError for a wrong mix and another ValueError for wrong limits."""
    limits = table.get("limits", {})
    if not isinstance(limits, dict):
        raise ValueError(f"{name}.limits must be a table")
    limits = {suite: _limits(f"{name}.limits.{suite}", seconds) for suite, seconds in limits.items()}
    return Mix.model_validate({"name": name, **table, "limits": limits})


def _limits(where: str, seconds: Any) -> dict[str, int]:
    kinds = {"first_s": "first_ns", "per_unit_s": "per_unit_ns", "total_s": "total_ns"}
    if not isinstance(seconds, dict) or not seconds or not seconds.keys() <= kinds.keys():
        raise ValueError(f"{where} must have at least one of {', '.join(kinds)} and nothing else")
    if not all(type(value) in (int, float) and 0 < value < 1e9 for value in seconds.values()):
        raise ValueError(f"{where} must be seconds, above 0")
    return {kinds[kind]: round(value * NS_PER_S) for kind, value in seconds.items()}


OF_TOML = {
    "tuple_type": "Input should be an array",
    "model_type": "Input should be a table",
    "dict_type": "Input should be a table, {{ name = value }}",
    "too_short": "Array should have at least {min_length} items, not {actual_length}",
}
"""pydantic's messages that speak of Python, in the terms of TOML."""


def words_of(error: ValidationError) -> str:
    """What is wrong with a table, field by field. pydantic leaves wrong items out of an array, so what it says of the
    array itself is then left out."""
    errors = error.errors()
    within = {each["loc"][:length] for each in errors for length in range(1, len(each["loc"]))}
    own = [(each, OF_TOML.get(each["type"], "{msg}")) for each in errors if each["loc"] not in within]
    return "; ".join(
        f"{'.'.join(map(str, each['loc']))}: {words}".removeprefix(": ").removeprefix("Value error, ")
        for each, form in own
        for words in [form.format(msg=each["msg"], **each.get("ctx", {}))]
    )
