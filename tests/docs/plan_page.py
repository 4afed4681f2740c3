"""The output in docs/plan.md, from the published entries and the file of prices that the page shows.

python -m tests.docs.plan_page    rewrites the page; read the diff before you commit it
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from click.testing import CliRunner

from mixmark.harness.cli.commands import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plan.md"
OUTPUT = re.compile(r"(<!-- plan -->\n```text\n)(.*?)(?=```)", re.DOTALL)
PRICES = re.compile(r"<!-- file: prices.toml -->\n```toml\n(.*?)```", re.DOTALL)
COMMAND = ("--mixes-per-hour", "60", "--budget", "9000", "--tariff", "0.30")


ASSUMED = re.compile(r"(<!-- assumed -->\n```text\n)(.*?)(?=```)", re.DOTALL)
ADDED = ("--add", "NVIDIA L4")


def renewed(page: str) -> str:
    page = ASSUMED.sub(lambda match: f"{match[1]}{_added()}", page)
    found = PRICES.search(page)
    assert found
    with tempfile.TemporaryDirectory() as folder:
        prices = Path(folder, "prices.toml")
        prices.write_text(found[1], "utf-8")
        entries = ROOT / "submissions" / "entries"
        words = ("plan", "--entries", str(entries), "--prices", str(prices), *COMMAND)
        done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    typed = f"$ mixmark plan --entries submissions/entries --prices prices.toml {' '.join(COMMAND)}\n"
    return OUTPUT.sub(lambda match: f"{match[1]}{typed}{done.stdout}", page)


def _added() -> str:
    """What one card of a datasheet would add to the machine of the published entry."""
    (entry,) = (ROOT / "submissions" / "entries").glob("mixmark/*/edge-1-16-bit")
    done = CliRunner().invoke(main, ("plan", str(entry), *ADDED), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return f'$ mixmark plan {entry.relative_to(ROOT)} --add "NVIDIA L4"\n{done.stdout}'


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
