"""The command line. Everything heavy is imported inside the commands: `mixmark --help` must answer at once.

Exit codes: 0 all went well (notes and warnings too), 1 an invalid finding or nothing was measured, 2 misuse,
130 interrupted.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import MixmarkError
from harness.text import escaped, plain

if TYPE_CHECKING:
    from harness.config import Config
    from harness.metering import Meters
    from harness.run import Equipment
    from harness.schema import Device, Mix, Result, Tier
    from harness.store import Store

LIVE_S = 5.0
FREE_DISK_BYTES = 1 << 30  # results are small; an engine may lay weights on disk while it loads
CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help="Configuration file.  [default: mixmark.toml, where there is one]"
)
ADAPTER = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    metavar="NAME|FILE:CLASS",
    help="Use only these adapters; ./acme.py:Acme brings one along. Repeatable.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


class Commands(click.Group):
    """Turns every expected failure into one message with its next step and exit code 2."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except MixmarkError as error:
            click.echo(f"mixmark: {plain(str(error))}", err=True)
            if error.hint:
                click.echo(f"         {plain(error.hint)}", err=True)
            context.exit(2)
        except BrokenPipeError:  # the reader of our output went away
            sys.stderr.close()
            context.exit(0)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="mixmark", prog_name="mixmark")
def main() -> None:
    """How much useful AI work does this whole machine get done?

    \b
      mixmark devices            what is here, and by which routes
      mixmark run                benchmark it: all devices, all suites
      mixmark report results/X   show a result again
    """


