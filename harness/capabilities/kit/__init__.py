"""The conformance kit: checks whether an adapter, a meter or a suite keeps to its contract, on this machine.

`adapter`, `meter` and `suite` hold the checks, `adapter_trials` makes the measurements that the checks of an adapter
look at, `report` holds the results. They are imported when a kit is called, since plugins import this module through
`mixmark`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixmark.harness.capabilities.kit.report import Report

TIMEOUT_S = 60.0  # for a worker's reply at the smoke tier


def check_adapter(
    adapter: str,
    config: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    on_check: Callable[[str], None] = lambda name: None,
) -> Report:
    """Checks an adapter by its name, or as ./acme.py:Acme; `assert report.passed, str(report)` makes a test of it.

    config: the file with the adapter's options and its interpreter; by default mixmark.toml of the current folder.
    timeout_s: how long a worker may be silent. on_check: gets the name of each check before it begins. Raises
    UsageError if there is no such adapter, or its interpreter has no Mixmark of this version.
    """
    from mixmark.harness.capabilities.kit.adapter import report

    return report(adapter, config, timeout_s, on_check)


def check_meter(meter: str, config: Path | None = None, on_check: Callable[[str], None] = lambda name: None) -> Report:
    """Checks a meter by its name, or as ./acme_power.py:AcmePower, against the devices of all adapters that are
    installed; the arguments are as in `check_adapter`."""
    from mixmark.harness.capabilities.kit.meter import report

    return report(meter, config, on_check)


def check_suite(suite: str, config: Path | None = None, on_check: Callable[[str], None] = lambda name: None) -> Report:
    """Checks a suite by its name, or as ./acme.py:Acme, at the smoke tier with torch; the arguments are as in
    `check_adapter`. The suite's code runs in this process."""
    from mixmark.harness.capabilities.kit.suite import report

    return report(suite, config, on_check)
