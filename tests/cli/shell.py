"""A folder to type `mixmark` in, with time limits that are long enough for engines that sleep."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from click.testing import CliRunner

from mixmark.harness.cli import __main__, commands
from mixmark.harness.plan import phases, presets
from mixmark.harness.plugins import registry
from mixmark.harness.worker import plugin_process
from tests.fakes.reference import NUMPY

ROOT = Path(__file__).parents[2]
ACME = f"{ROOT / 'tests/fakes/acme.py'}:Acme"
MS = 1_000_000
PREPARED = {"warmup_ns": 20 * MS, "search_ns": 100 * MS}


@contextlib.contextmanager
def shortened(window_ms: int) -> Iterator[None]:
    """Shortens what is measured and audited at the smoke tier: workers get limits and adapters from this process."""
    solo = presets.SMOKE.model_copy(update={**PREPARED, "min_ns": window_ms * MS})
    mix = presets.SMOKE_MIX.model_copy(update={"warmup_ns": 20 * MS, "min_ns": 1000 * MS})
    with (
        mock.patch.object(phases, "SMOKE", solo),
        mock.patch.object(presets, "SMOKE_MIX", mix),
        mock.patch.dict(registry.BUILT_IN["adapters"], NUMPY),
    ):
        yield


class Shell:
    """The null suite is installed in its folder as a plugin. A command runs in this process and its workers in
    processes of their own; one that a signal shall reach is started."""

    def __init__(self, folder: Path, window_ms: int = 200) -> None:
        self.folder = folder
        self.window_ms = window_ms
        self.site = folder / "site"
        self.install("null-suite", "[mixmark.suites]\nnull = tests.fakes.null:Null\n")
        paths = (str(self.site), str(ROOT), os.environ.get("PYTHONPATH", ""))
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "NO_COLOR": "1",
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def install(self, name: str, entry_points: str) -> None:
        info = self.site / f"{name.replace('-', '_')}-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(entry_points)

    def start(self, *words: str, first: str = "pass") -> subprocess.Popen[str]:
        """first: a statement that the process runs before the command."""
        code = f"{first}; from tests.cli import shell; shell.main({self.window_ms})"
        command = [sys.executable, "-P", "-c", code, *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, self.environment),
            mock.patch.object(sys, "path", [str(self.site), *sys.path]),
            mock.patch.object(sys, "argv", ["mixmark", *words]),
            shortened(self.window_ms),
        ):
            done = CliRunner().invoke(commands.main, words, catch_exceptions=False)
        for each, handler in handlers.items():
            signal.signal(each, handler)
        plugin_process.suite_process.cache_clear()
        for name, module in [*sys.modules.items()]:
            if (getattr(module, "__file__", None) or "").startswith(str(self.folder)):
                del sys.modules[name]  # another test may have another module of this name
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def run(self, *words: str, mode: str = "fine") -> subprocess.CompletedProcess[str]:
        (self.folder / "mixmark.toml").write_text(f'[adapter.acme]\nmode = "{mode}"\n')
        return self("run", "null", "--adapter", ACME, "--tier", "smoke", "--out", "out", *words)


def main(window_ms: int) -> None:
    with shortened(window_ms):
        __main__.main()
