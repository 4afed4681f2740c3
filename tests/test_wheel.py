"""What is installed from the wheel works like the checkout, for those who have nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
VENDORS, SUBMIT = ((ROOT / "docs" / name).read_text("utf-8") for name in ("vendors.md", "submit.md"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the last commit, and the wheel that is built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(source)], check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


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
    assert {
        "mixmark/api.py",
        "mixmark/harness/plan/mixes.toml",
        "mixmark/harness/cli/template/session.py.jinja",
        "mixmark/harness/adapters/torch/__init__.py",
        "mixmark/suites/llm/graphs/edge-step.onnx.xz",
        "mixmark/suites/resnet50/statistics-16.npz",
        "mixmark/reporters/blocks.css",
        "mixmark/reporters/blocks.jinja",
        "mixmark/submissions/board/pages/board.jinja",
        "mixmark/submissions/board/pages/board.js",
        "mixmark/submissions/board/pages/style.css",
    } <= set(names)
    assert [name for name in names if name.endswith(".data/data/share/man/man1/mixmark.1")]
    assert not [name for name in names if name.startswith("mixmark/submissions/entries")]
    assert wheel.stat().st_size < 5_000_000


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


@pytest.mark.exhaustive
def test_a_vendor_comes_from_nothing_to_a_checked_submission(outsider: Callable[[str], str]) -> None:
    """The blocks of docs/vendors.md, then the blocks of docs/submit.md with the same result, typed one by one."""
    write(outsider, VENDORS)
    new, listed, run, submitted = (outsider(block) for block in blocks(VENDORS))
    assert "mixmark-acme/mixmark_acme.py" in new
    assert re.search(r"^acme +mixmark-acme 0\.1\.0 +mixmark_acme:Acme +cpu:0", listed, re.MULTILINE), listed
    assert len(re.findall(r"^(?:llm|diffusion|dlrm|resnet50) .* acme fp32\b", run, re.MULTILINE)) == 4, run
    assert "acme/acme-one/smoke-1-16-bit obeys all rules: " in submitted

    outsider("mv results/acme results/mine; rm -r submissions")
    write(outsider, SUBMIT.replace('"desktop"', '"other"'))  # the tests may run in a virtual machine, which tells
    (measured, *others) = blocks(SUBMIT)
    assert measured.split()[:2] == ["mixmark", "run"] and measured.endswith(" --out results/mine\n")
    assert [each.split()[1] for each in others] == ["submit", "submit", "check", "audit", "compare"]
    for each in others:
        outsider(each)
    shown = re.findall(r"^    ([a-z.A-Z0-9/]+) ", SUBMIT, re.MULTILINE)
    there = outsider(
        "cd submissions/entries/acme/acme-one/smoke-1-16-bit; find . -maxdepth 1 -type f; find . -name 1"
    ).split()
    assert {each.rstrip("/") for each in shown} == {each.removeprefix("./") for each in there}


def blocks(page: str) -> list[str]:
    """What a page has the reader type."""
    return re.findall(r"<!-- run -->\n```sh\n(.*?)```", page, re.DOTALL)


def write(outsider: Callable[[str], str], page: str) -> None:
    """Writes the files that a page has the reader write."""
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.DOTALL):
        outsider(f"cat > {name} <<'end'\n{text}end\n")
