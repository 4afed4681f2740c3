"""The option of `mixmark run`. A worker imports the other modules, and its interpreter need not have click."""

import click

OPTIONS = (
    click.Option(
        ["--loadgen"],
        is_flag=True,
        help="Also time the fastest route of each suite by MLCommons' LoadGen, in SingleStream, Offline and Server. "
        "It is not an MLPerf result. Needs the extra loadgen.",
    ),
)
