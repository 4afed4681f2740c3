"""The command line. Everything heavy is imported inside the commands: `mixmark --help` must answer at once.

Exit codes: 0 all went well (notes and warnings too), 1 a cell failed or nothing was measured, 2 misuse,
130 interrupted.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import MixmarkError

if TYPE_CHECKING:
    from harness.config import Config
    from harness.discover import Found
    from harness.plan import Workload
    from harness.plugins import Plugin
    from harness.schema import Absent, Result

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
            click.echo(f"mixmark: {error}", err=True)
            if error.hint:
                click.echo(f"         {error.hint}", err=True)
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

    found = _discovered(adapters, configuration.load(config))
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
        rows.append((device.id, device.kind, device.name, memory, "\n".join(routes)))
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

    configured = configuration.load(config)
    found = _discovered(adapters, configured)
    listed = [
        {
            "name": plugin.name,
            "spec": plugin.spec,
            "origin": plugin.origin,
            "python": configured.adapter(plugin.name).python,
            "options": dict(configured.adapter(plugin.name).options),
            "devices": [way.device.id for way in found.ways if way.adapter == plugin.name],
        }
        for plugin in _chosen(adapters).values()
    ]
    if as_json:
        _print_json({"adapters": listed, "absent": [each.model_dump() for each in found.absent]})
        return
    rows = [(each["name"], each["origin"], each["spec"], ", ".join(each["devices"]) or "–") for each in listed]
    _print_table(("adapter", "from", "plugin", "devices"), rows, "no adapter")
    _print_absent(found.absent)


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
    type=click.Choice(["quick", "standard"]),
    default="quick",
    show_default=True,
    help="quick: each suite's native scenario; standard: all scenarios, 30 s and 3 feeds at least.",
)
@click.option("--weights", multiple=True, metavar="SUITE=PATH", help="A public checkpoint instead of drawn weights.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Result folder.  [default: results/<time>-<tier>-<preset>]"
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of the feeds.  [default: drawn now]")
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
    import secrets
    from datetime import UTC, datetime
    from importlib.metadata import version

    from harness import config as configuration
    from harness import plan, plugins, store, system
    from harness import run as running
    from harness.schema import BITS_PER_WEIGHT, Result

    configured = configuration.load(config)
    suite_plugins = plugins.find("suites")
    checkpoints = _checkpoints(weights, suite_plugins)
    workloads, units, absent = _workloads(suite_plugins, configured, checkpoints)
    plan.pick("precision", precisions, BITS_PER_WEIGHT)
    plan.pick("scenario", scenarios, dict.fromkeys(each for one in workloads for each in one.scenarios))
    rate_per_s = _rate(rate, scenarios)
    names = plan.pick("suite", suites, [each.name for each in workloads])
    if resume and out:
        raise click.UsageError("--resume goes on in its own folder: leave --out away")
    before = store.open(resume) if resume else None
    if before and before.finished:
        raise MixmarkError(f"{resume} is finished", hint="there is nothing to resume; start a new run")

    found = _discovered(adapters, configured)
    if not found.ways:
        reasons = "; ".join(f"{each.what}: {each.reason}" for each in found.absent)
        raise MixmarkError("no device can be measured here", hint=reasons or "mixmark adapters shows why")
    ids = plan.pick("device", devices, [device.id for device in found.devices])
    if before:
        header, phases = before, before.phases
        folder, keeper = Path(resume or "."), store.resume(Path(resume or "."))
        _same_machine(before, found, workloads)
    else:
        probes = [each for each in workloads if each.name == plan.PROBE]
        phases = plan.solo(
            [way for way in found.ways if way.device.id in ids],
            [each for each in workloads if each.name in names],
            tier,
            plan.PRESETS[preset],
            precisions,
            scenarios,
            probes[0] if probes else None,
            rate_per_s,
            runs,
        )
        now = datetime.now(UTC)
        header = Result(
            created_utc=now.isoformat(timespec="seconds"),
            seed=secrets.randbits(62) if seed is None else seed,
            tier=tier,
            preset=preset,
            command=running.command_line(),
            phases=phases,
            system=system.disclose(),
            devices=found.devices,
            absent=(*absent, *found.absent),
            records=(),
            finished=False,
        )
        folder = out or Path("results") / f"{now:%Y%m%d-%H%M%S}-{tier}-{preset}"
        keeper = store.create(folder, header, needs_bytes=1 << 30)
    equipment = running.Equipment(
        adapters=_chosen(adapters),
        suites=suite_plugins,
        suite_options={
            name: {
                **configured.suites.get(name, {}),
                **({"weights": str(checkpoints[name])} if name in checkpoints else {}),
            }
            for name in suite_plugins
        },
        units=units,
        devices={(way.device.id, way.adapter): way.device for way in found.ways},
        config=configured,
        seed=header.seed,
        timeout_s=timeout,
    )
    records = list(header.records)
    done = {record.key for record in records}
    left = [phase for phase in phases if any(share.key not in done for task in phase.tasks for share in task.shares)]
    interrupted = not _run_phases(left, equipment, folder, keeper, records)
    result = header.model_copy(update={"records": tuple(records), "finished": not interrupted})
    keeper.finish(result)
    reporter = plugins.find("reporters")["json" if as_json else "console"].load()
    click.echo(reporter(result), nl=False)
    click.echo(f"Mixmark {version('mixmark')} wrote {folder}", err=as_json)
    if interrupted:
        click.echo(f"Interrupted; go on with: mixmark run --resume {folder}", err=True)
        sys.exit(130)
    measured = [each for each in records if each.completions is not None and each.route.suite != plan.PROBE]
    sys.exit(1 if not measured or any(each.error and each.error.attempted for each in records) else 0)


@main.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_", metavar="NAME", default="console", show_default=True, help="console, json, csv or markdown."
)
@JSON
def report(result: Path, format_: str, as_json: bool) -> None:
    """Show a result folder again, recomputed from its raw data.

    Example: mixmark report results/20261121-101500-edge-quick --format markdown
    """
    from harness import plan, plugins, store

    reporters = plugins.find("reporters")
    (name,) = plan.pick("format", ["json" if as_json else format_], reporters)
    click.echo(reporters[name].load()(store.open(result)), nl=False)


def _run_phases(phases: Any, equipment: Any, folder: Path, keeper: Any, records: list[Any]) -> bool:
    """False where Ctrl-C or a termination signal ended it early."""
    import signal

    from harness import plan
    from harness import run as running
    from harness.progress import Progress

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    shares = [share for phase in phases for task in phase.tasks for share in task.shares]
    expected_s = {share.key: plan.expected_s(share) for share in shares}
    previous = signal.signal(signal.SIGTERM, interrupt)

    def keep(record: Any) -> None:
        keeper.append(record)
        records.append(record)

    try:
        with Progress(shares, expected_s) as progress:
            running.run(phases, equipment, folder, keep, progress.observer)
    except KeyboardInterrupt:
        return False
    finally:
        signal.signal(signal.SIGTERM, previous)
    return True


def _chosen(asked: tuple[str, ...]) -> dict[str, Plugin]:
    """The adapters to use: all, or those that the command line names or brings along."""
    from harness import plan, plugins

    specs = [each for each in asked if plugins.is_spec(each)]
    known = plugins.find("adapters", specs)
    names = [plugins.name_of(each) if plugins.is_spec(each) else each for each in asked]
    return {name: known[name] for name in plan.pick("adapter", names, known)}


def _discovered(adapters: tuple[str, ...], configured: Config) -> Found:
    from harness import plugins
    from harness.discover import discover
    from harness.schema import Absent

    chosen = _chosen(adapters)
    found = discover(chosen, configured)
    strangers = set(configured.adapters) - set(plugins.find("adapters")) - set(chosen)
    unused = [Absent(what=f"[adapter.{name}]", reason="configured, but there is no such adapter") for name in strangers]
    return replace(found, absent=(*found.absent, *unused))


def _workloads(
    suites: dict[str, Plugin], configured: Config, checkpoints: dict[str, Path]
) -> tuple[list[Workload], dict[str, str], list[Absent]]:
    """The suites that load, their units, and why the others do not."""
    from harness import plan
    from harness import run as running
    from harness.schema import Absent

    plan.pick("suite in the configuration", list(configured.suites), suites)
    workloads, units, absent = [], {}, []
    for name, plugin in suites.items():
        try:
            suite = plugin.load()
        except MixmarkError as error:
            absent.append(Absent(what=f"suite {name}", reason=str(error)))
            continue
        label = running.checkpoint_label(checkpoints[name]) if name in checkpoints else "drawn"
        options = configured.suites.get(name, {})
        workloads.append(plan.Workload(name, suite.version, tuple(suite.scenarios), options, label))
        units[name] = suite.unit
    return workloads, units, absent


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


def _checkpoints(given: tuple[str, ...], suites: dict[str, Plugin]) -> dict[str, Path]:
    from harness import plan
    from harness.errors import UsageError

    found = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals:
            raise UsageError(f"--weights {each!r} has no suite", hint="give it as SUITE=PATH, e.g. llm=./Llama-3.2-1B")
        plan.pick("suite", [name], suites)
        if not Path(path).exists():
            raise UsageError(f"--weights {name}: there is no {path}", hint="give a checkpoint file or folder")
        found[name] = Path(path).resolve()
    return found


def _same_machine(before: Result, found: Found, workloads: list[Workload]) -> None:
    """Refuses to go on with a run on other devices, suites or weights than it began with."""
    from harness.errors import UsageError

    ways = {(way.device.id, way.adapter) for way in found.ways}
    now = {(each.name, each.version, each.weights) for each in workloads}
    for phase in before.phases:
        for task in phase.tasks:
            for share in task.shares:
                route = share.route
                if (route.device, route.adapter) not in ways:
                    raise UsageError(
                        f"the run began with {route.device} by {route.adapter}, which is not here now",
                        hint="resume it on the same machine with the same --adapter and --config",
                    )
                if (route.suite, route.suite_version, route.weights) not in now:
                    began = f"{route.suite} {route.suite_version} and its weights: {route.weights}"
                    raise UsageError(
                        f"the run began with {began}; now they differ",
                        hint="resume it with the same version of Mixmark and the same --weights",
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


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


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
    Console(highlight=False, markup=False).print(table)


def _print_absent(absent: Any) -> None:
    if absent:
        click.echo("\nnot here:")
    for each in absent:
        click.echo(f"  {each.what}: {each.reason}")
