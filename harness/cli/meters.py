"""The commands about meters: `mixmark meters` lists the energy sources and what they read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli import complete
from mixmark.harness.cli.conformance import OUT, shown
from mixmark.harness.cli.options import ADAPTER, CONFIG, JSON, WAIT_IDLE, refuse_before_subcommand
from mixmark.harness.cli.sections import SectionedGroup
from mixmark.harness.cli.tables import plugins_print_to_stderr, print_absent, print_json, print_table
from mixmark.harness.contracts.numbers import significant

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Absent
    from mixmark.harness.measure.metering import LiveReading

LIVE_S = 5.0
SHORT = {"window too short", "short window"}  # true of every source that is read for LIVE_S, so not worth a word


@click.group(cls=SectionedGroup, invoke_without_command=True)
@ADAPTER
@CONFIG
@JSON
@click.pass_context
def meters(context: click.Context, adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the energy sources of this machine, what each covers and reads now, and how to enable the others.

    The sources are read for five seconds. The update period and the resolution are those seen in that time. Sources
    marked as counted add up to the energy of a run.

    Example: mixmark meters
    """
    if context.invoked_subcommand:
        refuse_before_subcommand(context)
        return
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.discover import setup
    from mixmark.harness.judge.energy.coverage import antichain, rivals, unmetered
    from mixmark.harness.judge.energy.total import CLAIM
    from mixmark.harness.measure import metering
    from mixmark.harness.measure.metering import metered

    configured = configuration.load(config)
    devices = setup.find_devices(adapters, configured).devices
    with plugins_print_to_stderr(), metered(devices, adapters, configured) as found:
        seen = metering.live(found, LIVE_S)
    missing = (*found.absent, *map(_unconfigured, found.unconfigured))
    readable = {
        live.domain.id for live in seen if live.domain.method != "modelled" and SHORT.issuperset(live.reading.reasons)
    }
    chosen = antichain(found.domains, readable, found.devices)
    unread = unmetered(chosen, found.devices, found.absent)
    overlaps = rivals([live.domain for live in seen if live.domain.id in readable])
    claims = [CLAIM.format(one=first.id, other=second.id) for first, second in overlaps]
    boundary = chosen[0].boundary if chosen and not unread and not claims else None
    if as_json:
        domains = [_described(live, live.domain in chosen) for live in seen]
        absent = [source.model_dump() for source in missing]
        print_json({"domains": domains, "boundary": boundary, "unmetered": list(unread), "absent": absent})
        return
    head = ("energy source", "covers", "boundary", "method", "update period", "resolution", "power now", "status")
    rows = [_source_row(live, live.domain in chosen) for live in seen]
    print_table(head, rows, "There is no energy source: no meter can read anything on this machine.")
    if boundary:
        click.echo(f"\nA run on this machine reports its energy with the boundary {boundary}.")
    elif rows:
        click.echo("\nA run on this machine reports no efficiency.")
    for live in seen:
        if live.lost:
            click.echo(f"{live.domain.id} could not be read any more: {live.lost}")
    for claim in claims:
        click.echo(claim)
    if unread:
        click.echo(f"No energy source covers: {', '.join(unread)}")
    print_absent(missing)


def _unconfigured(name: str) -> Absent:
    from mixmark.harness.contracts.schema import Absent

    return Absent(kind="meter", name=name, reason=f"it is read only if mixmark.toml has a section [meter.{name}]")


def _described(live: LiveReading, counted: bool) -> dict[str, Any]:
    return {
        **live.domain.model_dump(mode="json"),
        "reads": live.reads,
        "period_ns": live.reading.period_ns,
        "resolution": live.resolution,
        "watts": live.watts,
        "reasons": list(live.reading.reasons),
        "added": counted,
        "lost": live.lost,
    }


@meters.command()
@click.argument("name", metavar="NAME|FILE:CLASS", shell_complete=complete.METER)
@OUT
@WAIT_IDLE
@CONFIG
@JSON
def check(name: str, out: Path | None, wait_idle_s: float | None, config: Path | None, as_json: bool) -> None:
    """Check whether a meter keeps to its contract, by reading it at rest and while all CPUs are busy.

    Each check is described in docs/vendors/conformance.md. The exit code is 1 if any of them failed.

    Example: mixmark meters check ./acme_power.py:AcmePower
    """
    import sys

    from mixmark.harness.cli.machine_lock import reserve
    from mixmark.harness.measure.conformance import check_meter

    with reserve(Path.cwd(), "smoke", wait_idle_s):
        code = shown(lambda on_check: check_meter(name, config, on_check), out, as_json)
    sys.exit(code)


def _source_row(source: LiveReading, counted: bool) -> tuple[str, ...]:
    domain, reading = source.domain, source.reading
    unit = "J" if domain.quantity == "energy" else "W"
    trouble = ", ".join(reason for reason in reading.reasons if reason not in SHORT)
    return (
        domain.id,
        ", ".join(domain.covers),
        domain.boundary,
        domain.method,
        "–" if reading.period_ns is None else f"{reading.period_ns / 1e6:,.0f} ms",
        "–" if source.resolution is None else f"{significant(source.resolution)} {unit}",
        "–" if source.watts is None else f"{significant(source.watts)} W",
        trouble or ("counted" if counted else ""),
    )
