"""Help fits a terminal of 80 columns, run's options stand in sections."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mixmark.harness.cli.commands import main
from mixmark.harness.cli.run import SECTIONS
from tests.docs.cli_page import commands


@pytest.mark.parametrize("words", ["", *(name for name, _ in commands(main))])
def test_help_fits_a_terminal_of_80_columns_and_cuts_nothing(words: str) -> None:
    shown = CliRunner().invoke(main, [*words.split(), "--help"], terminal_width=80).stdout
    lines = shown.split("\n\n", 1)[1].splitlines()  # behind the usage, which has its own dots
    assert not [line for line in lines if len(line) > 80 or line.endswith("...")]
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    ways = [name.rpartition(" ") for name, command in commands(main) if not command.hidden]
    assert listed >= {name for group, _, name in ways if group == words}


def test_every_command_has_one_section() -> None:
    placed = [command.name or "" for placed in main.sections.values() for command in placed]
    assert sorted(placed) == sorted(name for name, command in main.commands.items() if not command.hidden)
    titles = [line for line in CliRunner().invoke(main, ["--help"]).stdout.splitlines() if line.endswith(":")]
    assert [title for title in titles if title[0] != " "] == ["Options:", *(f"{title}:" for title in main.sections)]


def test_the_options_of_run_stand_in_sections() -> None:
    shown = CliRunner().invoke(main, ["run", "--help"]).stdout
    parts = [shown.index(f"\n{title}:\n") for title in SECTIONS]
    assert parts == sorted(parts) and len(parts) == len(SECTIONS)
    firsts = [f"  {names.split()[0]} " for names in SECTIONS.values()]
    assert all(part < shown.index(first) for part, first in zip(parts, firsts, strict=True))
    assert len(SECTIONS["Options"].split()) == 10 + len(["--help"])
