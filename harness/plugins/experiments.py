"""What experiments are: they are run beside the mix and are in no score.

An experiment is a capability. Tables of the manifest name its parts under its name, each in the room that it serves:

    options         the options of `mixmark run` that ask for it
    experiments     its facts: `Facts`, in a module that imports nothing heavy
    stages          what it measures: a `measure.experiments.Experiment`
    contradictions  in its facts: a function from a result to sentences; the facts have their shapes
    figures         a function from an assessment to a dataclass, or None if there are none
    sections        what is shown of it: a `reporters.experiments.Section`

What has no facts has no options and no stage: its figures and contradictions are of every result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Any, NamedTuple

from mixmark.harness.contracts.schema import Fact
from mixmark.harness.plugins.manifest import BUILT_IN, Kind


class Facts(NamedTuple):
    """The models of what a result keeps of an experiment. A result with other facts contradicts itself."""

    of_run: type[Fact] = Fact
    """The model of `Result.experiments`."""
    of_phase: type[Fact] = Fact
    """The model of `Phase.facts`."""
    of_found: type[Fact] = Fact
    """The model of `Result.found`."""


@cache
def parts(kind: Kind) -> Mapping[str, Any]:
    """This part of each installed experiment, by the experiment's name. A class is called without arguments."""
    found = {name: resolve_name(spec) for name, spec in BUILT_IN[kind].items()}
    return {name: part() if isinstance(part, type) else part for name, part in found.items()}


def facts() -> Mapping[str, Facts]:
    """The facts of each installed experiment that a run can be asked for."""
    return parts("experiments")
