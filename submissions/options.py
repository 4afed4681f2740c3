"""The options of the commands about entries."""

from __future__ import annotations

from pathlib import Path

import click

SIGNERS = click.option(
    "--allowed-signers",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Verify signatures by this list, as ssh-keygen's manual describes it.",
)
ORIGINALS = click.option(
    "--originals",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="List of results that are originals, if other entries hold the same runs; "
    "docs/capabilities/submissions/submit.md shows one.",
)
