"""The outputs in docs/capabilities/plan/plan.md: what the planner prints, with the files that the page shows."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner

from mixmark.harness.cli.commands import main

SLOW = True  # it plans machines of the published entries
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "capabilities" / "plan" / "plan.md"
OUTPUT = re.compile(r"(```text\n\$ mixmark (plan [^\n]*?)(?: \| grep -A ([0-9]+) (\w+))?\n).*?(?=```)", re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->\n```toml\n(.*?)```", re.DOTALL)


def pages() -> dict[Path, str]:
    """The page with what the planner prints now. Without the published entries it stays as it is."""
    page = PAGE.read_text("utf-8")
    if not (ROOT / "submissions").is_dir():
        return {PAGE: page}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        os.symlink(ROOT / "submissions", "submissions")
        for name, content in FILE.findall(page):
            Path(name).write_text(content, "utf-8")
        page = OUTPUT.sub(
            lambda match: match[1] + _printed(shlex.split(match[2]), int(match[3] or 0), match[4] or ""), page
        )
    assert "Cheapest machine for the work, predicted" in page, "it answers the question that it asks"
    return {PAGE: page}


def _printed(words: list[str], more: int, word: str) -> str:
    """The first line of the output that has the word, and so many more. All lines if more is 0."""
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if word in line)
    return "".join(lines[first : first + more + 1] if more else lines)
