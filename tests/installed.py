"""Mixmark as it is installed from the wheel, for those who have nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the last commit, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(source)], check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture
def outsider(wheel: Path, tmp_path: Path) -> Callable[[str], str]:
    """Types lines into a shell in a virtual environment that has the wheel and nothing of the checkout; what else a
    plugin needs comes from the tests' own environment, so that nothing is downloaded. Returns what is printed."""
    venv.create(tmp_path / "venv")
    scripts, site = (
        Path(sysconfig.get_path(name, "venv", {"base": str(tmp_path / "venv")})) for name in ("scripts", "purelib")
    )
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = scripts / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{scripts}/python" -m pip "$@"\n')
    pip.chmod(0o755)
    folder = tmp_path / "vendor"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "XDG_DATA_HOME": str(tmp_path / "data")}
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}

    def types(lines: str) -> str:
        done = subprocess.run(["bash", "-e", "-c", lines], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    types(f"pip install {wheel}")
    return types


def blocks(page: str) -> list[str]:
    """What a page has the reader type."""
    return re.findall(r"<!-- run -->\n```sh\n(.*?)```", page, re.DOTALL)


def write(outsider: Callable[[str], str], page: str) -> None:
    """Writes the files that a page has the reader write."""
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL):
        outsider(f"cat > {name} <<'end'\n{text}end\n")
