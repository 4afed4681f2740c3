from __future__ import annotations

import click

OPTIONS = (
    click.Option(
        ["--pipeline"],
        metavar="NAME|FILE",
        help="Also run a chain of suites with a deadline, several at a time: on all devices, and in turns with "
        "that on the best single device. NAME is a published pipeline, such as assistant.",
    ),
)
