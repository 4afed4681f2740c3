"""Machines in place of this one: what cannot be measured there."""

from __future__ import annotations

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure.request import OTHER_MACHINES, RunRequest, prepare
from mixmark.harness.plugins import experiments
from mixmark.harness.plugins.executors import Machines

SERVE_THE_MIX = [name for name, each in experiments.installed().items() if each.needs_mix]


@pytest.mark.parametrize("name", SERVE_THE_MIX)
def test_an_experiment_that_serves_the_mix_is_refused_on_other_machines(name: str) -> None:
    request = RunRequest(tier="smoke", experiments={name: {}}, machines=Machines({}))
    with pytest.raises(UsageError, match="runs or serves a mix on this machine") as raised:
        prepare(request)
    assert raised.value.hint == OTHER_MACHINES
