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
OUTPUT = re.compile(r"(```text\n\$ mixmark (plan [^\n]*?)(?: \| tail -n ([0-9]+))?\n).*?(?=```)", re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->\n```toml\n(.*?)```", re.DOTALL)


def renewed(page: str) -> str:
    """The page with what the planner prints now. Without the published entries it stays as it is."""
    if not (ROOT / "submissions").is_dir():
        return page
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        os.symlink(ROOT / "submissions", "submissions")
        for name, content in FILE.findall(page):
            Path(name).write_text(content, "utf-8")
        return OUTPUT.sub(lambda match: match[1] + _printed(shlex.split(match[2]), int(match[3] or 0)), page)


def _printed(words: list[str], last: int) -> str:
    """The last lines of the output, or with 0 all of them."""
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return "".join(done.stdout.splitlines(keepends=True)[-last:])


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
