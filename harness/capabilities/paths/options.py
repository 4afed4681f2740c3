from __future__ import annotations

import click

OPTIONS = (
    click.Option(
        ["--paths"],
        is_flag=True,
        help="Also measure the paths between memories: latency and bandwidth of copies of 4 KiB to 256 MiB before "
        "anything else, and joules per byte if a meter can be read.",
    ),
)
