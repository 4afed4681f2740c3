"""The command `mixmark meters`: the energy sources, what they read, and how they follow a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli.machine_lock import reserve
from mixmark.harness.cli.options import ADAPTER, CONFIG, JSON, Placed, Seconds
from mixmark.harness.cli.printing import plugins_print_to_stderr, print_absent, print_json, print_table
from mixmark.harness.contracts.numbers import duration, significant

if TYPE_CHECKING:
    from mixmark.harness.capabilities.meter_trial.trial import LiveReading, MeterTrial
    from mixmark.harness.contracts.schema import Absent

LIVE_S = 5.0
CHART = 60  # columns of a source's chart
BARS = " ▁▂▃▄▅▆▇█"


@click.command(cls=Placed, section="Look at this machine")
@click.option(
    "--load",
    "load_s",
    type=Seconds(min=2),
    metavar="SECONDS",
    help="Also load all CPUs for this long between two idle stretches as long, and show for each source whether it "
    "follows, how late, how much it scatters, and whether two sources agree.",
)
@ADAPTER
@CONFIG
@JSON
def meters(load_s: float | None, adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the energy sources of this machine, what each covers and reads now, and how to enable the others.

    The sources are read for five seconds. The update period and the resolution are those seen in that time. Sources
    marked as counted add up to the energy of a run.

    \b
    Examples: mixmark meters
              mixmark meters --load 10
    """
    from mixmark.harness.capabilities.meter_trial import trial as meter_trial
    from mixmark.harness.judge.energy.coverage import antichain, needed, rivals, unmetered
    from mixmark.harness.judge.energy.reading import SHORT_WINDOWS
    from mixmark.harness.judge.energy.total import CLAIM
    from mixmark.harness.machine import config as configuration
    from mixmark.harness.machine import setup
    from mixmark.harness.measure.metering import metered

    configured = configuration.load(config)
    devices = setup.find_devices(adapters, configured).devices
    with ExitStack() as stack:
        if load_s:
            stack.enter_context(reserve(Path.cwd(), "smoke", None))
        stack.enter_context(plugins_print_to_stderr())
        found = stack.enter_context(metered(devices, adapters, configured))
        seen = meter_trial.live(found, LIVE_S)
        if load_s and found.domains:
            click.echo(f"Idle, all CPUs busy, idle: three times {load_s:g} seconds …", err=True)
        tried, busy = meter_trial.trials(found, load_s, CHART) if load_s else ((), None)
    missing = (*found.absent, *map(_unconfigured, found.unconfigured))
    readable = {
        live.domain.id
        for live in seen
        if live.domain.method != "modelled" and SHORT_WINDOWS.issuperset(live.reading.reasons)
    }
    parts = needed(found.devices)
    chosen = antichain(found.domains, readable, parts)
    unread = unmetered(chosen, parts, found.absent)
    overlaps = rivals([live.domain for live in seen if live.domain.id in readable])
    claims = [CLAIM.format(one=first.id, other=second.id) for first, second in overlaps]
    boundary = chosen[0].boundary if chosen and not unread and not claims else None
    if as_json:
        domains = [_described(live, live.domain in chosen) for live in seen]
        absent = [source.model_dump() for source in missing]
        found_out = {"domains": domains, "boundary": boundary, "unmetered": list(unread), "absent": absent}
        trial = {"tried": [_tried_as_json(each) for each in tried], "busy": busy and str(busy)}
        print_json(found_out | (trial if load_s else {}))
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
    if busy:
        click.echo(
            f"\nThis machine was busy while it should have been idle: other programs used {busy}. End them and try "
            "again: idle power, scatter and lag below are not the meter's alone."
        )
    for each in tried:
        click.echo("\n".join(_tried(each)))
    for line in _disagreements(tried):
        click.echo(line)


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


def _tried_as_json(each: MeterTrial) -> dict[str, Any]:
    return {"domain": each.domain.id, **asdict(each.response), "period_ns": each.period_ns, "lost": each.lost}


def _tried(each: MeterTrial) -> Iterator[str]:
    """A source in a few lines, with a chart of its power."""
    found = each.response
    yield f"\n{each.domain.id} ({each.domain.boundary}), covers {', '.join(each.domain.covers)}"
    if each.lost:
        yield f"  lost: {each.lost}"
    if found.idle_watts is None or found.full_watts is None or found.noise_watts is None:
        yield "  gave too few values"
        return
    highest = max(watts for watts in found.watts if watts is not None) or 1.0
    bars = ("·" if watts is None else BARS[round(max(0.0, watts) / highest * (len(BARS) - 1))] for watts in found.watts)
    yield f"  {''.join(bars)}  0 to {significant(highest)} W"
    period = "never seen to change" if each.period_ns is None else f"a new value each {duration(each.period_ns)}"
    yield (
        f"  idle {significant(found.idle_watts)} W, busy {significant(found.full_watts)} W, scatter "
        f"{significant(found.noise_watts)} W, {period}"
    )
    if found.lag_ns is None:
        yield "  it did not clearly follow the load"
    else:
        how = "late" if found.lag_ns >= 0 else "early"
        yield f"  it follows the load {duration(abs(found.lag_ns))} {how}"


def _disagreements(tried: Sequence[MeterTrial]) -> Iterator[str]:
    """How the sources of one boundary and the same parts disagree."""
    known = [each for each in tried if each.response.full_watts is not None and each.response.idle_watts is not None]
    for first, second in combinations(known, 2):
        if first.domain.boundary == second.domain.boundary and set(first.domain.covers) == set(second.domain.covers):
            ratio = (second.response.full_watts or 0.0) / (first.response.full_watts or 1.0)
            yield f"{second.domain.id} reads {significant(ratio)} × the watts of {first.domain.id} under load."


def _source_row(source: LiveReading, counted: bool) -> tuple[str, ...]:
    from mixmark.harness.judge.energy.reading import SHORT_WINDOWS

    domain, reading = source.domain, source.reading
    unit = "J" if domain.quantity == "energy" else "W"
    # The sources are read for LIVE_S, so a short window is not worth a word.
    trouble = ", ".join(reason for reason in reading.reasons if reason not in SHORT_WINDOWS)
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
