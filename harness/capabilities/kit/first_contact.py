"""What new silicon showed at its first contact with Mixmark, in one file: for those who have none of it.

The file holds the conformance report, and the facts behind it: what discovery and the driver told, each claimed route
with its facts, timestamps, audit and the state of the machine. The tests of Mixmark replay such files: each check must
come to the same result on the recorded facts.
"""

from __future__ import annotations

from typing import Any, Literal

from mixmark.harness.capabilities.kit.report import Report
from mixmark.harness.contracts.schema import Fact, Result


class FirstContact(Fact):
    """A recording of an adapter on a machine."""

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
