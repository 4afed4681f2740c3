"""The rules about paths between memories."""

from __future__ import annotations

from collections.abc import Iterator

from mixmark.harness.capabilities.paths.facts import measured
from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge.evidence import Evidence
from mixmark.harness.judge.findings import found, note, warning
from mixmark.harness.judge.rules.registered import Room

room = Room(450)  # before the other notes on records


@room.rule(
    corrupted=warning("a copy of {size_bytes:,} bytes was wrong from byte {first_byte:,} on"),
    late=warning("a copy of {size_bytes:,} bytes was acknowledged before byte {first_byte:,} had arrived"),
    noticed=warning("a path between memories does not copy what it is given"),
)
def path_verified(evidence: Evidence) -> Iterator[Finding]:
    """Each copy on a path left the bytes of its source in its destination when it was acknowledged."""
    for record in measured(evidence.result):
        if fault := record.fault:
            code = f"path_verified.{fault.kind}"
            yield found(code, record.path.id, size_bytes=fault.size_bytes, first_byte=fault.first_byte)


@room.rule(note("{kind} at copies of more than {size_bytes:,} bytes: {message}{hint:hint}"))
def path_measured(evidence: Evidence) -> Iterator[Finding]:
    """A path that fails at a size is measured up to the size before."""
    for record in measured(evidence.result):
        if failure := record.failure:
            largest = max((sample.size_bytes for sample in record.samples), default=0)
            values = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
            yield found("path_measured", record.path.id, size_bytes=largest, **values)
