"""Calls plugins with a time limit, and turns their errors into text that names the plugin's line."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.text import plain
from mixmark.harness.resources import clock

MAX_REASON = 1000  # characters: some fixes are two commands
MAX_MESSAGE = 500  # characters of an unexpected error's message
NO_PLUGINS = {"mixmark", "", *sys.stdlib_module_names}  # packages that hold no plugin
Result = TypeVar("Result")


def call_within(seconds: float, call: Callable[[], Result], what: str) -> Result:
    """Returns the call's result, or raises its error. The call runs in a thread of its own.

    Raises TimeoutError, which begins with `what`, if the call takes longer. Its thread then goes on, and does not keep
    the program alive.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        ended.set()

    ended = threading.Event()
    threading.Thread(target=work, name="plugin call", daemon=True).start()
    clock.wait(ended, seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"{what} took longer than {seconds:g} s")
    return results[0]


def error_text(error: BaseException) -> str:
    """An error's message, with its hint if it is a MixmarkError and else with its type."""
    hint = getattr(error, "hint", "")
    message = str(error) if isinstance(error, MixmarkError) else f"{type(error).__name__}: {error}"
    return plain(f"{message}; {hint}" if hint else message, MAX_REASON)


def error_with_line(error: BaseException) -> str:
    """An unexpected error's type, its message and the plugin's line that it passed through.

    As in `ValueError: no device (acme.py, line 12)`.
    """
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    line = _plugin_line(error)
    return f"{message[:MAX_MESSAGE]} ({line})" if line else message[:MAX_MESSAGE]


def _plugin_line(error: BaseException) -> str | None:
    """The deepest line of the plugin that was called first; None if no plugin was called.

    The line of a library that the plugin calls would help the plugin's author less. A suite's loop runs an adapter's
    session, so a suite counts only if no other plugin was called.
    """
    frames = [(_package(frame.f_globals), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    called = [package for package, _, _ in frames if package not in NO_PLUGINS]
    first = next((package for package in called if package != "suites"), "suites")
    lines = [
        f"{Path(frame.f_code.co_filename).name}, line {line}" for package, frame, line in frames if package == first
    ]
    return lines[-1] if lines else None


def _package(module: Mapping[str, object]) -> str:
    """The top-level package of a module's globals; `adapters` or `suites` for the built-in plugins."""
    name = str(module.get("__name__", ""))
    built_in = re.match(r"mixmark\.(?:harness\.)?(adapters|suites)\.", name)
    return built_in[1] if built_in else name.partition(".")[0]
