"""Every error that Mixmark raises on purpose, and the checks of options and names that raise it.

    MixmarkError          names the thing, the cause and the next step
    ├── UsageError        the command line or the configuration is wrong: exit 2
    ├── PluginError       a plugin does not load, or does not match its protocol
    ├── ResultError       a result folder cannot be written or read
    ├── WrongOutput       an output lacks the shape, number of units or values that its suite requires
    └── Unsupported       an adapter cannot run this suite on this device at this precision

A crash, an out-of-memory kill or a hang of a worker is not an exception but a `schema.Failure` in a `Record`: the rest
of the run continues.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence


class MixmarkError(Exception):
    """An expected failure; `hint` is what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(MixmarkError):
    """The command line or the configuration asks for something that does not exist."""


class PluginError(MixmarkError):
    """A plugin does not load, or does not match its protocol."""


class ResultError(MixmarkError):
    """A result folder cannot be written or read."""


class WrongOutput(MixmarkError):
    """An output lacks the shape, number of units or values that its suite requires."""


class Unsupported(MixmarkError):
    """An adapter cannot run this suite on this device at this precision; the message is the reason."""


def refuse_options(plugin: str, options: Mapping[str, str], known: Collection[str] = ()) -> None:
    """Raises UsageError for options that the plugin does not know. plugin: as in `the meter rapl`."""
    if unknown := [name for name in options if name not in known]:
        if not known:
            raise UsageError(f"{plugin} takes no options: {', '.join(unknown)}")
        raise UsageError(f"{plugin} has no option {', '.join(unknown)}", f"it knows: {', '.join(known)}")


def choose_by_name(what: str, asked: Sequence[str], existing: Iterable[str]) -> tuple[str, ...]:
    """Returns the requested names without repetition, or all names if none is requested. Raises UsageError for a name
    that does not exist, with the most similar name and all names in its hint."""
    names = tuple(existing)
    for name in asked:
        if name not in names:
            inside = [each for each in names if name and name.casefold() in each.casefold()]
            close = inside or difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no {what} {name!r}", hint=f"{meant}known: {', '.join(names) or 'none'}")
    return tuple(dict.fromkeys(asked)) or names
