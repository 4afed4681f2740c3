"""The report of a conformance kit on one plugin: the result of each check, with a link to the docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

from mixmark.harness import VERSION
from mixmark.harness.contracts.errors import MixmarkError, choose_by_name
from mixmark.harness.contracts.schema import Device, Fact, Result
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.calls import error_text, error_with_line
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.failures import WorkerFailed

SCHEMA: Literal[1] = 1
PAGE = "docs/capabilities/kit/conformance.md"
MAX_MESSAGE = 600  # characters of a check's result

State = Literal["passed", "failed", "not checked"]
Trials = TypeVar("Trials")
Made = TypeVar("Made")
Check = Callable[[Trials], str]
"""A check looks at the trials of a kit and returns its evidence. It raises CheckFailed or NotChecked."""


class CheckFailed(Exception):
    """The plugin breaks its contract. The message says how."""


class NotChecked(Exception):
    """The check cannot tell. The message says why."""


class trial(cached_property[Made]):
    """A property that is computed when a check first needs it, and kept. An error is kept too, and raised again."""

    def __get__(self, trials: Any, owner: Any = None) -> Made:  # type: ignore[override]  # not for the class itself
        raised = vars(trials).setdefault("raised", {})
        if self.attrname in raised:
            raise raised[self.attrname]
        try:
            made: Made = super().__get__(trials, owner)
            return made
        except Exception as error:
            raised[self.attrname] = error
            raise


def fail_if(broken: object, message: str) -> None:
    """Raises CheckFailed if `broken` is true."""
    if broken:
        raise CheckFailed(message)


def fail_for(broken: Sequence[str]) -> None:
    """Raises CheckFailed if there is any message."""
    fail_if(broken, "; ".join(broken))


class CheckResult(Fact):
    """The outcome of one check."""

    check: str
    state: State
    message: str
    """The evidence; what is broken; or why it was not checked."""
    docs: str
    """The section of the docs about the check."""


class Report(Fact):
    """The results of a kit on one plugin."""

    schema_version: Literal[1] = SCHEMA
    kind: Literal["adapter", "meter", "suite"]
    name: str
    origin: str
    """`built in`, the distribution and version that the plugin comes from, or `command line`."""
    source: str
    """The file or package that holds its code."""
    sha256: str
    """The SHA-256 of the source; empty where it was not found."""
    mixmark: str
    created_utc: str
    devices: tuple[Device, ...]
    """The devices that an adapter reached, or a meter was asked for; none for a suite."""
    verdicts: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed, and something was checked."""
        states = {result.state for result in self.verdicts}
        return "failed" not in states and "passed" in states

    @property
    def headline(self) -> str:
        """The number of checks by their state."""
        states = [result.state for result in self.verdicts]
        counts = ", ".join(f"{states.count(state)} {state}" for state in get_args(State))
        return f"{self.kind} {self.name}: {counts}"

    def __str__(self) -> str:
        """The checks that did not pass, for the message of a failed test."""
        broken = [result for result in self.verdicts if result.state != "passed"]
        lines = [f"{result.state}: {result.check}: {result.message} ({result.docs})" for result in broken]
        return "\n".join((self.headline, *lines))


class FirstContact(Fact):
    """What new silicon showed at its first contact with Mixmark, in one file: for those who have none of it.

    The file holds the conformance report, and the facts behind it: what discovery and the driver told, each claimed
    route with its facts, timestamps, audit and the state of the machine. The tests of Mixmark replay such files: each
    check must come to the same result on the recorded facts.
    """

    schema_version: Literal[1] = 1
    report: Report
    result: dict[str, Any] | None
    """The `Result` of the claimed routes as JSON, without timestamps. None if no device was discovered."""
    completions: dict[str, dict[str, tuple[int, ...]]]
    """The columns of the timestamps of each record that has them, by its key."""


def recording(report: Report, result: Result | None) -> FirstContact:
    """The recording of a kit's report and of what the kit measured."""
    return FirstContact(
        report=report,
        result=None if result is None else result.model_dump(mode="json"),
        completions={
            each.key: {name: tuple(column.tolist()) for name, column in vars(each.completions).items()}
            for each in (result.records if result else ())
            if each.completions is not None
        },
    )


def chosen(kind: registry.Kind, asked: str) -> Plugin:
    """The plugin that is asked for by its name, or as FILE:CLASS. Raises UsageError if there is none."""
    is_spec = registry.is_spec(asked)
    found = registry.find(kind, [asked] if is_spec else [])
    names = [registry.name_of_spec(asked) if is_spec else asked]
    return found[next(iter(choose_by_name(registry.singular(kind), names, found)))]


def apply(check: Check[Trials], trials: Trials, runs_here: bool = False) -> CheckResult:
    """Applies a check. A failure of a worker and a MixmarkError of the plugin are failures. Any other error is the
    kit's own and says nothing about the plugin, unless the plugin's code runs in this process (`runs_here`)."""
    state: State = "failed"
    try:
        state, message = "passed", check(trials)
    except CheckFailed as error:
        message = str(error)
    except WorkerFailed as error:
        reported = vars(trials).setdefault("reported", [])
        state = "not checked" if error in reported else "failed"  # a trial keeps its error for every check
        reported.append(error)
        message = f"{error.failure.kind}: {error.failure.message}"
    except MixmarkError as error:
        message = error_text(error)
    except NotChecked as error:
        state, message = "not checked", str(error)
    except Exception as error:
        state = "failed" if runs_here else "not checked"
        message = f"it raised {error_with_line(error)}" if runs_here else f"the kit broke: {error_text(error)}"
    name = check.__name__
    return CheckResult(check=name, state=state, message=plain(message, MAX_MESSAGE), docs=f"{PAGE}#{name}")


def checked(
    plugin: Plugin,
    python: str,
    devices: Sequence[Device],
    checks: Iterable[Check[Trials]],
    trials: Trials,
    on_check: Callable[[str], None],
    runs_here: bool = False,
) -> Report:
    """Applies checks one after the other. python: the interpreter of the plugin. on_check: gets the name of each check
    before it begins. runs_here: see `apply`."""
    verdicts = []
    for check in checks:
        on_check(check.__name__)
        verdicts.append(apply(check, trials, runs_here))
    identity = registry.identity(plugin, python)
    return Report.model_validate(
        {
            "kind": registry.singular(plugin.kind),
            "name": plugin.name,
            "origin": identity.origin,
            "source": identity.source,
            "sha256": identity.sha256,
            "mixmark": VERSION,
            "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "devices": tuple(devices),
            "verdicts": tuple(verdicts),
        }
    )
