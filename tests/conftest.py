"""What all tests have in common: each test process has its own lock and its own folder of logs, so that test processes
do not refuse each other's runs, and no process ignores Ctrl-C."""

from __future__ import annotations

import gc
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

pytest_plugins = ["tests.installed"]

if TYPE_CHECKING:
    from tests.fakes.clock import JumpingClock

OWN = tempfile.TemporaryDirectory(prefix="mixmark-tests-")
os.environ["MIXMARK_LOCK"], os.environ["XDG_STATE_HOME"] = f"{OWN.name}/lock", OWN.name
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's `&`, also by all child processes


@pytest.fixture(autouse=True)
def _no_real_waits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test waits in real time only if it is marked `realtime`. In one that is marked `slow` the harness may wait for
    the processes that it starts."""
    if request.node.get_closest_marker("realtime"):
        yield
        return
    from tests.fakes.clock import refuse_real_waits

    waits = refuse_real_waits(monkeypatch, harness_may=request.node.get_closest_marker("slow") is not None)
    yield
    assert not waits, "real waits: take the fixture `jumping_clock`, or mark the test as `realtime`"


@pytest.fixture
def jumping_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[JumpingClock]:
    """A clock that jumps to the earliest time that a thread waits for, when all threads wait."""
    from mixmark.harness.worker import plugin_process
    from tests.fakes.clock import jumping

    made = jumping(monkeypatch)
    starter = cache(lambda: ThreadPoolExecutor(1))  # the thread that other tests share would be one it does not know
    monkeypatch.setattr(plugin_process, "_starter", starter)
    yield made
    plugin_process.suite_process.cache_clear()  # their processes end with the thread that started them
    made.close()


@pytest.fixture
def inline_workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads of this process, and time jumps; but not if the test is marked `realtime`."""
    if request.node.get_closest_marker("realtime"):
        return
    for name in ("jumping_clock", "in_process"):
        request.getfixturevalue(name)
    from mixmark.harness.measure import phase
    from mixmark.harness.worker import handle
    from tests.fakes.inline import InlineProcess, canary

    monkeypatch.setattr(handle, "ChildProcess", InlineProcess)
    monkeypatch.setattr(phase, "canary", canary)


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
    if "not slow" in config.option.markexpr and collection_path.suffix == ".py":
        return re.search(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", collection_path.read_text("utf-8"), re.M) and True
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