@main.command()
@ADAPTER
@CONFIG
@JSON
def devices(adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Show the devices, the routes to them, and why something is absent.

    Example: mixmark devices --json
    """
    from harness import config as configuration
    from harness import setup

    found = setup.look(adapters, configuration.load(config))
    if as_json:
        _print_json(
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
        memory = "–" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GiB {device.memory_pool}"
        rows.append((device.id, device.kind, plain(device.name), memory, "\n".join(routes)))
    _print_table(("device", "kind", "name", "memory", "routes"), rows, "no device: no adapter reaches one here")
    _print_absent(found.absent)


@main.command()
@JSON
def suites(as_json: bool) -> None:
    """Show the suites: what each runs, its unit, scenarios and tiers.

    Example: mixmark suites
    """
    from harness import plugins
    from harness.schema import Absent

    listed, absent = [], []
    for plugin in plugins.find("suites").values():
        try:
            suite = plugin.load()
        except MixmarkError as error:
            absent.append(Absent(what=f"suite {plugin.name}", reason=str(error)))
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
        _print_json({"suites": listed, "absent": [each.model_dump() for each in absent]})
        return
    rows = [
        (each["name"], each["unit"], ", ".join(each["scenarios"]), ", ".join(each["tiers"]), each["what"])
        for each in listed
    ]
    _print_table(("suite", "unit", "scenarios, native first", "tiers", "what"), rows, "no suite")
    _print_absent(absent)


@main.command()
@ADAPTER
@CONFIG
@JSON
def adapters(adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Show the adapters: where each comes from, what it reaches, or why it does not work.

    Example: mixmark adapters --adapter ./acme.py:Acme
    """
    from harness import config as configuration
    from harness import setup

    configured = configuration.load(config)
    found = setup.look(adapters, configured)
    listed = [
        {
            "name": plugin.name,
            "spec": plugin.spec,
            "origin": plugin.origin,
            "python": configured.adapter(plugin.name).python,
            "options": dict(configured.adapter(plugin.name).options),
            "devices": [way.device.id for way in found.ways if way.adapter == plugin.name],
        }
        for plugin in setup.choose(adapters).values()
    ]
    if as_json:
        _print_json({"adapters": listed, "absent": [each.model_dump() for each in found.absent]})
        return
    rows = [(each["name"], each["origin"], each["spec"], ", ".join(each["devices"]) or "–") for each in listed]
    _print_table(("adapter", "from", "plugin", "devices"), rows, "no adapter")
    _print_absent(found.absent)


@main.command()
@ADAPTER
@CONFIG
@JSON
def meters(adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Show the sources of energy readings, what each covers and says now, and what would make missing ones readable.

    It reads for five seconds: the period is the time between updates that were seen, the step the smallest change.

    Example: mixmark meters
    """
    from harness import config as configuration
    from harness import metering, setup
    from harness.judge import energy
    from harness.schema import Absent

    configured = configuration.load(config)
    asked = setup.look(adapters, configured).devices
    with _plugins_print_to_stderr(), _metered(asked, adapters, configured) as found:
        seen = metering.live(found, LIVE_S)
    missing = [
        *found.absent,
        *(Absent(what=f"meter {name}", reason=f"[meter.{name}] in mixmark.toml has it read") for name in found.unasked),
    ]
    short = {"window too short", "short window"}
    readable = {
        each.domain.id for each in seen if each.domain.method != "modelled" and short.issuperset(each.reading.reasons)
    }
    chosen = energy.antichain(found.domains, readable, found.devices)
    unmetered = energy.uncovered(chosen, found.devices)
    boundary = chosen[0].boundary if chosen and not unmetered else None
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
        _print_json({"domains": told, "boundary": boundary, "unmetered": list(unmetered), "absent": absent})
        return
    rows = []
    for each in seen:
        unit = "J" if each.domain.quantity == "energy" else "W"
        period_ns, step = each.reading.period_ns, each.resolution
        trouble = ", ".join(reason for reason in each.reading.reasons if reason not in short)
        rows.append(
            (
                each.domain.id,
                ", ".join(each.domain.covers),
                each.domain.boundary,
                each.domain.method,
                "–" if period_ns is None else f"{period_ns / 1e6:,.0f} ms",
                "–" if step is None else f"{step:.3g} {unit}",
                "–" if each.watts is None else f"{each.watts:,.1f} W",
                trouble or ("added" if each.domain in chosen else ""),
            )
        )
    _print_table(
        ("domain", "covers", "boundary", "method", "period", "step", "now", ""),
        rows,
        "no meter: nothing here is metered",
    )
    if rows:
        click.echo(f"\na run here has energy of class {boundary}" if boundary else "\na run here has no efficiency")
    for each in seen:
        if each.lost:
            click.echo(f"{each.domain.id} was lost: {each.lost}")
    if unmetered:
        click.echo(f"not metered: {', '.join(unmetered)}")
    _print_absent(missing)


@main.command()
@click.option("--suite", "suites", multiple=True, metavar="NAME", help="Run only these suites. Repeatable.")
@click.option("--device", "devices", multiple=True, metavar="ID", help="Use only these devices. Repeatable.")
@ADAPTER
@click.option(
    "--tier",
    type=click.Choice(["smoke", "edge", "server"]),
    default="edge",
    show_default=True,
    help="Size of the work.",
)
@click.option(
    "--precision", "precisions", multiple=True, metavar="NAME", help="fp32, bf16, …  [default: each device's best]"
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help="single-stream, offline or server.  [default: by preset]",
)
@click.option(
    "--rate", metavar="R|max", help="Of a server: feeds a second, or max for the highest that keeps its latency limits."
)
@click.option(
    "--runs", type=click.IntRange(1, 100), default=1, show_default=True, help="Repetitions, each in fresh processes."
)
@click.option(
    "--preset",
    type=click.Choice(["quick", "standard", "official"]),
    default="quick",
    show_default=True,
    help="quick: each suite's native scenario; standard: all scenarios, 30 s and 3 feeds at least; official: 5 mixes.",
)
@click.option(
    "--mix",
    metavar="NAME|FILE|none",
    help="All suites on all devices at once, in the end.  [default: that of the tier]",
)
@click.option(
    "--objective",
    type=click.Choice(["throughput", "efficiency"]),
    default="throughput",
    show_default=True,
    help="What the mix is planned for.",
)
@click.option("--split-cpu", metavar="N|numa|type", help="Make several devices of the CPU's cores.")
@click.option("--weights", multiple=True, metavar="SUITE=PATH", help="A public checkpoint instead of drawn weights.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Result folder.  [default: results/<time>-<tier>-<preset>]"
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Of the feeds; with a given one a score is only indicative.  [default: drawn now]",
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Go on with an interrupted run.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    help="Seconds until a worker counts as hung.",
)
@CONFIG
@JSON
def run(
    suites: tuple[str, ...],
    devices: tuple[str, ...],
    adapters: tuple[str, ...],
    tier: Any,
    precisions: tuple[Any, ...],
    scenarios: tuple[Any, ...],
    rate: str | None,
    runs: int,
    preset: str,
    mix: str | None,
    objective: Any,
    split_cpu: str | None,
    weights: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    resume: Path | None,
    timeout: float,
    config: Path | None,
    as_json: bool,
) -> None:
    """Benchmark this machine: every suite on every device, by every adapter.

    \b
    Examples: mixmark run
              mixmark run --suite llm --adapter torch --preset standard
    """
    from datetime import UTC, datetime

    from harness import plan, setup, store
    from harness.errors import UsageError
    from harness.pick import pick
    from harness.schema import BITS_PER_WEIGHT

    pick("precision", precisions, BITS_PER_WEIGHT)
    rate_per_s = _rate(rate, scenarios)
    if resume and out:
        raise UsageError("--resume goes on in its own folder", hint="leave --out away")
    before = store.open(resume) if resume else None
    if before and before.finished:
        raise UsageError(f"{resume} is finished", hint="there is nothing to resume; start a new run")
    bench = setup.prepare(adapters, config, weights, split_cpu)
    pick("scenario", scenarios, dict.fromkeys(each for one in bench.workloads for each in one.scenarios))
    workloads, ways = bench.chosen(suites), bench.ways(devices)
    if before and resume:
        bench.check_same(before)
        header, folder = before, resume
    else:
        phases = plan.solo(
            ways, workloads, tier, plan.PRESETS[preset], precisions, scenarios, bench.probe, rate_per_s, runs
        )
        existing = [each.name for each in bench.workloads]
        asked = _mix(mix, tier, [each.name for each in workloads], existing, rate is None)
        header = bench.header(phases, tier, preset, seed, asked, objective)
        folder = out or Path("results") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{tier}-{preset}"
    with _plugins_print_to_stderr(), _metered(header.devices, () if resume else adapters, bench.config) as meters:
        if resume:
            keeper = store.resume(resume)
        else:
            absent = (*header.absent, *meters.absent)
            changes = {"devices": meters.devices, "domains": meters.domains, "absent": absent}
            header = header.model_copy(update=changes)
            keeper = store.create(folder, header, needs_bytes=FREE_DISK_BYTES)
        result = _performed(header, bench.equipment(header.seed, timeout), folder, keeper, meters)
    _show(result, folder, as_json)
    sys.exit(_exit_code(result))


@main.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    default="console",
    show_default=True,
    help="console, json, csv, markdown or html.",
)
@click.option("--baseline", metavar="ID", help="The device that the others are compared with.  [default: the first]")
@JSON
def report(result: Path, format_: str, baseline: str | None, as_json: bool) -> None:
    """Show a result folder again, recomputed from its raw data.

    Example: mixmark report results/20261121-101500-edge-quick --format markdown
    """
    from harness import plugins, store
    from harness.pick import pick

    reporters = plugins.find("reporters")
    (name,) = pick("format", ["json" if as_json else format_], reporters)
    found = store.open(result)
    if baseline is not None:
        (first,) = pick("device", [baseline], [device.id for device in found.devices])
        devices = tuple(sorted(found.devices, key=lambda device: device.id != first))
        found = found.model_copy(update={"devices": devices})
    click.echo(reporters[name].load()(found), nl=False)


@main.command()
@JSON
def doctor(as_json: bool) -> None:
    """Show what would disturb a measurement here, and the command that would stop it. It changes nothing.

    Example: mixmark doctor
    """
    from dataclasses import asdict

    from harness import doctor as physician

    checks = physician.checks()
    if as_json:
        _print_json({"checks": [asdict(check) for check in checks]})
        return
    marks = {"ok": "ok", "warn": "WARN", "unknown": "?"}
    rows = [
        (marks[check.state], check.name, check.message + (f"\n  {check.fix}" if check.fix else "")) for check in checks
    ]
    _print_table(("", "check", "finding, and what changes it"), rows, "nothing to check")


@main.command()
@click.option(
    "--suite", "suites", multiple=True, default=["resnet50"], show_default=True, metavar="NAME", help="Repeatable."
)
@ADAPTER
@click.option("--tier", type=click.Choice(["smoke", "edge", "server"]), default="edge", show_default=True)
@click.option(
    "--pairs", type=click.IntRange(6, 100), default=6, show_default=True, help="Of measurements of the same thing."
)
@click.option("--out", type=click.Path(path_type=Path), help="Result folder.  [default: results/<time>-selftest]")
@CONFIG
@JSON
def selftest(
    suites: tuple[str, ...],
    adapters: tuple[str, ...],
    tier: Any,
    pairs: int,
    out: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure this machine's noise floor: the same thing in pairs, each in a fresh process. compare uses it.

    Example: mixmark selftest --adapter onnxruntime
    """
    from datetime import UTC, datetime

    from harness import compare as comparing
    from harness import noise, plan, setup, store
    from harness.metering import Meters

    bench = setup.prepare(adapters, config)
    phases = plan.solo(
        bench.ways(), bench.chosen(suites), tier, plan.SELFTEST, scenarios=("single-stream",), runs=2 * pairs
    )
    header = bench.header(phases, tier, plan.SELFTEST.name)
    folder = out or Path("results") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-selftest"
    keeper = store.create(folder, header, needs_bytes=FREE_DISK_BYTES)
    with Meters(bench.config, (), {}) as nothing:
        result = _performed(header, bench.equipment(header.seed, 600), folder, keeper, nothing)
    floors = comparing.floors(result)
    known = [floor for floor in floors.values() if floor is not None]
    where = str(noise.keep(max(known), result.created_utc)) if known and result.finished else None
    if as_json:
        _print_json(
            {"noise_floor": max(known, default=None), "by_cell": floors, "kept_in": where, "result": str(folder)}
        )
    else:
        rows = [(cell, "–" if floor is None else f"{floor * 100:.2f} %") for cell, floor in floors.items()]
        _print_table(("cell", "95 % of pairs lie within"), rows, "nothing was measured")
        if known:
            told = f"kept in {where}" if where else "not kept, since the run was interrupted"
            click.echo(f"\nnoise floor {max(known) * 100:.2f} %, {told}; runs in {folder}")
        else:
            click.echo("\nnoise floor not measured: six pairs of a cell must finish")
    sys.exit(_exit_code(result))


@main.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--gate", type=click.FloatRange(0, 100), metavar="PCT", help="Exit 1 where B is proven slower by more.")
@click.option("--format", "format_", type=click.Choice(["console", "markdown"]), default="console", show_default=True)
@JSON
def compare(a: Path, b: Path, gate: float | None, format_: str, as_json: bool) -> None:
    """Is B faster than A? Each is a result, or a folder of results of the same plan; A is the baseline.

    A verdict takes the whole interval of the ratio: beyond ±δ it is faster or slower, inside it is the same, else
    ambiguous. δ is the noise floor of `mixmark selftest`, 1 % at the least.

    Example: mixmark compare results/main results/branch --gate 5
    """
    from harness import compare as comparing

    before, after = _results(a), _results(b)
    floors = [each.noise_floor for each in (*before, *after) if each.noise_floor is not None]
    found = comparing.compare(before, after, max(floors, default=None))
    worse = [each for each in found if gate is not None and each.proven_slower(gate / 100)]
    if as_json:
        _print_json({"comparisons": [each.told() for each in found], "regressions": len(worse)})
    else:
        head = ("cell", "B / A", "interval", "verdict", "runs", "")
        rows = [
            (
                plain(each.label),
                f"{each.ratio.estimate:.3f}" if each.ratio else "–",
                f"{each.ratio.low:.3f} – {each.ratio.high:.3f}" if each.ratio else "–",
                each.verdict or "not compared",
                f"{len(each.a)} : {len(each.b)}",
                plain(each.reason),
            )
            for each in found
        ]
        if format_ == "markdown":
            barred = [[cell.replace("|", "\\|") for cell in row] for row in (head, ("---",) * len(head), *rows)]
            click.echo("\n".join(f"| {' | '.join(row)} |" for row in barred))
        else:
            _print_table(head, rows, "nothing to compare")
        floor = (
            f"noise floor {max(floors) * 100:.2f} %" if floors else "noise floor not measured: mixmark selftest does"
        )
        click.echo(f"\nδ {found[0].delta * 100:.2f} % ({floor}); above 1 B does more" if found else floor)
    for each in worse:
        click.echo(f"mixmark: {plain(each.label)} is slower by more than {gate:g} %", err=True)
    sys.exit(1 if worse else 0)


def _results(path: Path) -> list[Result]:
    """The result at a path, or those in the folders below it."""
    from harness import store

    inside = sorted(each.parent for each in path.glob("*/journal.jsonl")) if path.is_dir() else []
    return [store.open(each) for each in inside or [path]]


def _metered(devices: Sequence[Device], adapters: Sequence[str], config: Config) -> Meters:
    """Of these devices and, where each is metered by itself, of those of adapters that the command line leaves out."""
    from harness import setup
    from harness.metering import Meters

    meters = Meters(config, devices)
    one_by_one = any(each.boundary == "devices" for each in meters.domains)
    others = setup.bystanders(adapters, config, devices) if one_by_one else ()
    return Meters(config, (*devices, *others)) if others else meters


def _performed(header: Result, equipment: Equipment, folder: Path, keeper: Store, meters: Meters) -> Result:
    """Runs what the header plans and does not have yet. Ctrl-C and a termination signal end it early, unfinished; from
    then on they change nothing, until what was measured is written and shown and the process ends."""
    import signal

    from harness import plan
    from harness.campaign import Campaign, Conduct
    from harness.errors import ResultError
    from harness.progress import Progress

    ends = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]

    def interrupt(*_: object) -> None:
        for each in ends:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    done = {record.key for record in header.records} | {record.phase for record in header.records}
    left = [p for p in header.phases if any(share.key not in done for task in p.tasks for share in task.shares)]
    preset = plan.PRESETS.get(header.preset, plan.SELFTEST)
    smoke = header.tier == "smoke"
    conduct = Conduct(
        limits=plan.SMOKE_MIX if smoke else preset.mix,
        runs=preset.runs,
        again=preset.again and not smoke,
        idle_s=0 if smoke else preset.idle_s,
    )
    mixed_s = (conduct.limits.warmup_ns + conduct.limits.min_ns) / 1e9
    to_come = conduct.runs - sum(phase.placement is not None for phase in header.phases)
    for each in ends:
        signal.signal(each, interrupt)
    try:
        with Progress(left, mixed_s * to_come if header.mix else 0, meters.draw) as progress:
            campaign = Campaign(header, equipment, folder, keeper, meters, conduct, progress.observer)
            campaign.run()
    except KeyboardInterrupt:
        pass
    except ResultError as error:
        raise ResultError(str(error), f"{error.hint}; go on with: mixmark run --resume {folder}") from error
    keeper.finish(campaign.result)
    return campaign.result


def _show(result: Result, folder: Path, as_json: bool) -> None:
    from harness import plugins

    click.echo(plugins.find("reporters")["json" if as_json else "console"].load()(result), nl=False)
    click.echo(f"Mixmark {result.system.mixmark} wrote {folder}", err=as_json)
    if not result.finished:
        click.echo(f"Interrupted; go on with: mixmark run --resume {folder}", err=True)


def _exit_code(result: Result) -> int:
    from harness import plan
    from harness.judge import validate

    if not result.finished:
        return 130
    measured = [each for each in result.records if each.completions is not None and each.route.suite != plan.PROBE]
    return 1 if not measured or any(each.severity == "invalid" for each in validate.findings(result)) else 0


def _mix(asked: str | None, tier: Tier, chosen: list[str], existing: list[str], whole: bool) -> Mix | None:
    """The mix that a run ends with: the tier's where nothing else is asked and all of its suites run."""
    if asked == "none":
        return None
    from harness import mixes
    from harness.errors import UsageError

    found = mixes.load(asked or f"{tier}-1", tier, existing)
    missing = [suite for suite in found.units if suite not in chosen]
    if asked and missing:
        raise UsageError(f"mix {found.name} needs {', '.join(missing)}", hint="leave --suite away, or --mix none")
    return found if whole and not missing else None


def _rate(given: str | None, scenarios: tuple[str, ...]) -> float | None:
    """None stands for the highest rate. Raises UsageError."""
    from harness.errors import UsageError

    if given is not None and "server" not in scenarios:
        raise UsageError("--rate is of a server", hint="add --scenario server")
    if given is None or given == "max":
        return None
    try:
        rate_per_s = float(given)
    except ValueError:
        rate_per_s = math.nan
    if not 0 < rate_per_s < math.inf:
        raise UsageError(f"--rate {given!r} is no rate", hint="give feeds a second, above 0, or max")
    return rate_per_s


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


@contextmanager
def _plugins_print_to_stderr() -> Iterator[None]:
    """What meters print in this process, drivers in C included: stdout holds our answer and nothing else."""
    if sys.__stdout__ is None:  # nobody listens, and file 1 is another one
        yield
        return
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _print_json(value: object) -> None:
    click.echo(escaped(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)))


def _print_table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]], empty: str) -> None:
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    if not rows:
        click.echo(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def _print_absent(absent: Any) -> None:
    if absent:
        click.echo("\nnot here:")
    for each in absent:
        click.echo(f"  {plain(each.what)}: {plain(each.reason)}")
