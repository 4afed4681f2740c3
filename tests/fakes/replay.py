"""A first contact that was recorded elsewhere, as the checks of the kit look at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mixmark.harness.contracts.schema import Device
from mixmark.harness.measure.conformance import adapter
from mixmark.harness.measure.conformance.adapter_trials import AdapterTrials
from mixmark.harness.measure.conformance.first_contact import FirstContact
from mixmark.harness.measure.conformance.report import apply

REPLAYED = (
    adapter.devices_are_told_apart,
    adapter.claims_run,
    adapter.yields_fit_the_table,
    adapter.outputs_pass_their_gates,
    adapter.placement_is_truthful,
    adapter.concurrency_is_honoured,
)
"""The checks that look at recorded facts only."""


class Replay(AdapterTrials):
    """The trials of a recording."""

    def __init__(self, contact: FirstContact) -> None:
        result = contact.replayed()
        assert result is not None
        known: dict[str, Any] = {
            "adapter": SimpleNamespace(name=contact.report.name),
            "_header": result,
            "_phases": list(result.phases),
            "audited": result.records,
            "claims": {each.key: None for each in result.records if not each.key.startswith("concurrent.")},
        }
        self.__dict__.update(known)
        self.__dict__["claimed"] = tuple(each for each in result.records if each.key in self.claims)

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(self._header.devices)


def replayed(contact: FirstContact) -> dict[str, tuple[str, str]]:
    """(state, message) of each check that can be replayed."""
    trials = Replay(contact)
    return {each.__name__: (done.state, done.message) for each in REPLAYED for done in (apply(each, trials),)}


def recorded(contact: FirstContact) -> dict[str, tuple[str, str]]:
    """What these checks said on the machine of the recording."""
    names = {each.__name__ for each in REPLAYED}
    return {each.check: (each.state, each.message) for each in contact.report.verdicts if each.check in names}
