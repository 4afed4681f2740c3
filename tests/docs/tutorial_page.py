"""The outputs in docs/tutorial.md, or in another page, from its own commands.

python -m tests.docs.tutorial_page [PAGE]    runs them in a new folder, for some minutes, and rewrites the page

The commands of all blocks are typed into one shell, one block after the other. A block that is followed by
`<!-- output -->` is shown with what it prints, by `<!-- output: last -->` with what its last line prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:\n<!-- output(: last)? -->\n```text\n(.*?)```\n)?", re.DOTALL)
BETWEEN = "--- the next block ---"


def files(page: str) -> dict[str, str]:
    """The files that the page has the reader write: name -> text."""
    return dict(FILE.findall(page))


def typed(page: str) -> list[str]:
    """What the reader types, one text for each block."""
    return [block[1] for block in BLOCK.finditer(page)]


def shell(folder: Path) -> dict[str, str]:
    """The environment of a shell: `mixmark` is this checkout, and prints what a page shows."""
    script = folder / "bin" / "mixmark"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mixmark "$@"\n')
    script.chmod(0o755)
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def printed(page: str, folder: Path) -> Iterator[str]:
    """What each block prints, or its last line, where the page asks for that.

    Raises CalledProcessError where a command fails: on a machine that is too busy, that is the comparison.
    """
    for name, text in files(page).items():
        (folder / name).write_text(text, "utf-8")
    script = ""
    for block in BLOCK.finditer(page):
        lines = block[1].splitlines()
        before = [f"{line} > /dev/null" for line in lines[:-1]] if block[2] else lines[:-1]
        script += "\n".join([*before, lines[-1], f"echo '{BETWEEN}'", ""])
    bash = ["bash", "-e", "-c", script]
    done = subprocess.run(bash, cwd=folder, env=shell(folder), stdout=subprocess.PIPE, text=True, check=True)
    yield from done.stdout.split(f"{BETWEEN}\n")


def renewed(page: str, outputs: list[str]) -> str:
    """The page with these outputs in the places of the old ones."""
    fresh = iter(outputs)

    def with_output(block: re.Match[str]) -> str:
        output = "\n".join(line.rstrip() for line in next(fresh).strip("\n").splitlines())
        if block[3] is None:
            return block[0]
        begin, end = (at - block.start() for at in block.span(3))
        return f"{block[0][:begin]}{output}\n{block[0][end:]}"

    return BLOCK.sub(with_output, page)


if __name__ == "__main__":
    path = Path(*sys.argv[1:]) if sys.argv[1:] else PAGE
    page = path.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path.write_text(renewed(page, list(printed(page, Path(folder)))), "utf-8")
