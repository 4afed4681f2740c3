from __future__ import annotations

from pathlib import Path

import click

OPTIONS = (
    click.Option(
        ["--hosts"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Use the hosts that this file lists, in place of this machine.",
    ),
    click.Option(
        ["--launcher"],
        type=click.Choice(("local", "ssh", "slurm", "ray")),
        help="What starts an agent on each host.  [default: local]",
    ),
    click.Option(
        ["--address"], metavar="ADDRESS", hide_input=True, help="Where a launcher such as ray finds its cluster."
    ),
)
