from __future__ import annotations

import click

OPTIONS = (
    click.Option(
        ["--scaling"],
        is_flag=True,
        help="Also run the mix on the first 1, 2, 4, … of several hosts, which shows how its rate grows with them.",
    ),
)
