"""The command `mixmark adapters`, which lists the adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mixmark.harness.cli.options import ADAPTER, CONFIG, JSON, SectionedGroup, refuse_before_subcommand
from mixmark.harness.cli.printing import print_absent, print_json, print_table
from mixmark.harness.contracts.text import plain


@click.group(cls=SectionedGroup, invoke_without_command=True)
@ADAPTER
@CONFIG
@JSON
@click.pass_context
def adapters(context: click.Context, adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the adapters, where each was installed from and which devices it reaches.

    If an adapter that was named by --adapter fails before it lists its devices, the exit code is 1.

    Example: mixmark adapters --adapter ./acme.py:Acme
    """
    if context.invoked_subcommand:
        refuse_before_subcommand(context)
        return
    from mixmark.harness.machine import config as configuration
    from mixmark.harness.machine import setup

    configured = configuration.load(config)
    chosen = setup.choose_adapters(adapters, configured)
    found = setup.find_devices(adapters, configured)
    failed = bool(adapters) and not chosen.keys() <= found.environments.keys()
    listed: list[dict[str, Any]] = [
        {
            "name": plugin.name,
            "spec": plugin.spec or (environment.spec if environment else ""),
            "origin": environment.origin if environment else plugin.origin,
            "python": configured.adapter(plugin.name).python,
            "options": dict(configured.adapter(plugin.name).options),
            "devices": [target.device.id for target in found.targets if target.adapter == plugin.name],
            "environment": environment.model_dump(mode="json") if environment else None,
        }
        for plugin in chosen.values()
        for environment in (found.environments.get(plugin.name),)
    ]
    if as_json:
        print_json({"adapters": listed, "absent": [source.model_dump() for source in found.absent]})
        context.exit(int(failed))
    rows = [
        [plain(row[key]) or "–" for key in ("name", "origin", "spec")] + [", ".join(row["devices"]) or "–"]
        for row in listed
    ]
    print_table(("adapter", "installed from", "class", "devices"), rows, "There is no adapter.")
    print_absent(found.absent)
    context.exit(int(failed))
