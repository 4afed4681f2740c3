"""Executors: other machines that a run measures in place of this one.

An executor is a capability. It says its options, and opens the machines that they name. `LocalExecutor` measures this
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar

from mixmark.harness.plugins.manifest import BUILT_IN

if TYPE_CHECKING:
    import click

    from mixmark.harness.machine.devices import Found
    from mixmark.harness.measure.request import MeasuredMachine, PreparedRun


class Machines:
    """The machines that a command line names. The module of a subclass imports nothing heavy, since `mixmark run
    --help` shows its options; its methods may."""

    options: ClassVar[Sequence[click.Option]]
    """They are None unless they are given. The machines are asked for if one of them is given, and a run that is
    resumed needs all of them again. The value of an option with `hide_input` is in no result."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """given: the values of its options, by their names."""
        self.given = given

    def check(self) -> None:
        """Raises UsageError if no machine can be measured by these options. Nothing is waited for yet."""

    def find_devices(self, adapters: Sequence[str], stack: ExitStack) -> Found:
        """The devices that the adapters reach there; all adapters if none is named. Nothing is measured. Raises
        MixmarkError if there is no machine."""
        raise NotImplementedError

    def open(self, run: PreparedRun, stack: ExitStack) -> MeasuredMachine:
        """Opens the machines, which are measured until the stack is closed. Raises MixmarkError if there is none."""
        raise NotImplementedError


@cache
def installed() -> Sequence[type[Machines]]:
    """All kinds of machines."""
    return [*map(resolve_name, BUILT_IN["executors"].values())]


def options() -> Sequence[click.Option]:
    """The options of all kinds of machines."""
    return [option for each in installed() for option in each.options]


def chosen(options: dict[str, Any]) -> Machines | None:
    """The machines that the options of a command ask for, None if it is this one. Their options are removed from the
    others."""
    found = None
    for each in installed():
        given = {option.name: options.pop(option.name) for option in each.options if option.name}
        if any(value is not None for value in given.values()):
            found = each(given)
    return found
