"""The commands that show what this machine has: devices, suites, adapters, meters, doctor. They measure no suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.options import ADAPTER, CONFIG, JSON
from harness.cli.tables import plugins_print_to_stderr, print_absent, print_json, print_table
from harness.errors import MixmarkError
from harness.text import plain

if TYPE_CHECKING:
    from harness.metering import Live

LIVE_S = 5.0
SHORT = {"window too short", "short window"}  # true of every source that is read for LIVE_S, so not worth a word


@click.command()
@ADAPTER
@CONFIG
@JSON
def devices(adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the devices of this machine and the adapters that reach them, and say why the others reach none.

    Example: mixmark devices --json
    """
    from harness import config as configuration
    from harness import setup

    found = setup.look(adapters, configuration.load(config))
    if as_json:
        print_json(
            {
                "devices": [device.model_dump(mode="json") for device in found.devices],
                "routes": [
                    {"device": way.device.id, "adapter": way.adapter, "precisions": list(way.device.precisions)}
                    for way in found.ways
                ],
                "absent": [each.model_dump() for each in found.absent],
            }
        )
        return
    rows = []
    for device in found.devices:
        routes = [
            f"{way.adapter} ({', '.join(way.device.precisions)})" for way in found.ways if way.device.id == device.id
        ]
        memory = "–" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GiB ({device.memory_pool})"
        rows.append((device.id, device.kind, plain(device.name), memory, "\n".join(routes)))
    head = ("device", "kind", "name", "memory (pool)", "adapters (precisions)")
    print_table(head, rows, "No adapter reaches a device of this machine.")
    print_absent(found.absent)


@click.command()
@JSON
def suites(as_json: bool) -> None:
    """List the suites with their unit of work, scenarios and tiers.

    Example: mixmark suites
    """
    from harness import plugins
    from harness.schema import Absent

    listed, absent = [], []
    for plugin in plugins.find("suites").values():
        try:
            suite = plugin.load()
        except MixmarkError as error:
            absent.append(Absent(kind="suite", name=plugin.name, reason=str(error)))
            continue
        listed.append(
            {
                "name": plugin.name,
                "version": suite.version,
                "unit": suite.unit,
                "scenarios": list(suite.scenarios),
                "tiers": _tiers(suite),
                "what": (suite.__doc__ or "").strip().splitlines()[0] if suite.__doc__ else "",
                "origin": plugin.origin,
            }
        )
    if as_json:
        print_json({"suites": listed, "absent": [each.model_dump() for each in absent]})
        return
    rows = [
        (each["name"], each["unit"], ", ".join(each["scenarios"]), ", ".join(each["tiers"]), each["what"])
        for each in listed
    ]
    head = ("suite", "unit of work", "scenarios (native first)", "tiers", "what it computes")
    print_table(head, rows, "There is no suite.")
    print_absent(absent)


