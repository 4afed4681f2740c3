"""The page's table of tiers is that of the suite."""

from __future__ import annotations

from mixmark.harness.capabilities import ssm
from tests.docs.test_docs import check_tiers


def test_tiers() -> None:
    fields = "layers width heads groups state vocabulary tied tokens_in tokens_out"
    check_tiers("ssm", ssm.Ssm, ssm.SHAPES, fields, not_shipped="server")
