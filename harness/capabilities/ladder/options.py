from __future__ import annotations

import click

from mixmark.harness.capabilities.ladder import HIGHEST
from mixmark.harness.cli.options import fractions


def _levels(context: click.Context, option: click.Parameter, given: str | None) -> tuple[float, ...] | None:
    """Parses a list of percentages such as 75,50,25. Empty if the option was not given; None if given without a
    list."""
    if given is None or given == "":
        return None if given == "" else ()
    shares = fractions(given)
    if not shares or not all(0 < share <= HIGHEST for share in shares):
        raise click.BadParameter(
            f"{given!r} is not a list of levels of load: give percentages above 0 and up to 90, such as 75,50,25. The "
            "mixed runs are the 100 %; nearer to it the queue of what arrives does not settle."
        )
    return shares


OPTIONS = (
    click.Option(
        ["--ladder", "levels"],
        callback=_levels,
        is_flag=False,
        flag_value="",
        metavar="[PERCENT,…]",
        help="Also serve the mix as requests that arrive, at shares of the rate of the mixed runs.  [default: without "
        "a list 75,50,25,10]",
    ),
)
