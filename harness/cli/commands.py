"""The command line: words and exit codes. A command imports what is heavy when it runs, so `mixmark --help` is quick.

Exit codes: 0 all went well (notes and warnings too), 1 an invalid finding or nothing was measured, 2 misuse,
130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from pkgutil import resolve_name
from typing import Any

import click

from mixmark.harness.cli import devices, results, run
from mixmark.harness.cli.options import Checks, SectionedGroup
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins.manifest import BUILT_IN, PACKAGE
from mixmark.harness.resources import scratch


class Commands(SectionedGroup):
    """Turns every expected failure into one message with its next step and exit code 2."""

    def invoke(self, context: click.Context) -> Any:
        _open_streams()
        try:
            with scratch.own_folder():
                return super().invoke(context)
        except MixmarkError as error:
            click.echo(f"mixmark: {plain(str(error))}", err=True)
            if error.hint:
                click.echo(f"         {plain(error.hint)}", err=True)
            context.exit(2)
        except KeyboardInterrupt:  # before or after a run; `until_interrupted` keeps what a run has measured
            click.echo("mixmark: interrupted", err=True)
            context.exit(130)
        except BrokenPipeError:  # the program that reads our output has ended
            sys.stderr.close()
            context.exit(0)
        except OSError as error:
            if error.errno == errno.EIO:  # the terminal is gone
                sys.stderr.close()
                context.exit(129)
            if error.errno != errno.ENOSPC:
                raise
            click.echo(f"mixmark: the output cannot be written: {error.strerror}", err=True)
            click.echo("         free disk space, or write it to another disk", err=True)
            context.exit(2)


def _open_streams() -> None:
    """Opens the null device for each standard stream that the caller closed, so that nothing that a run opens takes its
    number and is then written to by mistake."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


PAGES = PACKAGE.parent / "docs" if (PACKAGE / "harness").is_symlink() else f"{sys.prefix}/share/doc/mixmark"
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, context_settings=SETTINGS, epilog=f"The pages that messages name docs/… are in {PAGES}.")
@click.version_option(package_name="mixmark", prog_name="mixmark")
def main() -> None:
    """Measure how much useful AI work a whole machine gets done, with all of its devices at once.

    \b
    Examples:
      mixmark run --tier smoke   does everything work? about a minute and a half
      mixmark run                measure every suite on every device, then the mix
      mixmark report             show the report of the newest run again
    """


@click.group(cls=Checks)
def check() -> None:
    """Check a plugin against its contract, or the entries of a board against their rules.

    A name that is installed, or a folder of entries, says what is checked; else name the kind.

    \b
    Examples: mixmark check acme
              mixmark check adapter ./acme.py:Acme
              mixmark check submissions/entries
    """


main.place(
    {
        "Measure": (run.run,),
        "Read results": (results.report,),
        "Look at this machine": (devices.devices, devices.suites),
        "Check and extend": (check,),
    }
)
for name, spec in BUILT_IN["commands"].items():
    main.hang(name.split(), resolve_name(spec))
