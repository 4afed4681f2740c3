"""Help in sections: commands by what they are for, the options of a command by what they decide. Nothing is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

COLUMN = 30  # characters of the first column, of which a longer name has a line of its own


class SectionedGroup(click.Group):
    """Lists its commands with their whole first sentence, in sections where `place` was called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections: Mapping[str, Sequence[click.Command]] = {}

    def place(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Adds the commands of each section, by its title."""
        self.sections = sections
        for command in (each for commands in sections.values() for each in commands):
            self.add_command(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections = self.sections or {"Commands": [*self.commands.values()]}
        _write(
            formatter,
            {
                title: [(each.name or "", each.get_short_help_str(limit=1000)) for each in commands]
                for title, commands in sections.items()
            },
        )


class SectionedCommand(click.Command):
    """Lists its options in sections. sections: the options of each section, separated by spaces, by its title. It must
    name every option."""

    def __init__(self, *args: Any, sections: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {option.opts[-1]: option.get_help_record(context) for option in self.get_params(context)}
        named = {title: [records.pop(each) for each in names.split()] for title, names in self.sections.items()}
        assert not records, f"{', '.join(records)} has no section"
        _write(formatter, {title: [each for each in rows if each] for title, rows in named.items()})


def _write(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Writes each section under its title, all with the same columns."""
    width = min(COLUMN, max(len(name) for rows in sections.values() for name, _ in rows))
    for title, rows in sections.items():
        with formatter.section(title):
            formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=COLUMN)
