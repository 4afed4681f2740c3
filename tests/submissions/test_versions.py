"""`scripts/version` in a repository of its own."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mixmark.submissions import versions
from tests.docs.test_docs import ROOT

NEEDED = (
    "scripts/version",
    "mixmark/__init__.py",
    "mixmark/api.py",
    "harness/__init__.py",
    "harness/contracts",
    "harness/worker",
)


@pytest.mark.slow
def test_a_version_is_listed_by_its_name_and_a_commit_as_it_was_committed(tmp_path: Path) -> None:
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "mixmark/harness").symlink_to("../harness")
    (tmp_path / "submissions/versions").mkdir(parents=True)
    (tmp_path / "harness/__init__.py").write_text('VERSION = "1.2"\n')
    (tmp_path / ".gitignore").write_text("__pycache__\n")

    def git(*words: str) -> str:
        named = ("git", "-c", "user.name=a", "-c", "user.email=a@a.test", *words)
        return subprocess.run(named, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    def listed(*words: str) -> dict[str, str]:
        script = [sys.executable, str(tmp_path / "scripts/version"), *words]
        done = subprocess.run(script, check=True, capture_output=True, text=True)
        found: dict[str, str] = json.loads((tmp_path / done.stdout.strip()).read_text())
        return found

    git("init", "--quiet", "--initial-branch=main")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    committed = listed("HEAD")
    version = tmp_path / "harness/__init__.py"
    assert committed["mixmark/harness/__init__.py"] == hashlib.sha256(version.read_bytes()).hexdigest()
    version.write_text(version.read_text() + "\n")
    assert listed("HEAD") == committed != listed()
    commit = git("rev-parse", "HEAD")
    names = {path.name for path in (tmp_path / "submissions/versions").iterdir()}
    assert names == {"1.2.json", f"1.2-{commit[:8]}.json"}
    assert versions._committed(commit, tmp_path / ".git") == committed, "an ancestor of main, as it was committed"
    git("checkout", "--quiet", "-b", "other")
    git("commit", "--quiet", "--all", "--message", "two")
    other = git("rev-parse", "HEAD")
    for unknown in (other, "main", "0" * 40, f"--output={commit}"):
        assert versions._committed(unknown, tmp_path / ".git") is None
    assert versions._committed(commit, tmp_path / "site-packages/.git") is None, "an installed package has no history"
    git("tag", "1.3")
    versions._committed.cache_clear()
    assert versions._committed(other, tmp_path / ".git") == listed()
    git("remote", "add", "origin", ".")
    git("fetch", "--quiet", "origin", "main")
    git("branch", "--force", "main", "other")
    git("tag", "--delete", "1.3")
    versions._committed.cache_clear()
    assert versions._committed(other, tmp_path / ".git") is None, "the board's main counts, and not one's own"
