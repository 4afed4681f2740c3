"""How the board grows: seconds and memory to make a site of 100, 1,000 and 10,000 made-up entries on one board, and how
long the page with all of their rows takes until a reader can use it.

    python -m bench.board [ENTRIES…]

The goals at 10,000 entries: a site within 60 s and 2 GiB on two cores, and its page usable within 2 s. The entries are
made up by `bench.entries`, since checking real ones takes as long as opening their results. Each size is made in a
process of its own, so that its memory is its own. The page is opened by chromium without a window, from the disk.
"""

from __future__ import annotations

import datetime
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.entries import made
from mixmark.harness.plugins import registry
from mixmark.submissions.board import site as board
from mixmark.submissions.board.row import Site
from mixmark.submissions.entry import Entry, Estimate
from tests.reporters.browser import CHROMIUM, tab

SIZES = (100, 1000, 10_000)
OPENED = 3
PAINTED = "new Promise(done => requestAnimationFrame(() => done(ranked.length)))"
FILTERED = """
new Promise(done => {
  const search = document.querySelector('#tools [name=q]');
  const begin = performance.now();
  search.value = 'topaz';
  search.dispatchEvent(new Event('input', {bubbles: true}));
  const wait = () => document.querySelector('#count').textContent.includes(' of ')
    ? requestAnimationFrame(() => done(performance.now() - begin)) : setTimeout(wait, 1);
  wait();
})
"""


def alike(number: int) -> Entry:
    """An entry that stands on one board with all others, ranked, and metered where it can be."""
    entry = made(number)
    claim = entry.claim
    changes: dict[str, object] = {
        "mix": "edge-1",
        "weight_class": 16,
        "division": "closed",
        "grade": "official",
        "ranked": True,
        "boundary": claim.boundary and "node",
        "mixes_per_s": _known(claim.mixes_per_s),
        "mixes_per_kj": claim.mixes_per_kj and _known(claim.mixes_per_kj),
    }
    return entry.model_copy(update={"mix": "edge-1", "claim": claim.model_copy(update=changes)})


def _known(figure: Estimate) -> Estimate:
    return Estimate(value=figure.value, low=figure.value * 0.99, high=figure.value * 1.01)


def build(count: int, out: Path) -> None:
    """Prints seconds, seconds of a core, and MiB."""
    suites = {name: plugin.load() for name, plugin in registry.find("suites").items()}
    told = Site(
        title="Made up",
        url="",
        today=datetime.date(2026, 11, 22),
        versions={name: suite.version for name, suite in suites.items()},
        called={name: suite.unit_names.work for name, suite in suites.items()},
    )
    entries = [alike(number) for number in range(count)]
    begin, worked = time.perf_counter(), time.process_time()
    board.build(told, entries, out)
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    print(f"{seconds:.2f} {worked:.2f} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}")


def main(sizes: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        print(
            "entries  site [s]  of a core [s]  ms an entry  memory [MiB]  files [MiB]    rows  usable [s]  filter [s]"
        )
        for count in sizes:
            out = Path(folder) / str(count)
            command = [sys.executable, "-m", "bench.board", "--build", str(count), str(out)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds, worked, memory = map(float, done.stdout.split())
            size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 2**20
            rows, usable, filtered = opened(out, Path(folder) / f"profile-{count}")
            print(
                f"{count:7,}  {seconds:8.2f}  {worked:13.2f}  {worked / count * 1000:11.2f}  {memory:12.0f}  "
                f"{size:11.1f}  {rows:6,}  {usable:10.2f}  {filtered:10.2f}",
                flush=True,
            )


def opened(out: Path, profile: Path) -> tuple[int, float, float]:
    """(rows, seconds until usable, seconds of a filter): the worst of some times of the page with the most rows."""
    if CHROMIUM is None:
        return 0, float("nan"), float("nan")
    page = max((out / "boards").iterdir(), key=lambda path: path.stat().st_size)
    usable, filtered, rows = [], [], 0
    with tab(profile) as shown:
        shown.look(1440, 900)
        for _ in range(OPENED):
            shown.open(Path("/dev/null"))
            begin = time.perf_counter()
            shown.open(page)
            rows = shown.run(PAINTED)
            usable.append(time.perf_counter() - begin)
            filtered.append(shown.run(FILTERED) / 1000)
    return rows, max(usable), max(filtered)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--build"]:
        build(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(tuple(map(int, sys.argv[1:])) or SIZES)
