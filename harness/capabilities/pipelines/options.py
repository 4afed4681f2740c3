from __future__ import annotations

from collections.abc import Iterable

import click

from mixmark.harness.cli import complete


def _published() -> Iterable[str]:
    from mixmark.harness.capabilities.pipelines import plan

    return plan.published()


OPTIONS = (
    click.Option(
        ["--pipeline"],
        metavar="NAME|FILE",
        shell_complete=complete.names(_published, or_file=True),
        help="Also run a chain of suites with a deadline, several at a time: on all devices, and in turns with "
        "that on the best single device. NAME is a published pipeline, such as assistant.",
    ),
)
