"""The record of a share while its phase is measured: facts are added as they become known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from mixmark.harness.contracts.schema import (
    Audit,
    Completions,
    Cost,
    Exemption,
    Failure,
    LatencyLimits,
    Phase,
    RateTrial,
    Record,
    Route,
    ScenarioName,
    SearchEnd,
    Share,
    Trial,
)
from mixmark.harness.worker import messages


@dataclass
class RecordDraft:
    """Fields of a `Record`, by its names and with its defaults."""

    key: str
    phase: str
    route: Route
    scenario: ScenarioName
    run: int
    unit: str
    screening: bool
    batch: int | None
    rate_per_s: float | None
    load_ns: int | None = None
    needed_bytes: int | None = None
    concurrency: int = 1
    facts: dict[str, str] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    search_ended_by: SearchEnd | None = None
    rate_trials: tuple[RateTrial, ...] = ()
    costs: tuple[Cost, ...] = ()
    feed_units: int | None = None
    seed: int | None = None
    completions: Completions | None = None
    ended_by: Literal["precision", "cap", "time"] | None = None
    parent_window_ns: tuple[int, int] | None = None
    stamped: bool = False
    arrival_delay_ns: int | None = None
    carried_ns: int | None = None
    latency_limits: LatencyLimits | None = None
    audit: Audit | None = None
    exempt: Exemption | None = None
    unaudited: str = ""
    error: Failure | None = None
    cut_short: Failure | None = None
    close_failure: Failure | None = None
    helper_processes: tuple[str, ...] = ()

    @classmethod
    def of(cls, share: Share, phase: Phase, unit: str) -> RecordDraft:
        return cls(
            key=share.key,
            phase=phase.name,
            route=share.route,
            scenario=share.scenario,
            run=share.run,
            unit=unit,
            screening=share.limits.screening,
            batch=share.batch,
            rate_per_s=share.rate_per_s,
        )

    def add_opened(self, opened: messages.Opened) -> None:
        self.load_ns, self.needed_bytes = opened.load_ns, opened.needed_bytes
        self.concurrency, self.facts = opened.concurrency, opened.facts

    def add_prepared(self, prepared: messages.Prepared) -> None:
        self.batch, self.trials, self.search_ended_by = prepared.batch, prepared.trials, prepared.search_ended_by
        self.rate_per_s, self.rate_trials, self.facts = prepared.rate_per_s, prepared.rate_trials, prepared.facts

    @property
    def over(self) -> bool:
        """Whether a feed finished or something failed: a share of a mix that never got a turn has no record."""
        return self.completions is not None or self.error is not None

    def record(self, facts_of_phase: Mapping[str, Any]) -> Record:
        """facts_of_phase: the other fields of the record, by their names."""
        return Record(**{each.name: getattr(self, each.name) for each in fields(self)}, **facts_of_phase)
