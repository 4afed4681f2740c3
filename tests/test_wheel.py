"""What is installed from the wheel works like the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(source)], check=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_product_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if not re.match(r"mixmark-[^/]*\.(dist-info|data)/", name)}
    assert top <= {"harness", "suites", "reporters", "submissions", "mixmark.py"}
    assert {
        "mixmark.py",
        "harness/mixes.toml",
        "harness/adapters/torch.py",
        "suites/llm/graphs/edge-step.onnx.xz",
        "suites/resnet50/statistics.npz",
        "submissions/board/pages/board.jinja",
        "submissions/board/pages/board.js",
        "submissions/board/pages/style.css",
    } <= set(names)
    assert [name for name in names if name.endswith(".data/data/share/man/man1/mixmark.1")]
    assert not [name for name in names if name.startswith("submissions/entries")]
    assert wheel.stat().st_size < 5_000_000


def test_what_is_unpacked_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    script = f"import harness; assert harness.__file__.startswith({str(site)!r}); from harness.cli import main; main()"
    words = ["run", "--tier", "smoke", "--suite", "dlrm", "--adapter", "onnxruntime", "--out", "out", "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert list((tmp_path / "out/raw").glob("*.npz"))
