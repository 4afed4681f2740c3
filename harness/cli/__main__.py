"""The command `mixmark` from its first moment on. An interrupt while the command line is being imported, which takes a
second on a busy machine, ends it as one later does."""

from __future__ import annotations

import sys


def main() -> None:
    """What the installed command calls."""
    try:
        from mixmark.harness import cli

        cli.main(prog_name="mixmark")
    except KeyboardInterrupt:
        sys.stderr.write("mixmark: interrupted\n")
        sys.exit(130)
