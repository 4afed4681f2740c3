from __future__ import annotations

import click

from mixmark.harness.cli.options import fractions


def _caps(context: click.Context, option: click.Parameter, given: str | None) -> tuple[float, ...]:
    """Parses a list of percentages such as 100,80,60; the mixed runs are the 100 %."""
    found = fractions(given or "")
    if given is not None and (not found or not all(0 < cap <= 1 for cap in found) or found == (1.0,)):
        raise click.BadParameter(
            f"{given!r} is not a list of power caps: give percentages of the devices' limits above 0 and below 100, "
            "such as 80,60. The mixed runs are the 100 %."
        )
    return tuple(cap for cap in found if cap < 1)


OPTIONS = (
    click.Option(
        ["--power-cap", "caps"],
        callback=_caps,
        metavar="PERCENT,…",
        help="Also run the mix with the devices' limits of power lowered to these shares, and restore them. Needs "
        "root.",
    ),
)
