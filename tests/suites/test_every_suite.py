"""What every suite keeps to, whatever it computes."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pytest

from mixmark.harness.contracts.errors import Unsupported, WrongOutput
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


@pytest.mark.parametrize("name", SUITES)
def test_a_seed_repeats_its_feeds_of_which_no_two_samples_are_alike(name: str) -> None:
    suite = made(name, "smoke")
    samples = 7 if "offline" in suite.scenarios else 1
    varying = 0
    for input, array in suite.feeds(samples, 1)(0).items():
        axis = array.shape.index(samples) if samples > 1 else 0
        first, again, other = (
            [part.tobytes() for nonce in range(9) for part in np.split(feeds(nonce)[input], samples, axis)]
            for feeds in (suite.feeds(samples, seed) for seed in (1, 1, 2))
        )
        assert first == again, input
        assert len({*first, *other}) in (1, 2 * 9 * samples), f"{input} is the same in all samples, or in none"
        varying += first[0] != first[-1]
    assert varying


SHAPES = {
    "llm": ((128, 257), (128, 256 + 4096)),
    "diffusion": ((2, 3, 64, 64), (2, 3, 64, 64)),
    "dlrm": ((4,), (5,)),
    "resnet50": ((8, 1000), (9, 1000)),
    "probe": ((3,), (3,)),
}
"""The shapes of an output and of the reference for it."""


@pytest.mark.parametrize("name", SHAPES)
def test_no_honest_run_has_an_output_of_another_kind(name: str) -> None:
    suite, (shape, of_reference) = made(name, "smoke"), SHAPES[name]
    reference = np.abs(np.random.default_rng(1).standard_normal(of_reference, np.float32))
    right = np.ones(shape, np.float32)
    assert np.isfinite(suite.quality(right, reference))
    for wrong in (right[:-1], right[..., None], right.astype(np.float64), right.astype(np.int32)):
        with pytest.raises(WrongOutput, match=re.escape(f"{wrong.dtype} {wrong.shape}")):
            suite.quality(wrong, reference)
    right.flat[:2] = np.nan, np.inf
    with pytest.raises(WrongOutput, match="2 values that are not finite"):
        suite.quality(right, reference)


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
    exact = [made(name, "edge", **options).gate("fp32").at_most for options in ({}, {"weights": "somewhere"})]
    assert exact[0] == exact[1]  # a checkpoint's values are in fp32
