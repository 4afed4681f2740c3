"""The record of a share while its phase is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict

from mixmark.harness.contracts.schema import Phase, Record, Share
from mixmark.harness.worker import messages


class RecordDraft(Record):
    """A record to which facts are added as they become known. Only the record that `record` returns is checked."""

    model_config = ConfigDict(frozen=False)

    @classmethod
    def of(cls, share: Share, phase: Phase, unit: str) -> RecordDraft:
        return cls.model_construct(
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
        """The record. facts_of_phase: further fields by their names."""
        return Record.model_validate({**dict(self), **facts_of_phase})
