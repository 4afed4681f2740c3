"""The options that several commands share, and help in sections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mixmark.harness.contracts.toml import LARGEST, is_reckonable

COLUMN = 30  # characters of the first column of a help; a longer name has a line of its own
CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file.  [default: mixmark.toml, if it exists]"
)
ADAPTER = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME|FILE:CLASS",
    help="Use only this adapter; ./acme.py:Acme loads one from a file. Repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


class Number(click.FloatRange):
    """A number that can be reckoned with; see `contracts.toml`."""

    name, most = "number", LARGEST

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        number = float(super().convert(value, param, context))
        if not is_reckonable(number) or number > self.most:
            between = f"between 1e-15 and {self.most:g}"
            self.fail(f"{value!r} is too large, too small or no number: give one {between}.", param, context)
        return number


class Seconds(Number):
    """A time in seconds."""

    name, most = "seconds", 1e8  # three years: more overflows the timeouts of the system


WAIT_IDLE = click.option(
    "--wait-idle",
    "wait_idle_s",
    type=Seconds(min=0),
    metavar="SECONDS",
    help="Wait up to this long until no other run and no other program uses the machine. Without it, a second run is "
    "refused, and a busy machine is only reported.",
)
TIER = click.option(
    "--tier",
    type=click.Choice(["smoke", "edge", "server"]),
    default="edge",
    show_default=True,
    help="Size of the networks and of their inputs.",
)


def timeout(default_s: int, help: str) -> Callable[[Any], Any]:
    """The option --timeout."""
    seconds = Seconds(min=1)
    return click.option(
        "--timeout", "timeout_s", type=seconds, default=default_s, show_default=True, metavar="SECONDS", help=help
    )


def arrival_rate(context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    """Parses feeds per second, above 0. `max`, the highest rate that keeps the limits, becomes infinity."""
    if given is None or given == "max":
        return math.inf if given else None
    try:
        rate_per_s = float(given)
    except ValueError:
        rate_per_s = math.nan
    if not (rate_per_s > 0 and is_reckonable(rate_per_s)):
        raise click.BadParameter(f"{given!r} is not an arrival rate: give feeds per second, above 0, or max.")
    return rate_per_s


def fractions(given: str) -> tuple[float, ...]:
    """Percentages as fractions, the largest first. Empty if it is no list of numbers."""
    try:
        return tuple(sorted({float(word) / 100 for word in given.split(",")}, reverse=True))
    except ValueError:
        return ()


class Placed(click.Command):
    """A command of a capability. section: where the help of `mixmark` lists it. publishes: whether it is what a
    reader does next with the result in a folder, which has a rank."""

    def __init__(self, *args: Any, section: str, publishes: Callable[[Path], bool] | None = None, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.section, self.publishes = section, publishes


class Check(click.Command):
    """A command below `mixmark check`. recognises: whether a word names a thing that it checks."""

    def __init__(self, *args: Any, recognises: Callable[[str], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recognises = recognises


class AgainOption(click.Option):
    """An option that a resumed run needs again."""


class SectionedGroup(click.Group):
    """Lists its commands with their whole first sentence, in sections where `place` was called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: dict[str, list[click.Command]] = {}

    def place(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Adds the commands of each section, by its title."""
        self.sections = {title: list(commands) for title, commands in sections.items()}
        for command in (each for commands in sections.values() for each in commands):
            self.add_command(command)

    def hang(self, path: Sequence[str], command: click.Command) -> None:
        """Adds the command of a capability. path: the names of its groups, and its own. It is in the help's section
        that it names; a command that names none is in a group, or hidden."""
        *groups, name = path
        parent: click.Group = self
        for each in groups:
            group = parent.commands[each]
            assert isinstance(group, click.Group)
            parent = group
        command.name = name
        parent.add_command(command)
        if isinstance(command, Placed):
            self.sections.setdefault(command.section, []).append(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections = self.sections or {"Commands": [*self.commands.values()]}
        _write(
            formatter,
            {
                title: [(each.name or "", each.get_short_help_str(limit=1000)) for each in commands]
                for title, commands in sections.items()
            },
        )


class Checks(SectionedGroup):
    """Chooses the command by the thing that is to be checked. A thing of no kind, or of several, needs the command's
    name."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.commands:
            return super().resolve_command(context, args)
        checks = {name: each for name, each in self.commands.items() if isinstance(each, Check)}
        fit = [name for name, each in checks.items() if each.recognises(args[0])]
        if len(fit) != 1:
            kinds = " or ".join(fit or checks)
            raise click.UsageError(f"what is {args[0]!r}? Say {kinds}: {context.command_path} KIND {args[0]}")
        return fit[0], checks[fit[0]], args


class SectionedCommand(click.Command):
    """Lists its options in sections. sections: the options of each section, separated by spaces, by its title. Options
    that it does not name are those of experiments, and are listed last."""

    def __init__(self, *args: Any, sections: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {option.opts[-1]: option.get_help_record(context) for option in self.get_params(context)}
        named = {title: [records.pop(each) for each in names.split()] for title, names in self.sections.items()}
        named["Experiments, which are in no score"] = list(records.values())
        _write(formatter, {title: [each for each in rows if each] for title, rows in named.items()})


def _write(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Writes each section under its title, all with the same columns."""
    width = min(COLUMN, max((len(name) for rows in sections.values() for name, _ in rows), default=0))
    for title, rows in sections.items():
        if not rows:  # a group whose commands are all of deleted capabilities
            continue
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=COLUMN)
