"""The page's numbers are those of the suite."""

from __future__ import annotations

from mixmark.harness.capabilities import speech
from tests.docs.test_docs import check_tiers, of


def test_tiers() -> None:
    fields = "layers width heads mel positions vocabulary"
    check_tiers("speech", speech.Speech, speech.SHAPES, fields, not_shipped="server")
    assert f"A feed is {speech.SECONDS} s of audio, with {speech.TOKENS} tokens a second." in of("speech:")
