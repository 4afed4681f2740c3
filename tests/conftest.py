"""What all tests have in common: each test process has its own lock and its own folder of logs, so that test processes
do not refuse each other's runs, and no process ignores Ctrl-C."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["MIXMARK_LOCK"] = str(Path(tempfile.gettempdir()) / f"mixmark-tests-{os.getpid()}.lock")
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir()) / f"mixmark-tests-{os.getpid()}.state")
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's `&`, also by all child processes


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """All plugins run in this process, as built-in ones do."""
    from mixmark.harness.plugins.registry import Plugin

    monkeypatch.setattr(Plugin, "built_in", property(lambda plugin: True))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads of this process."""
    from mixmark.harness.worker import handle
    from tests.fakes.inline import InlineProcess

    monkeypatch.setattr(handle, "ChildProcess", InlineProcess)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers can import the fakes."""
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def pytest_configure(config: pytest.Config) -> None:
    """A random search draws the same examples each time: a tenth of them where exhaustive tests are deselected."""
    examples = 10 if "not exhaustive" in config.option.markexpr else 100
    settings.register_profile("mixmark", max_examples=examples, deadline=None, derandomize=True)
    settings.load_profile("mixmark")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files of slow tests where those are deselected: what they import takes seconds in each process."""
    slow = ("\npytestmark = pytest.mark.slow\n", "\npytestmark = [pytest.mark.slow, ")
    if "not slow" in config.option.markexpr and collection_path.suffix == ".py":
        return any(each in collection_path.read_text("utf-8") for each in slow) or None
    return None


def pytest_collection_finish() -> None:
    """Adapters collect garbage whenever they close a suite; the modules that were imported are none, and are many."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what was skipped. A reason names the cause and, after a colon, what mends it."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped, why, and what mends it")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:4} × {reason}")
