"""A first contact that was recorded elsewhere, as the checks of the kit look at it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np

from mixmark.harness.capabilities.kit import adapter
from mixmark.harness.capabilities.kit.adapter_trials import AdapterTrials
from mixmark.harness.capabilities.kit.report import CheckResult, FirstContact, apply
from mixmark.harness.contracts.schema import Completions, Device, Result

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
        result = measured(contact)
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


def measured(contact: FirstContact) -> Result:
    """The result with its timestamps. Raises ValueError if they do not fit, TypeError if one lacks."""
    assert contact.result is not None
    records = [dict(record) for record in contact.result["records"]]
    for record in records:
        if columns := contact.completions.get(record["key"]):
            record["completions"] = Completions(
                **{name: np.array(column, np.int64) for name, column in columns.items()}
            )
    return Result.model_validate({**contact.result, "records": records})


Found = tuple[str, list[str]]
"""The state of a check and the figures in its message, whose words may change."""


def replayed(contact: FirstContact) -> dict[str, Found]:
    """The result of each check that can be replayed."""
    trials = Replay(contact)
    return {each.__name__: of(apply(each, trials)) for each in REPLAYED}


def recorded(contact: FirstContact) -> dict[str, Found]:
    """What these checks said on the machine of the recording."""
    names = {each.__name__ for each in REPLAYED}
    return {each.check: of(each) for each in contact.report.verdicts if each.check in names}


def of(result: CheckResult) -> Found:
    return result.state, re.findall(r"\d[\d.]*", result.message)
