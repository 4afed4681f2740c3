"""Asks psutil, which raises on a machine that lacks a file or a line that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
U = TypeVar("U")
UNKNOWN = (psutil.Error, OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError)
"""What psutil raises if a process is gone or another user's, and on an odd machine: a Linux without the line `btime`
in /proc/stat, without /sys/class/power_supply or without /proc/meminfo, a system that lacks the call."""


def known(question: Callable[[], T], otherwise: U) -> T | U:
    """The answer to a question to psutil, or `otherwise` if it is unknown."""
    try:
        return question()
    except UNKNOWN:
        return otherwise
