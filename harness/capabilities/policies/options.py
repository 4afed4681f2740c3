from __future__ import annotations

from mixmark.harness.cli import complete
from mixmark.harness.cli.options import AgainOption

OPTIONS = (
    AgainOption(
        ["--policy", "policies"],
        multiple=True,
        metavar="NAME|FILE:CLASS",
        shell_complete=complete.plugins("policies", or_file=True),
        help="Also run the mix and a pipeline by this policy, in turns with the plan. Repeatable.",
    ),
)
