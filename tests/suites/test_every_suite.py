"""What every suite keeps to, whatever it computes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import pytest

from mixmark.harness.contracts.errors import Unsupported
from mixmark.harness.contracts.schema import Tier
from mixmark.harness.plugins import registry

SUITES = registry.BUILT_IN["suites"]


def made(name: str, tier: str, **options: str) -> Any:
    return registry.find("suites")[name].load()(tier, options)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_has_three_tiers_and_refuses_another(name: str) -> None:
    assert all(made(name, tier).costs("bf16", 1) for tier in get_args(Tier))
    with pytest.raises(Unsupported, match="no tier 'huge'"):
        made(name, "huge")


def test_no_suite_needs_torch_to_compute_its_costs() -> None:
    code = f"""
import sys
from mixmark.harness.plugins import registry
for name in {[*SUITES]}:
    registry.find("suites")[name].load()("edge", {{}}).costs("bf16", 1)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted({*SUITES} - {"probe"}))  # the probe takes no checkpoint
def test_a_checkpoint_has_a_wider_gate(name: str) -> None:
    gates = [made(name, "edge", **options).gate("bf16").at_most for options in ({}, {"weights": "somewhere"})]
    assert gates[0] < gates[1]