@click.command()
@ADAPTER
@CONFIG
@JSON
def adapters(adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the adapters, where each was installed from and which devices it reaches.

    Example: mixmark adapters --adapter ./acme.py:Acme
    """
    from harness import config as configuration
    from harness import setup

    configured = configuration.load(config)
    found = setup.look(adapters, configured)
    listed: list[dict[str, Any]] = [
        {
            "name": plugin.name,
            "spec": plugin.spec or (environment.spec if environment else ""),
            "origin": environment.origin if environment else plugin.origin,
            "python": configured.adapter(plugin.name).python,
            "options": dict(configured.adapter(plugin.name).options),
            "devices": [way.device.id for way in found.ways if way.adapter == plugin.name],
            "environment": environment.model_dump(mode="json") if environment else None,
        }
        for plugin in setup.choose(adapters, configured).values()
        for environment in (found.environments.get(plugin.name),)
    ]
    if as_json:
        print_json({"adapters": listed, "absent": [each.model_dump() for each in found.absent]})
        return
    rows = [
        [plain(each[key]) or "–" for key in ("name", "origin", "spec")] + [", ".join(each["devices"]) or "–"]
        for each in listed
    ]
    print_table(("adapter", "installed from", "class", "devices"), rows, "There is no adapter.")
    print_absent(found.absent)


@click.command()
@ADAPTER
@CONFIG
@JSON
def meters(adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the energy sources of this machine, what each covers and reads now, and how to enable the others.

    The sources are read for five seconds. The update period and the resolution are those seen in that time. Sources
    marked as counted add up to the energy of a run.

    Example: mixmark meters
    """
    from harness import config as configuration
    from harness import metering, setup
    from harness.judge.energy.cover import antichain, rivals, unmetered
    from harness.judge.energy.total import CLAIM
    from harness.schema import Absent

    configured = configuration.load(config)
    asked = setup.look(adapters, configured).devices
    with plugins_print_to_stderr(), setup.metered(asked, adapters, configured) as found:
        seen = metering.live(found, LIVE_S)
    unasked = [
        Absent(kind="meter", name=name, reason=f"it is read only if mixmark.toml has a section [meter.{name}]")
        for name in found.unasked
    ]
    missing = (*found.absent, *unasked)
    readable = {
        each.domain.id for each in seen if each.domain.method != "modelled" and SHORT.issuperset(each.reading.reasons)
    }
    usable = [each.domain for each in seen if each.domain.id in readable]
    chosen = antichain(found.domains, readable, found.devices)
    missed = unmetered(chosen, found.devices, found.absent)
    claims = [CLAIM.format(one=one.id, other=other.id) for one, other in rivals(usable)]
    boundary = chosen[0].boundary if chosen and not missed and not claims else None
    if as_json:
        told = [
            {
                **each.domain.model_dump(mode="json"),
                "reads": each.reads,
                "period_ns": each.reading.period_ns,
                "resolution": each.resolution,
                "watts": each.watts,
                "reasons": list(each.reading.reasons),
                "added": each.domain in chosen,
                "lost": each.lost,
            }
            for each in seen
        ]
        absent = [each.model_dump() for each in missing]
        print_json({"domains": told, "boundary": boundary, "unmetered": list(missed), "absent": absent})
        return
    head = ("energy source", "covers", "boundary", "method", "update period", "resolution", "power now", "status")
    rows = [_source_row(each, each.domain in chosen) for each in seen]
    print_table(head, rows, "There is no energy source: no meter can read anything on this machine.")
    if boundary:
        click.echo(f"\nA run on this machine reports its energy with the boundary {boundary}.")
    elif rows:
        click.echo("\nA run on this machine reports no efficiency.")
    for each in seen:
        if each.lost:
            click.echo(f"{each.domain.id} could not be read any more: {each.lost}")
    for claim in claims:
        click.echo(claim)
    if missed:
        click.echo(f"No energy source covers: {', '.join(missed)}")
    print_absent(missing)


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """List what would disturb a measurement on this machine, and the command that fixes it. Nothing is changed.

    Example: mixmark doctor
    """
    from dataclasses import asdict

    from harness import doctor as physician

    with plugins_print_to_stderr():
        checks = physician.checks()
    if as_json:
        print_json({"checks": [asdict(check) for check in checks]})
        return
    marks = {"ok": "ok", "warn": "WARN", "unknown": "?"}
    rows = [
        (marks[check.state], check.name, check.message + (f"\n  {check.fix}" if check.fix else "")) for check in checks
    ]
    print_table(("state", "check", "what was found, and how to fix it"), rows, "There is nothing to check.")


def _source_row(source: Live, counted: bool) -> tuple[str, ...]:
    domain, reading = source.domain, source.reading
    unit = "J" if domain.quantity == "energy" else "W"
    trouble = ", ".join(reason for reason in reading.reasons if reason not in SHORT)
    return (
        domain.id,
        ", ".join(domain.covers),
        domain.boundary,
        domain.method,
        "–" if reading.period_ns is None else f"{reading.period_ns / 1e6:,.0f} ms",
        "–" if source.resolution is None else f"{source.resolution:.3g} {unit}",
        "–" if source.watts is None else f"{source.watts:,.1f} W",
        trouble or ("counted" if counted else ""),
    )


def _tiers(suite: Any) -> list[str]:
    from typing import get_args

    from harness.errors import Unsupported
    from harness.schema import Tier

    tiers = []
    for tier in get_args(Tier):
        try:
            suite(tier, {})
        except Unsupported:
            continue
        tiers.append(tier)
    return tiers
