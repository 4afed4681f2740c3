"""The routes of a run measured once more with MLCommons' LoadGen as the clock. No figure here is an MLPerf result."""

import click

OPTIONS = (
    click.Option(
        ["--loadgen"],
        is_flag=True,
        help="Also time the fastest route of each suite by MLCommons' LoadGen, in SingleStream, Offline and Server. "
        "It is not an MLPerf result. Needs the extra loadgen.",
    ),
)
