"""What is put together before a run."""

from __future__ import annotations

import sys

import pytest

from mixmark.harness.discover import setup


def test_what_a_result_tells_of_the_command_line_holds_no_path_and_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "run --launcher ray --address 10.0.0.1:6379 --out /home/me/x --suite llm --address=head:1 --out=/home/me/y"
    monkeypatch.setattr(sys, "argv", ["mixmark", *typed.split(), "--weights", "llm=/home/me/z", "--seed=7", "a=b"])
    shown = "run --launcher ray --address <address> --out <path> --suite llm --address=<address> --out=<path>"
    assert setup.command_line() == (*shown.split(), "--weights", "<path>", "--seed=7", "a=b")
