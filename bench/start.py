"""The time of `mixmark --help`, compared with an interpreter that does nothing.

Run: python -m bench.start [times]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

GOAL_S = 0.3


def wall_s(command: Sequence[str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    mixmark = [str(Path(sys.executable).with_name("mixmark")), "--help"]
    nothing = [sys.executable, "-c", "pass"]
    wall_s(mixmark)  # loads the files into the page cache
    pairs = [(wall_s(mixmark), wall_s(nothing)) for _ in range(times)]
    ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    verdict = "ok" if ours <= GOAL_S else "missed"
    print(f"median of {times}: mixmark --help {ours:.3f} s, python -c pass {bare:.3f} s, ratio {ours / bare:.1f}")
    print(f"goal: at most {GOAL_S} s: {verdict}")


if __name__ == "__main__":
    main()
