"""What all tests have in common: a lock of their own, so that the runs of several test processes do not refuse each
other."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["MIXMARK_LOCK"] = str(Path(tempfile.gettempdir()) / f"mixmark-tests-{os.getpid()}.lock")
