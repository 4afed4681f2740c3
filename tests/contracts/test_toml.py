"""The one reader of a user's TOML files: encodings, and numbers that nothing can be reckoned with."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.toml import read_toml

TEXT = '[meter.external]\nname = "Zähler"\nwatts = 1.5\n'


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_utf_8_is_read_with_a_byte_order_mark_and_without(tmp_path: Path, mark: bytes, ends: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(mark + TEXT.replace("\n", ends).encode())
    assert read_toml(path, "the file") == {"meter": {"external": {"name": "Zähler", "watts": 1.5}}}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TEXT.encode("utf-16"), "'utf-8' codec can't decode"),
        (b"a = " + b"[" * 100_000, "recursion"),
        (b"a = " + b"9" * 5000, "digits"),
        (b"a = ", "Invalid value"),
    ],
)
def test_a_file_that_is_no_toml_is_named_with_the_cause(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"cannot read the file .*a.toml: .*{said}"):
        read_toml(path, "the file")
    with pytest.raises(UsageError, match=r"cannot read the file .*none.toml: No such file") as refused:
        read_toml(tmp_path / "none.toml", "the file", "see a page")
    assert refused.value.hint == "check that the path exists; see a page"


@pytest.mark.parametrize("number", ["0", "-0.0", "1e15", "-1e15", "1e-15", "1_000", "true"])
def test_a_number_that_can_be_reckoned_with_is_read(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.toml").write_text(f"a = {{b = [1, {number}]}}")
    assert read_toml(tmp_path / "a.toml", "the file")


@pytest.mark.parametrize("number", ["1e308", "1.1e15", "-1e16", "inf", "-inf", "nan", "1e-320", "9" * 400])
def test_a_number_that_overflows_is_named_with_its_keys(tmp_path: Path, number: str) -> None:
    for text, keys in ((f"a = {{b = [1, {number}]}}", "a.b"), (f"[[c]]\nd = {number}", "c.d")):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(UsageError, match=rf"a.toml: {keys} = \S+ is too large, too small or no number"):
            read_toml(tmp_path / "a.toml", "the file")
