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
import errno
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager


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
    """A result folder cannot be written, read or completed."""


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


def choose_by_name(what: str, asked: Sequence[str], existing: Iterable[str], hint: str = "") -> tuple[str, ...]:
    """Returns the requested names without repetition, or all names if none is requested. Raises UsageError for a name
    that does not exist. Its hint is the most similar name, all names, and `hint`."""
    names = tuple(existing)
    for name in asked:
        if name not in names:
            meant = f"did you mean {close}? " if (close := _similar(name, names)) else ""
            known = f"known: {', '.join(names) or 'none'}"
            raise UsageError(f"there is no {what} {name!r}", "; ".join(filter(None, (f"{meant}{known}", hint))))
    return tuple(dict.fromkeys(asked)) or names


def _similar(name: str, names: Sequence[str]) -> str | None:
    """The name that differs in few letters, or else the shortest with a word that begins with the text. gpu:0 and cpu:0
    are not similar: what stands before a colon is a kind."""
    kind, colon, _ = name.casefold().rpartition(":")
    folded = {each.casefold(): each for each in names if not colon or each.casefold().startswith(f"{kind}:")}
    close = difflib.get_close_matches(name.casefold(), folded, n=1)
    close += sorted((each for each in folded if f" {name.casefold()}" in f" {each}"), key=len)
    return folded[close[0]] if close else None


@contextmanager
def explained(what: str, otherwise: str = "", raised: type[MixmarkError] = UsageError) -> Iterator[None]:
    """Turns an OSError into an error that names the thing, the cause and the next step.

    what: what fails, with the path. otherwise: what to do if the cause cannot be removed, such as another --out.
    """
    try:
        yield
    except OSError as error:
        hint = "; ".join(filter(None, (REMEDIES.get(error.errno), otherwise)))
        raise raised(f"{what}: {error.strerror or error}", hint) from error


REMEDIES: Mapping[int | None, str] = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "check that the path exists"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "fix the permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, None), "free disk space"),  # numpy's error for a short write has none
    errno.EISDIR: "give a file in place of the folder",
}
"""What removes the cause of an OSError, by its number."""
