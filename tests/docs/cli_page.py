"""docs/cli.md and the man page docs/man/mixmark.1 from the commands' own help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from mixmark.harness import VERSION
from mixmark.harness.cli.commands import main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "cli.md"
MANUAL = DOCS / "man" / "mixmark.1"
KEPT_OF_MANUAL = ".SH FILES\n"
"""Begins the part of the man page that is written by hand."""
KEPT = "\b\n"
"""Begins a paragraph of help whose lines are kept."""
HEAD = """\
# The command line

`mixmark COMMAND --help` and `man mixmark` have the options of every command.
[rules.md](rules.md#exit-codes) has the exit codes.
"""


def page() -> str:
    lines = [HEAD]
    for name, _, command, _ in entries():
        first, *others = inspect.cleandoc(command.help or "").split("\n\n")
        paragraphs = (first, *(each for each in others if each.startswith(KEPT)))
        lines += [f"## {name}\n", *map(_paragraph, paragraphs)]
    return "\n".join(lines)


def entries() -> Iterator[tuple[str, str, click.Command, list[tuple[str, str]]]]:
    """(name, usage, command, options with their help) of the command and of each of its subcommands."""
    root = main.make_context("mixmark", [], resilient_parsing=True)
    for name, command in (("", main), *commands(main)):
        context = click.Context(command, parent=root, info_name=name) if name else root
        title = f"mixmark {name}".rstrip()
        records = (parameter.get_help_record(context) for parameter in command.get_params(context))
        options = [record for record in records if record and record[1]]  # the usage names the arguments
        yield title, " ".join((title, *command.collect_usage_pieces(context))), command, options


def _paragraph(text: str) -> str:
    return f"```text\n{text.removeprefix(KEPT)}\n```\n" if text.startswith(KEPT) else text.replace("<", "\\<") + "\n"


def commands(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    """Every command by its words, such as `check adapter`, each behind the one that it belongs to."""
    for name, command in group.commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in commands(command))


def manual() -> str:
    """The man page, in the macros of man(7)."""
    lines = [
        f'.TH MIXMARK 1 "" "Mixmark {VERSION}" "User Commands"',
        *(".SH NAME", "mixmark \\- measure how much useful AI work a whole machine gets done"),
        *(".SH SYNOPSIS", ".B mixmark", "COMMAND [OPTIONS] [ARGS]..."),
        *(".SH DESCRIPTION", *_described(main), ".SH COMMANDS"),
    ]
    for _, usage, command, options in list(entries())[1:]:
        lines += [f'.SS "{_roff(usage.removeprefix("mixmark "))}"', *_described(command)]
        lines += [line for option in options for line in (".TP", f".B {_roff(option[0])}", _roff(option[1]))]
    return "\n".join(lines) + "\n" + "".join(MANUAL.read_text("utf-8").partition(KEPT_OF_MANUAL)[1:])


def _described(command: click.Command) -> Iterator[str]:
    """The help's paragraphs. Behind the mark \\b, or where it is an example, a paragraph keeps its lines."""
    for number, paragraph in enumerate(inspect.cleandoc(command.help or "").split("\n\n")):
        kept = paragraph.startswith(KEPT)
        yield from (".PP",) if number else ()
        yield from (".nf",) if kept else ()
        yield from map(_roff, paragraph.removeprefix(KEPT).splitlines())
        yield from (".fi",) if kept else ()


def _roff(text: str) -> str:
    """A line of text as roff takes it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def pages() -> dict[Path, str]:
    return {PAGE: page(), MANUAL: manual()}
