"""What an unknown name and an error of the system are answered with."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import ResultError, UsageError, choose_by_name, explained

NAMES = ("torch", "onnxruntime", "cpu:0", "NVIDIA H100 SXM", "NVIDIA L4", "NVIDIA L40", "band:5d1c")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("touch", "torch"),
        ("TORCH", "torch"),
        ("onnx", "onnxruntime"),
        ("h100", "NVIDIA H100 SXM"),
        ("cpu:1", "cpu:0"),
        ("gpu:0", None),  # two letters from cpu:0, but another kind of device
        ("l4", "NVIDIA L4"),
        ("xyz", None),
    ],
)
def test_an_unknown_name_gets_the_similar_one_and_all(asked: str, meant: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        choose_by_name("thing", (asked,), NAMES, "look again")
    suggested, _, known = refused.value.hint.partition("known: ")
    assert suggested == (f"did you mean {meant}? " if meant else "")
    assert known == f"{', '.join(NAMES)}; look again"


def test_known_names_are_returned_once() -> None:
    assert choose_by_name("suite", (), ("llm", "dlrm")) == ("llm", "dlrm")
    assert choose_by_name("suite", ("dlrm", "dlrm"), ("llm", "dlrm")) == ("dlrm",)
    with pytest.raises(UsageError) as refused:
        choose_by_name("device", ("xyz",), ())
    assert refused.value.hint == "known: none"


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOENT, "check that the path exists; choose another --out"),
        (errno.EACCES, "fix the permissions; choose another --out"),
        (errno.ENOSPC, "free disk space; choose another --out"),
        (errno.EMFILE, "choose another --out"),
    ],
)
def test_an_error_of_the_system_is_a_thing_a_cause_and_a_next_step(number: int, hint: str) -> None:
    with pytest.raises(ResultError) as refused, explained("cannot write a", "choose another --out", ResultError):
        raise OSError(number, os.strerror(number), "a")
    assert (str(refused.value), refused.value.hint) == (f"cannot write a: {os.strerror(number)}", hint)


def test_another_error_passes(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), explained("cannot read a"):
        _ = 1 / 0
    with pytest.raises(UsageError, match="cannot read a: No such file"), explained("cannot read a"):
        (tmp_path / "none").read_bytes()
