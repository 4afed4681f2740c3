"""docs/cli.md and the man page docs/man/mixmark.1 from the commands' own help.

python -m tests.docs.cli_page    rewrites both; read the diff before you commit it
"""

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


FILES_AND_CODES = """\
.SH FILES
.TP
.I mixmark.toml
The configuration: sections [adapter.NAME], [suite.NAME] and [meter.NAME] with their options.
.TP
.I results/
The result folders, one for each run.
.TP
.I ~/.cache/mixmark
Models that adapters converted for their engines.
.TP
.I ~/.local/share/mixmark/noise-floor.json
The noise floors of this machine, by mixmark selftest.
.TP
.I /tmp/mixmark.lock
Held by the run that uses the machine.
.TP
.I share/doc/mixmark
In the environment of an installed Mixmark: the pages that messages name docs/...
.SH ENVIRONMENT
.TP
.B MIXMARK_LOCK
The file of the lock; containers of one machine share it.
.TP
.B MIXMARK_CACHE, MIXMARK_CACHE_GB
The folder of converted models, and the most gigabytes that they may take: 20 by default.
.TP
.B XDG_DATA_HOME
The folder that holds mixmark/noise\\-floor.json.
.TP
.B NO_COLOR
Text without colours.
.SH EXIT STATUS
.TP
.B 0
There is no invalid finding; there may be notes and warnings.
.TP
.B 1
A finding is invalid, nothing was measured, or \\-\\-gate found a regression.
.TP
.B 2
The command line or the configuration asks for something that does not exist or is impossible, or another run uses the
machine.
.TP
.B 130
The run was interrupted; finished cells are kept.
"""


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
    return "\n".join(lines) + "\n" + FILES_AND_CODES


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


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    MANUAL.parent.mkdir(exist_ok=True)
    MANUAL.write_text(manual(), encoding="utf-8")
