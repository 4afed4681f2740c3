from __future__ import annotations

import os
from pathlib import Path

import pytest

from mixmark.harness.resources import files


def test_what_is_no_readable_file_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for a writer
    for name in ("absent", "nul\x00", ".", "pipe"):
        assert files.text(tmp_path / name) == ""
        assert files.line(tmp_path / name) is None
        assert files.integer(tmp_path / name) is None


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * 100_000)
    assert len(files.text(tmp_path / "long", 70_000)) == 70_000
    assert len(files.text(tmp_path / "long")) == 100_000
    assert len(files.line(tmp_path / "long") or "") == files.MAX_TEXT


@pytest.mark.parametrize(
    ("text", "number"), [("7\n", 7), ("-273", -273), ("", None), ("max", None), ("²", None), ("1" * 21, None)]
)
def test_a_number_is_decimal_or_unknown(tmp_path: Path, text: str, number: int | None) -> None:
    (tmp_path / "n").write_text(text)
    assert files.integer(tmp_path / "n") == number


def test_a_table_has_names_and_values(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('A: 1 kB\nB:\x1b[31m2\nNAME="x:y"\n')
    assert files.table(tmp_path / "t") == {"A": "1 kB", "B": "2", 'NAME="x': 'y"'}
