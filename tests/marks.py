"""Marks of tests that not every system can run, and of sweeps. CI runs all of them: it has Linux and two CPUs."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

# Each names what the story needs of the system: elsewhere there is nothing that it could test.
linux = pytest.mark.skipif(sys.platform != "linux", reason="no /proc, /dev/full or subreapers: run it on Linux")
two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU, from which no process can stray: run it on two")


def sweep(*cases: Any, usual: int = 1) -> list[Any]:
    """The cases of a parametrized test whose first ones show the kind; `make test` leaves the others out."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*each, marks=[pytest.mark.exhaustive] * (at >= usual)) for at, each in enumerate(values)]
