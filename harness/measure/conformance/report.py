"""The report of a conformance kit on one plugin: a verdict for each check, with a link to the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar, get_args

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Device, Fact
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins.calls import error_text
from mixmark.harness.worker.failures import WorkerFailed

SCHEMA: Literal[1] = 1
PAGE = "docs/vendors/conformance.md"
MAX_MESSAGE = 600  # characters of a verdict

State = Literal["passed", "failed", "not checked"]
Tried = TypeVar("Tried")
Made = TypeVar("Made")
Check = Callable[[Tried], str]
"""A check looks at the trials of a kit and returns its evidence. It raises Failed or NotChecked."""


class Failed(Exception):
    """The plugin breaks its contract. The message says how."""


class NotChecked(Exception):
    """The check cannot tell. The message says why."""


class trial(Generic[Made]):
    """A property that is computed when a check first needs it, and kept. An error is kept too, and raised again."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tried: object, owner: type) -> Made:
        raised = tried.__dict__.setdefault("raised", {})
        if self._name in raised:
            raise raised[self._name]
        try:
            made = self._make(tried)
        except Exception as error:
            raised[self._name] = error
            raise
        tried.__dict__[self._name] = made  # found before this descriptor from now on
        return made


def fail_if(broken: object, message: str) -> None:
    """Raises Failed if `broken` is true."""
    if broken:
        raise Failed(message)


class Verdict(Fact):
    """The outcome of one check."""

    check: str
    state: State
    message: str
    """The evidence; what is broken; or why it was not checked."""
    docs: str
    """The section of the docs about the check."""


class Report(Fact):
    """The verdicts of a kit on one plugin."""

    schema_version: Literal[1] = SCHEMA
    kind: Literal["adapter", "meter"]
    name: str
    origin: str
    """`built in`, the distribution and version that the plugin comes from, or `command line`."""
    source: str
    """What its code was read from."""
    sha256: str
    """The SHA-256 of the source; empty where it was not found."""
    mixmark: str
    created_utc: str
    devices: tuple[Device, ...]
    """The devices that an adapter reached, or a meter was asked for."""
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and something was checked."""
        states = {each.state for each in self.verdicts}
        return "failed" not in states and "passed" in states

    @property
    def headline(self) -> str:
        """The number of checks by their state."""
        states = [each.state for each in self.verdicts]
        counts = ", ".join(f"{states.count(state)} {state}" for state in get_args(State))
        return f"{self.kind} {self.name}: {counts}"

    def __str__(self) -> str:
        """The checks that did not pass, for the message of a failed test."""
        told = [f"{each.state}: {each.check}: {each.message} ({each.docs})" for each in self.verdicts]
        return "\n".join((self.headline, *(each for each in told if not each.startswith("passed"))))


def verdict(check: Check[Tried], tried: Tried) -> Verdict:
    """Applies a check. A failure of a worker and a MixmarkError of the plugin are failures; any other error is
    the kit's own and says nothing about the plugin."""
    state: State = "passed"
    try:
        message = check(tried)
    except NotChecked as error:
        state, message = "not checked", str(error)
    except Failed as error:
        state, message = "failed", str(error)
    except WorkerFailed as error:
        state, message = "failed", f"{error.failure.kind}: {error.failure.message}"
    except MixmarkError as error:
        state, message = "failed", error_text(error)
    except Exception as error:
        state, message = "not checked", f"the kit broke: {error_text(error)}"
    name = check.__name__
    return Verdict(check=name, state=state, message=plain(message, MAX_MESSAGE), docs=f"{PAGE}#{name}")


def verdicts(
    checks: Iterable[Check[Tried]], tried: Tried, on_check: Callable[[str], None] = lambda name: None
) -> tuple[Verdict, ...]:
    """Applies checks one after the other. on_check: gets the name of each before it begins."""
    found = []
    for check in checks:
        on_check(check.__name__)
        found.append(verdict(check, tried))
    return tuple(found)
