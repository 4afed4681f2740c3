from __future__ import annotations

import click

OPTIONS = (
    click.Option(
        ["--drill"],
        type=click.Choice(["lose-device"]),
        help="Also run the mix while the busiest device that others can replace is taken away and given back.",
    ),
)
