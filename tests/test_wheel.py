"""What is installed from the wheel works like the checkout, for those who have nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_imports import LINKED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_the_sdist_installs_the_files_of_the_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", str(tmp_path), str(next(built.glob("*.tar.gz")))], check=True)
    installed = {str(path.relative_to(tmp_path)) for path in (tmp_path / "mixmark").rglob("*") if path.is_file()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("mixmark/")}
    assert {name for name in installed if "__pycache__" not in name} == packed


def test_the_wheel_holds_the_product_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if not re.match(r"mixmark-[^/]*\.(dist-info|data)/", name)}
    assert top == {"mixmark"}
    assert {"mixmark/api.py", "mixmark/harness/adapters/torch/__init__.py"} <= set(names)
    assert [name for name in names if name.endswith(".data/data/share/man/man1/mixmark.1")]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages == {name.partition("/share/doc/mixmark/")[2] for name in names if name.endswith(".md")} - {""}
    assert not [name for name in names if name.startswith("mixmark/submissions/entries")]
    assert wheel.stat().st_size < 5_000_000


def test_the_wheel_holds_what_lies_beside_the_code(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in LINKED:
        for path in (ROOT / folder).rglob("*"):
            name = f"mixmark/{path.relative_to(ROOT).as_posix()}"
            if path.suffix in (".jinja", ".toml", ".css", ".js", ".npz", ".xz") and "/entries/" not in name:
                assert name in names
