"""A hint about installing names what can be installed: this checkout, this wheel, or the index that had it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from mixmark.harness import VERSION
from mixmark.harness.plugins import install

SUFFIXES = {".md", ".yml", ".py", ".jinja", ".1"}
URL = "https://example.org/mixmark"
WHEEL = {"url": f"file:///w/mixmark-{VERSION}-py3-none-any.whl", "archive_info": {}}
GIT = {"url": URL, "vcs_info": {"vcs": "git", "commit_id": "abc123"}}


ROOT = Path(__file__).parents[2]
BY_NAME = re.compile(r"pip install (?:-\S+ )*['\"]?mixmark\b(?!-)|MIXMARK: mixmark$", re.MULTILINE)


def test_no_text_installs_mixmark_from_an_index_that_may_not_have_it() -> None:
    folders = ("docs", "submissions/workflow", "harness", "suites", "scripts")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found = [str(path) for path in (ROOT / "README.md", *paths) if BY_NAME.search(path.read_text("utf-8"))]
    assert found == []


@pytest.fixture(autouse=True)
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's own pip is found by its name."""
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).parent / name))
    monkeypatch.setattr(install, "ROOT", tmp_path / "mix mark")
    (tmp_path / "mix mark").mkdir()


def test_a_checkout_is_named_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (install.ROOT / "pyproject.toml").touch()
    monkeypatch.chdir(install.ROOT)
    assert install.command("openvino") == "pip install -e '.[openvino]'"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert install.command("ray") == f"pip install -e '{install.ROOT}[ray]'"
    assert install.command(python="/opt/py 3/python") == f"'/opt/py 3/python' -m pip install -e '{install.ROOT}'"


@pytest.mark.parametrize(
    ("direct", "requirement"),
    [
        (WHEEL, f"'mixmark[torch] @ {WHEEL['url']}'"),
        (GIT, f"'mixmark[torch] @ git+{URL}@abc123'"),
        (None, f"'mixmark[torch]=={VERSION}'"),
    ],
)
def test_an_installed_mixmark_is_named_as_it_was_installed(
    direct: object, requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / f"site/mixmark-{VERSION}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mixmark\nVersion: {VERSION}\n")
    if direct:
        (info / "direct_url.json").write_text(json.dumps(direct))
    monkeypatch.setattr(sys, "path", [str(info.parent)])
    assert install.command("torch") == f"pip install {requirement}"


def test_a_pip_of_another_interpreter_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/pip")
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    assert install.command("torch").startswith("/venv/bin/python -m pip install ")
