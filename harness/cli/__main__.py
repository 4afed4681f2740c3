"""The entry point of the command `mixmark`: also while it imports the command line, an interrupt is one message."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from mixmark.harness.cli import commands

        commands.main(prog_name="mixmark")
    except KeyboardInterrupt:
        sys.stderr.write("mixmark: interrupted\n")
        sys.exit(130)
