"""The command that installs this Mixmark once more, with an extra or for another interpreter, from where it came: its
checkout, its wheel, its repository, or the index that had it. No other index need have it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from mixmark.harness import VERSION

ROOT = Path(__file__).parents[3]
"""The checkout, or the folder of installed packages."""


def command(extra: str = "", python: str = "") -> str:
    """pip install -e '.[openvino]' in a checkout. python: another interpreter than this one."""
    found = shutil.which("pip")
    if not python and (found is None or Path(found).parent != Path(sys.executable).parent):
        python = _near(Path(sys.executable))
    pip = f"{shlex.quote(python)} -m pip" if python else "pip"
    return f"{pip} install {_requirement(f'[{extra}]' if extra else '')}"


def _requirement(extras: str) -> str:
    """What pip takes, quoted for a shell. extras: with their brackets."""
    if (ROOT / "pyproject.toml").is_file():
        return f"-e {shlex.quote(_near(ROOT) + extras)}"
    return shlex.quote(f"mixmark{extras}{_origin() or f'=={VERSION}'}")


def _origin() -> str:
    """The text `@ URL` of the wheel, the folder or the repository that was installed; empty if an index had it."""
    with suppress(metadata.PackageNotFoundError, ValueError, KeyError):
        direct = json.loads(metadata.distribution("mixmark").read_text("direct_url.json") or "{}")
        vcs = direct.get("vcs_info")
        return f" @ {vcs['vcs']}+{direct['url']}@{vcs['commit_id']}" if vcs else f" @ {direct['url']}"
    return ""


def _near(path: Path) -> str:
    """The path, from the current folder if it lies there."""
    with suppress(OSError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
