"""An experiment that serves the mix needs one, on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.measure import experiments
from mixmark.harness.measure.request import OTHER_MACHINES, Machines, RunRequest
from mixmark.harness.measure.run import prepare

SERVE_THE_MIX = [name for name, each in experiments.installed().items() if each.needs_mix]


@pytest.mark.parametrize("name", SERVE_THE_MIX)
def test_an_experiment_that_serves_the_mix_is_refused_without_one_and_on_other_machines(name: str) -> None:
    request = RunRequest(tier="smoke", experiments={name: {}})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"machines": Machines({})}, OTHER_MACHINES),
        ({"mix": "none"}, "it needs a mix: leave --mix none away"),
        ({"suites": ("resnet50",)}, "it needs a mix: leave --suite away"),
    ]
    for lacking, hint in cases:
        with pytest.raises(UsageError, match="runs or serves a mix on this machine") as raised:
            prepare(replace(request, **lacking))
        assert raised.value.hint.startswith(hint)
