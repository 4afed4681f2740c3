"""What a machine with an accelerator can show, in parts of at most nine minutes: `python -m bench.accelerator`."""

import sys
from typing import NoReturn

ABSENT = 2


def absent(what: str) -> NoReturn:
    """Ends a step that this machine cannot do. A fault of the step ends it by 1."""
    print(what)
    sys.exit(ABSENT)
