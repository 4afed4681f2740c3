"""The run that README.md shows, which is the first published entry: its report, and the first screen of its page.

python -m tests.submissions.readme_page    renews both: after an entry took another's place, or a report reads otherwise

The picture needs Chromium. The score in the words for the picture shows which run it is of.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from click.testing import CliRunner

from mixmark.harness.cli.commands import main
from mixmark.harness.machine.suite_claims import judge_stored
from mixmark.harness.record import store
from mixmark.reporters.summary import summary
from mixmark.submissions.references import ENTRIES
from tests.docs import parts
from tests.reporters.browser import tab

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "README.md"
PICTURE = "docs/pictures/report.png"
WINDOW = (1080, 720)
RESULT = min(ENTRIES.resolve().glob("*/*/*/results/1"))


def reported(*options: str) -> str:
    """What `mixmark report` prints of the entry in a checkout."""
    command = ["report", str(RESULT.relative_to(ROOT)), *options]
    with contextlib.chdir(ROOT):
        return CliRunner().invoke(main, command, catch_exceptions=False).stdout


def page(readme: str) -> str:
    """README with the report and the picture of the entry."""
    found = summary(judge_stored(store.open(RESULT)))
    picture = f"![{found.advice} ({found.verdict}). {found.score}]({PICTURE})"
    return parts.renewed(readme, report=f"```text\n{reported()}```\n\n{picture}\n")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, tab(Path(folder) / "profile") as browser:
        (html := Path(folder) / "report.html").write_text(reported("--format", "html"), "utf-8")
        browser.look(*WINDOW)
        browser.open(html)
        (ROOT / PICTURE).write_bytes(browser.picture())
