"""Options of the command line that capabilities add, by the manifest. Their modules import nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Any

import click

from mixmark.harness.plugins.manifest import BUILT_IN, MODELS, OPTIONS, Kind


@cache
def options(kind: Kind) -> Mapping[str, Sequence[click.Option]]:
    """The options that ask for each plugin of a kind, by its name. kind: `experiments`, `executors` or `models`.

    Those of an executor are None unless they are given. The machines are asked for if one of them is given, and a run
    that is resumed needs all of them again. The value of an option with `hide_input` is in no result.
    """
    return {name: resolve_name(spec) for name, spec in OPTIONS.items() if name in (BUILT_IN | {"models": MODELS})[kind]}


def of_machines() -> Sequence[click.Option]:
    """The options that name other machines than this one."""
    return [option for own in options("executors").values() for option in own]


def chosen_machines(given: dict[str, Any]) -> Any:
    """The machines that the options of a command ask for: a `measure.request.Machines`. None if it is this one. Their
    options are removed from the others."""
    found = None
    for name, own in options("executors").items():
        values = {option.name: given.pop(option.name) for option in own if option.name}
        if any(value is not None for value in values.values()):
            found = resolve_name(BUILT_IN["executors"][name])(values)
    return found
