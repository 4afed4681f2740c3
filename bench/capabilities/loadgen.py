"""LoadGen's figures beside Mixmark's, over several runs: the medians and ranges of the ratios.

Run: python -m bench.capabilities.loadgen [runs] [options of `mixmark run`], on an idle machine. By default five runs of
resnet50, dlrm and llm at the edge tier. Goal: at most 2 % apart.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from mixmark.harness.capabilities.loadgen.figures import timed
from mixmark.harness.judge.assessment import judge
from mixmark.harness.record import store

SUITES = ("--suite", "resnet50", "--suite", "dlrm", "--suite", "llm")


def main() -> None:
    runs, options = int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or [*SUITES]
    ratios = defaultdict[tuple[str, ...], list[float]](list)
    for _ in range(runs):
        folder = Path(tempfile.mkdtemp(prefix="loadgen-")) / "run"
        words = ["run", "--mix", "none", "--loadgen", "--out", str(folder), *options]
        subprocess.run([sys.executable, "-m", "mixmark", *words], check=True)
        for test in timed(judge(store.open(folder))) or ():
            if test.loadgen and test.mixmark:
                ratios[test.suite, test.device, test.scenario, test.name].append(test.loadgen / test.mixmark)
    print(f"LoadGen over Mixmark on the same feeds, {runs} runs: median (range)")
    for key, found in ratios.items():
        print(f"  {' '.join(key):40} {statistics.median(found):.4f} ({min(found):.4f} to {max(found):.4f})")


if __name__ == "__main__":
    main()
