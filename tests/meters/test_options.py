"""Meters that find their sources themselves refuse a section with options."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.meters.nvml import Nvml
from mixmark.harness.meters.rapl import Rapl


@pytest.mark.parametrize("meter", [Nvml, Rapl])
def test_it_takes_no_options(meter: Callable[[dict[str, str]], object]) -> None:
    with pytest.raises(UsageError, match="index"):
        meter({"index": "0"})
