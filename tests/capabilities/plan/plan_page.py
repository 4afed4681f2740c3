"""The outputs in docs/capabilities/plan/plan.md: what the planner prints, with the files that the page shows.

python -m tests.capabilities.plan.plan_page    rewrites the page; read the diff before you commit it
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path

from click.testing import CliRunner

from mixmark.harness.cli.commands import main

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "capabilities" / "plan" / "plan.md"
OUTPUT = re.compile(r"(```text\n\$ mixmark (plan [^\n]*?)(?: \| grep -A ([0-9]+) (\w+))?\n).*?(?=```)", re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->\n```toml\n(.*?)```", re.DOTALL)


def renewed(page: str) -> str:
    """The page with what the planner prints now. Without the published entries it stays as it is."""
    if not (ROOT / "submissions").is_dir():
        return page
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        os.symlink(ROOT / "submissions", "submissions")
        for name, content in FILE.findall(page):
            Path(name).write_text(content, "utf-8")
        return OUTPUT.sub(
            lambda match: match[1] + _printed(shlex.split(match[2]), int(match[3] or 0), match[4] or ""), page
        )


def _printed(words: list[str], more: int, word: str) -> str:
    """The first line of the output that has the word, and so many more. All lines if more is 0."""
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if word in line)
    return "".join(lines[first : first + more + 1] if more else lines)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
