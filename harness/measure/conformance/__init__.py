"""The conformance kit: checks whether an adapter or a meter keeps to its contract, on this machine.

`adapter` and `meter` list the checks, `trials` and `readings` make the measurements that they look at, `report` holds
the verdicts. They are imported when a kit is called, since plugins import this module through `mixmark`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Device
    from mixmark.harness.measure.conformance.report import Report, Verdict

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
    import tempfile

    from mixmark.harness.contracts.errors import UsageError
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.discover import setup
    from mixmark.harness.measure.conformance.adapter import CHECKS
    from mixmark.harness.measure.conformance.report import NotChecked, verdicts
    from mixmark.harness.measure.conformance.trials import Trials
    from mixmark.harness.worker.failures import NotStarted, WorkerFailed

    configured = configuration.load(config)
    (plugin,) = setup.choose_adapters([adapter], configured).values()
    with tempfile.TemporaryDirectory(prefix="mixmark-") as folder:
        suites = setup.load_suites(configured, "smoke")
        tried = Trials(plugin, configured, suites, Path(folder) / "kit", timeout_s)
        try:
            _ = tried.discoveries
        except NotStarted as failed:
            raise UsageError(failed.failure.message, failed.failure.hint) from failed
        except WorkerFailed:
            pass  # the first check reports it
        found = verdicts(CHECKS, tried, on_check)
        try:
            environment, devices = tried.discoveries[0].environment, tried.devices
            source = environment.origin, environment.source, environment.sha256
        except (NotChecked, WorkerFailed):
            source, devices = (plugin.origin, "", ""), ()
    return _report("adapter", plugin.name, source, devices, found)


def check_meter(
    meter: str,
    config: Path | None = None,
    on_check: Callable[[str], None] = lambda name: None,
) -> Report:
    """Checks a meter by its name, or as ./acme_power.py:AcmePower, against the devices of all adapters that are
    installed; the arguments are those of `check_adapter`."""
    from mixmark.harness.contracts.choices import choose_by_name
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.discover import setup
    from mixmark.harness.measure.conformance.meter import CHECKS
    from mixmark.harness.measure.conformance.readings import Readings
    from mixmark.harness.measure.conformance.report import verdicts
    from mixmark.harness.plugins import registry

    configured = configuration.load(config)
    found = registry.find("meters", [meter] if registry.is_spec(meter) else [])
    (name,) = choose_by_name("meter", [registry.name_of_spec(meter) if registry.is_spec(meter) else meter], found)
    devices = setup.find_devices((), configured).devices
    told = verdicts(CHECKS, Readings(found[name], configured, devices), on_check)
    source, sha256 = registry.source_hash(found[name])
    return _report("meter", name, (found[name].origin, source, sha256), devices, told)


def _report(
    kind: Literal["adapter", "meter"],
    name: str,
    source: tuple[str, str, str],
    devices: Sequence[Device],
    verdicts: tuple[Verdict, ...],
) -> Report:
    """source: the origin of the plugin, the file its code was read from, and the SHA-256 of that file."""
    from datetime import UTC, datetime

    from mixmark.harness import VERSION
    from mixmark.harness.measure.conformance.report import Report

    origin, code, sha256 = source
    return Report(
        kind=kind,
        name=name,
        origin=origin,
        source=code,
        sha256=sha256,
        mixmark=VERSION,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        devices=tuple(devices),
        verdicts=verdicts,
    )
