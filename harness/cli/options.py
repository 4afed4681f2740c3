"""The options that several commands share."""

from __future__ import annotations

import math
from pathlib import Path

import click

CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file.  [default: mixmark.toml, if it exists]"
)
ADAPTER = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME|FILE:CLASS",
    help="Use only this adapter; ./acme.py:Acme loads one from a file. Repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
TIER = click.option(
    "--tier",
    type=click.Choice(["smoke", "edge", "server"]),
    default="edge",
    show_default=True,
    help="Size of the networks and of their inputs.",
)


def arrival_rate(context: click.Context, option: click.Parameter, given: str | None) -> float | None:
    """Feeds per second as a number above 0; `max` becomes infinity, which stands for the highest rate that is found."""
    if given is None or given == "max":
        return math.inf if given else None
    try:
        rate_per_s = float(given)
    except ValueError:
        rate_per_s = math.nan
    if not 0 < rate_per_s < math.inf:
        raise click.BadParameter(f"{given!r} is not an arrival rate: give feeds per second, above 0, or max.")
    return rate_per_s
