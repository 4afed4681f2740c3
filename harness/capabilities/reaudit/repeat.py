"""Repeats the audits of a result folder on any machine, from the seed and the audited outputs in it.

Nothing else of the folder is trusted: the feeds, the reference and the gate come from this installation's suites.
Nothing is written to the folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Gate, Record
from mixmark.harness.machine import suite_claims
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure.audit import auditor
from mixmark.harness.plugins import registry
from mixmark.harness.record import store

AGREES = 0.05  # of the gate's bound: another processor or torch may round a value differently by this much
AGREES_RELATIVE = 0.001  # … and of the value itself


@dataclass(frozen=True)
class Repeated:
    """The repeated audit of one record."""

    record: Record
    gate: Gate | None
    """The gate of this installation's suite. None if the record could not be audited."""
    values: tuple[float, ...] = ()
    """The gate's metric of each audited feed, computed here."""
    problem: str = ""
    """Why the audit failed or could not be repeated. Empty if every value passes and agrees."""

    @property
    def passed(self) -> bool:
        return not self.problem

    def as_json(self) -> dict[str, object]:
        stored = self.record.audit
        return {
            "key": self.record.key,
            "label": self.record.route.label,
            "metric": self.gate.metric if self.gate else None,
            "at_most": self.gate.at_most if self.gate else None,
            "feeds": list(stored.feeds) if stored else [],
            "stored": list(stored.values) if stored else [],
            "now": list(self.values),
            "passed": self.passed,
            "problem": self.problem,
        }


def repeat(
    folder: Path,
    checkpoints: Mapping[str, Path],
    timeout_s: float,
    on_record: Callable[[Record], None] = lambda record: None,
) -> tuple[Repeated, ...]:
    """Repeats the audit of each record that has timestamps and was to be audited.

    checkpoints: the files of the suites without synthetic weights. timeout_s: the time for each feed. Raises
    ResultError for a folder that cannot be read or contradicts itself.
    """
    result = store.open(folder)
    suite_claims.refuse_contradictions(result)
    suites = registry.find("suites")
    wanted = [
        record
        for record in result.records
        if record.completions is not None and record.exempt not in ("no gate", "not asked for")
    ]
    options = {record.route.suite: dict(record.route.suite_options) for record in wanted}
    for name, path in checkpoints.items():
        options.setdefault(name, {})["weights"] = str(path)
    equipment = Equipment(
        adapters={},
        suites=suites,
        suite_options=options,
        units={},
        devices={},
        config=Config(),
        seed=result.seed,
        timeout_s=timeout_s,
    )
    found: dict[str, Repeated] = {}
    waiting: dict[str, tuple[Record, Gate]] = {}
    for record in wanted:
        try:
            gate = _auditable(record, equipment, checkpoints)
        except MixmarkError as error:
            found[record.key] = Repeated(record, None, problem=f"{error}; {error.hint}".removesuffix("; "))
        else:
            waiting[record.key] = record, gate

    def keep(again: Record) -> None:
        found[again.key] = _compared(*waiting[again.key], again)

    base = folder.parent if folder.name == "result.json" else folder
    with tempfile.TemporaryDirectory(prefix="mixmark-") as logs:
        audits = auditor(equipment, base, result.tier, Path(logs))
        audits.run([_fresh(record) for record, _ in waiting.values()], keep, on_record)
    return tuple(found[record.key] for record in wanted)


def _auditable(record: Record, equipment: Equipment, checkpoints: Mapping[str, Path]) -> Gate:
    """The gate of a record that can be audited here. Raises MixmarkError."""
    route, audit = record.route, record.audit
    if audit is None or not audit.feeds or record.batch is None:
        why = record.exempt or record.unaudited or (audit and audit.problem) or "the run ended before"
        raise MixmarkError(f"it was not audited: {why}")
    if record.seed is None:
        raise MixmarkError("it has no seed, so its feeds cannot be made again")
    if route.weights != "synthetic" and route.suite not in checkpoints:
        raise MixmarkError(f"its weights are {route.weights}", f"give them: --weights {route.suite}=PATH")
    if route.suite not in equipment.suites:
        hint = "install its package; a model of one's own, of a file, is audited in its run alone"
        raise MixmarkError(f"the suite {route.suite} is not installed here", hint)
    suite = equipment.suite(route)
    if suite.version != route.suite_version:
        message = f"it ran version {route.suite_version} of {route.suite}, and here is {suite.version}"
        raise MixmarkError(message, "use the version of Mixmark that wrote the folder")
    gate = suite.gate(route.precision)
    if gate is None:
        raise MixmarkError(f"{route.suite} has no gate here")
    return gate


def _fresh(record: Record) -> Record:
    """The record as it was when its outputs were drawn."""
    assert record.audit is not None  # it was found auditable
    audit = record.audit.model_copy(update={"values": (), "problem": "", "disagreement": None})
    return record.model_copy(update={"audit": audit, "unaudited": ""})


def _compared(record: Record, gate: Gate, again: Record) -> Repeated:
    stored, now = record.audit, again.audit
    assert stored is not None and now is not None  # both were audited
    problem = again.unaudited or now.problem
    allowed = [AGREES * gate.at_most + AGREES_RELATIVE * abs(value) for value in stored.values]
    pairs = list(zip(now.values, stored.values, allowed, strict=False))
    if problem:
        pass
    elif stored.gate != gate:
        problem = f"its gate is {stored.gate.at_most:g}, and the suite's is {gate.at_most:g}"
    elif wrong := sum(value > gate.at_most for value in now.values):
        problem = f"wrong outputs: {wrong} of {len(now.values)}"
    elif stored.problem or len(stored.values) != len(now.values):
        problem = f"the folder says otherwise: {stored.problem or record.unaudited or 'it has other values'}"
    elif apart := sum(abs(value - before) > most for value, before, most in pairs):
        problem = f"other values than in the folder: {apart} of {len(now.values)}"
    return Repeated(record, gate, now.values, problem)
