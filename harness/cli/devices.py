"""The commands that show what this machine has: devices, suites. They measure no suite."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli.options import ADAPTER, CONFIG, JSON
from mixmark.harness.cli.printing import print_absent, print_json, print_table
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.numbers import gibibytes
from mixmark.harness.contracts.text import plain
from mixmark.harness.plugins.options import chosen_machines, of_machines

if TYPE_CHECKING:
    from mixmark.harness.plugins.registry import Plugin
    from mixmark.harness.worker.plugin_process import SuiteSource


@click.command()
@ADAPTER
@CONFIG
@JSON
@click.pass_context
def devices(
    context: click.Context, /, adapters: tuple[str, ...], config: Path | None, as_json: bool, **options: Any
) -> None:
    """List the devices of this machine and the adapters that reach them, and say why the others reach none.

    If an adapter that was named by --adapter fails before it lists its devices, the exit code is 1.

    \b
    Examples: mixmark devices
              mixmark devices --adapter ./acme.py:Acme
    """
    from mixmark.harness.machine import config as configuration
    from mixmark.harness.machine import setup

    if machines := chosen_machines(options):
        with ExitStack() as stack:
            found = machines.find_devices(adapters, stack)
    else:
        found = setup.find_devices(adapters, configuration.load(config))
    failed = len({*adapters}) > len(found.environments)
    if as_json:
        print_json(
            {
                "devices": [device.model_dump(mode="json") for device in found.devices],
                "routes": [
                    {
                        "device": target.device.id,
                        "adapter": target.adapter,
                        "precisions": list(target.device.precisions),
                        "precisions_by_suite": target.device.precisions_by_suite,
                    }
                    for target in found.targets
                ],
                "adapters": {name: each.model_dump(mode="json") for name, each in found.environments.items()},
                "absent": [source.model_dump() for source in found.absent],
            }
        )
        context.exit(int(failed))
    rows = []
    for device in found.devices:
        routes = [
            f"{target.adapter} ({', '.join(target.device.precisions)})"
            for target in found.targets
            if target.device.id == device.id
        ]
        memory = "–" if device.memory_bytes is None else f"{gibibytes(device.memory_bytes)} ({device.memory_pool})"
        rows.append((device.id, device.kind, plain(device.name), memory, "\n".join(routes)))
    head = ("device", "kind", "name", "memory (pool)", "adapters (precisions)")
    print_table(head, rows, "No adapter reaches a device of this machine.")
    print_absent(found.absent)
    context.exit(int(failed))


devices.params += of_machines()


@click.command()
@JSON
def suites(as_json: bool) -> None:
    """List the suites with their unit of work, scenarios and tiers.

    Example: mixmark suites
    """
    from mixmark.harness.contracts.schema import Absent
    from mixmark.harness.plugins import registry
    from mixmark.harness.worker.plugin_process import suite_of

    listed: list[dict[str, Any]] = []
    absent = []
    for plugin in registry.find("suites").values():
        try:
            suite = suite_of(plugin)
            described = suite.describe()
        except MixmarkError as error:
            absent.append(Absent(kind="suite", name=plugin.name, reason=str(error)))
            continue
        listed.append(
            {
                "name": plugin.name,
                "version": described.version,
                "unit": described.unit,
                "scenarios": list(described.scenarios),
                "tiers": _tiers(plugin, suite),
                "what": described.summary,
                "origin": plugin.origin,
            }
        )
    if as_json:
        print_json({"suites": listed, "absent": [source.model_dump() for source in absent]})
        return
    rows = [
        (row["name"], row["unit"], ", ".join(row["scenarios"]), ", ".join(row["tiers"]), row["what"]) for row in listed
    ]
    head = ("suite", "unit of work", "scenarios (native first)", "tiers", "what it computes")
    print_table(head, rows, "There is no suite.")
    print_absent(absent)


def _tiers(plugin: Plugin, suite: SuiteSource) -> list[str]:
    from typing import get_args

    from mixmark.harness.contracts.errors import Unsupported
    from mixmark.harness.contracts.schema import Tier
    from mixmark.harness.worker.messages import SuiteChoice

    tiers = []
    for tier in get_args(Tier):
        try:
            suite.build(SuiteChoice(name=plugin.name, spec=plugin.spec, tier=tier))
        except Unsupported:
            continue
        tiers.append(tier)
    return tiers
