from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.contracts.text import plain


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\x1b]0;title\x07b\x1b[2Jc\r\nd\u202ee\x9b1m", "abc d e 1m"),
        ("a\x1bPq#0;2;0\x1b\\b\x1b_Gf=100;AAAA\x1b\\c", "abc"),
        ("never closed \x1b]8;;http://x", "never closed"),
        ("half \ud800 a pair", "half a pair"),
        ("zero\u200bwidth, \ufeff, no\u00a0break", "zero width, , no break"),
        ("Größe 4 µs ×2 日本", "Größe 4 µs ×2 日本"),
    ],
)
def test_what_a_terminal_would_obey_is_gone_and_the_words_stay(hostile: str, shown: str) -> None:
    assert plain(hostile) == shown


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_it_was_it_is_one_line_that_any_file_takes(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable() and shown == shown.strip()
    assert plain(shown) == shown
    shown.encode()


def test_marks_are_not_piled_up_and_no_letter_is_blank() -> None:
    assert plain("Cafe\u0301") == "Café" and plain("กำลัง Việt हिन्दी") == "กำลัง Việt हिन्दी"
    assert plain("a" + "\u0301" * 180 + "b") == "á\u0301\u0301\u0301b"
    assert plain("a\u3164\u2800\u115fb") == "a b" and not plain("\u3164")
