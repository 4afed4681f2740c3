from __future__ import annotations

from mixmark.harness.cli.options import AgainOption

OPTIONS = (
    AgainOption(
        ["--policy", "policies"],
        multiple=True,
        metavar="NAME|FILE:CLASS",
        help="Also run the mix by this policy, in turns with the plan. Repeatable.",
    ),
)
