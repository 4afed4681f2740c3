"""The commands that measure: run, selftest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli.hosts import HOSTS, gathered, named
from mixmark.harness.cli.machine_lock import reserve
from mixmark.harness.cli.options import ADAPTER, CONFIG, JSON, TIER, WAIT_IDLE, Seconds, arrival_rate, weight_classes
from mixmark.harness.cli.show import AGAINST, VERBOSE, references, write_page
from mixmark.harness.cli.tables import plugins_print_to_stderr, print_json, print_table
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Absent, Device, Domain, Phase, Result
    from mixmark.harness.discover.config import Config
    from mixmark.harness.discover.equipment import Equipment
    from mixmark.harness.discover.setup import Suites, Workbench
    from mixmark.harness.judge.judgement import Judgement
    from mixmark.harness.measure.cluster.launchers import Host, Launcher
    from mixmark.harness.measure.cluster.messages import Look
    from mixmark.harness.measure.executor import Site
    from mixmark.harness.plan.phases import Workload
    from mixmark.harness.record.store import Store

FREE_DISK_BYTES = 1 << 30  # results are small; an engine may lay weights on disk while it loads
SELFTEST_TIMEOUT_S = 600


@click.command()
@click.option("--suite", "suites", multiple=True, metavar="NAME", help="Run only this suite. Repeatable.")
@click.option("--device", "devices", multiple=True, metavar="ID", help="Use only this device. Repeatable.")
@ADAPTER
@TIER
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="NAME",
    help="Number format to compute in: fp32, bf16, … Repeatable.  [default: the best of each device, by --bits]",
)
@click.option(
    "--bits",
    callback=weight_classes,
    metavar="16|8|4",
    help="Weight class: the fewest bits that a weight may have. 16 uses formats of 16 and 32 bits, 8 also those of 8 "
    "bits, and 4 all. With several, such as 16,8,4, each route is measured once, and the mix once for each class.  "
    "[default: 16]",
)
@click.option(
    "--all-routes",
    is_flag=True,
    help="Measure every route. Without it, a run that ends with a mix ranks the routes of a suite on a device by "
    "screening runs of a few seconds, and measures the fastest.",
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help="How feeds arrive: single-stream, offline or server. Repeatable.  [default: as the preset says]",
)
@click.option(
    "--rate",
    callback=arrival_rate,
    metavar="R|max",
    help="Arrival rate of the server scenario in feeds per second; max finds the highest rate that keeps the latency "
    "limits.  [default: max]",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="How often each cell is measured, each time in a fresh process.",
)
@click.option(
    "--preset",
    type=click.Choice(["quick", "standard", "official"]),
    default="quick",
    show_default=True,
    help="How much is measured. quick: the native scenario of each suite; standard: all closed-loop scenarios, at "
    "least 30 s and 3 feeds each; official: standard with five runs of the mix.",
)
@click.option(
    "--mix",
    metavar="NAME|FILE|none",
    help="Mix of all suites that runs on all devices at once, in the end.  [default: the published mix of the tier]",
)
@click.option(
    "--objective",
    type=click.Choice(["throughput", "efficiency"]),
    default="throughput",
    show_default=True,
    help="Whether the mix is optimised for mixes per second or for mixes per kilojoule.",
)
@click.option(
    "--split-cpu",
    metavar="N|numa|type",
    help="Split the CPU into several devices: N equal ones, one for each NUMA node, or one for each type of core.",
)
@HOSTS
@click.option(
    "--scaling",
    is_flag=True,
    help="Run the mix on the first 1, 2, 4, … of several hosts too, which shows how its rate grows with them.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="SUITE=PATH",
    help="Load a public checkpoint for a suite, in place of weights that are drawn at random. Repeatable.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder, new or empty.  [default: results/<time>-<tier>-<preset>]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Seed for the inputs. A score under a chosen seed is only indicative.  [default: each window draws its own]",
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Continue the interrupted run there.")
@click.option(
    "--timeout",
    type=Seconds(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Seconds after which a worker that does not answer counts as hung.",
)
@WAIT_IDLE
@AGAINST
@VERBOSE
@CONFIG
@JSON
def run(
    suites: tuple[str, ...],
    devices: tuple[str, ...],
    adapters: tuple[str, ...],
    tier: Any,
    precisions: tuple[Any, ...],
    bits: tuple[Any, ...],
    all_routes: bool,
    scenarios: tuple[Any, ...],
    rate: float | None,
    runs: int,
    preset: str,
    mix: str | None,
    objective: Any,
    split_cpu: str | None,
    hosts: Path | None,
    launcher: str | None,
    address: str | None,
    scaling: bool,
    weights: tuple[str, ...],
    out: Path | None,
    seed: int | None,
    resume: Path | None,
    timeout: float,
    wait_idle_s: float | None,
    against: tuple[Path, ...],
    verbose: bool,
    config: Path | None,
    as_json: bool,
) -> None:
    """Benchmark this machine: each suite on each device through each adapter, then all of them at once.

    \b
    Examples: mixmark run
              mixmark run --suite llm --adapter torch --preset standard
              mixmark run --hosts hosts.toml
    """
    from datetime import UTC, datetime

    from mixmark.harness.contracts.choices import choose_by_name
    from mixmark.harness.contracts.errors import ResultError, UsageError
    from mixmark.harness.contracts.schema import BITS_PER_WEIGHT
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.discover import setup
    from mixmark.harness.judge.judgement import judge
    from mixmark.harness.measure.cluster import messages
    from mixmark.harness.plan import mixes, presets
    from mixmark.harness.plan import phases as plan
    from mixmark.harness.plugins.suite_claims import refuse_contradictions
    from mixmark.harness.record import store

    choose_by_name("precision", precisions, BITS_PER_WEIGHT)
    if precisions and bits:
        raise UsageError("--precision and --bits both choose number formats", hint="leave one of them away")
    if as_json and len(bits) > 1:
        raise UsageError("--json prints one result, and each weight class makes one", hint="give one class")
    if rate is not None and "server" not in scenarios:
        raise UsageError("--rate applies only to the server scenario", hint="add --scenario server")
    if resume and out:
        raise UsageError("--resume continues in the folder of the interrupted run", hint="leave --out away")
    before = store.open(resume) if resume else None
    if before and before.finished:
        raise UsageError(f"the run in {resume} is finished", hint="there is nothing to resume; start a new run")
    if before and before.live and resume:
        raise store.still_going_on(resume)
    if before:
        refuse_contradictions(before)
    configured = configuration.load(config)
    existing = setup.load_suites(configured, before.tier if before else tier, weights)
    workloads = existing.chosen(suites, scenarios)
    running = [each.name for each in workloads] if rate is None else []
    chosen = None if before else mixes.choose(mix, tier, running, [each.name for each in existing.workloads])
    if len(bits) > 1 and not chosen:
        raise UsageError("several weight classes need a mix that is run for each", hint="give one class")
    others = references(against, before.mix if before else chosen)
    several = named(hosts, launcher, address)
    if scaling and not (chosen and several) and not before:
        raise UsageError("--scaling runs a mix on a part of several hosts", hint="give --hosts, and a mix")
    folder = resume or out or Path("results") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{tier}-{preset}"
    if not several:
        setup.choose(adapters, configured)  # a name that does not exist is told before anything is waited for
    fewest, *fewer = bits or (16,)
    beside = folder if folder.name not in ("", "..") else folder.resolve()
    places = {each: beside.with_name(f"{beside.name}-{each}-bit") for each in fewer}
    for place in () if before else (folder, *places.values()):
        store.refuse_used(place)
    problem = None
    with reserve(folder, before.tier if before else tier, wait_idle_s), plugins_print_to_stderr(), ExitStack() as stack:
        seed = before.seed if before else seed
        if several:
            checkpoints = setup.checkpoint_paths(
                weights, existing.plugins
            )  # absolute: agents have folders of their own
            look = messages.Look(
                adapters=adapters,
                tier=before.tier if before else tier,
                weights=tuple(f"{name}={path}" for name, path in checkpoints.items()),
                split_cpu=split_cpu,
                seed=seed,
                timeout_s=timeout,
                measures=True,
            )
            where = _on_hosts(several, look, workloads, configured, existing, stack)
        else:
            bench = setup.prepare(configured, existing, adapters, split_cpu)
            where = _here(bench, adapters if not before else (), before, seed, timeout, stack)
        bench, equipment = where.bench, where.bench.equipment(seed, timeout)
        if before:
            bench.check_same(before)
            header = before.model_copy(update={"resumed": (*before.resumed, len(before.records))})
            stack.enter_context(store.locked(folder))
            done = {folder: _performed(header, where.site(folder), equipment, store.resume(folder))}
        else:
            targets, probe = bench.targets(devices), existing.probe
            rate_per_s = None if rate == float("inf") else rate

            def routes(fewest_bits: Any) -> tuple[Phase, ...]:
                how = presets.PRESETS[preset], precisions, scenarios, probe, rate_per_s, runs, fewest_bits
                return plan.solo(targets, workloads, tier, *how)

            candidates = routes(fewest)
            screenings = plan.screening_phases(candidates) if chosen and not all_routes else ()
            header = bench.header(screenings or candidates, tier, preset, seed, chosen, objective)
            unused = plan.left_out(targets, candidates, fewest) if not precisions else ()
            if chosen and objective == "efficiency" and not where.domains:
                raise UsageError(
                    "--objective efficiency plans with watts, and no meter can be read",
                    hint="mixmark meters says what is missing",
                )
            header = header.model_copy(
                update={
                    "bits": None if precisions else fewest,
                    "candidates": candidates if screenings else (),
                    "devices": where.devices,
                    "domains": where.domains,
                    "scaling": scaling,
                    "absent": (*header.absent, *where.absent, *unused),
                }
            )
            keeper = store.create(folder, header, needs_bytes=FREE_DISK_BYTES)
            stack.enter_context(store.locked(folder))
            done = {folder: _performed(header, where.site(folder), equipment, keeper)}
            source = folder
            for each, into in places.items():
                if not done[source].finished:
                    click.echo(f"Nothing was measured for --bits {each}: an earlier class was interrupted.", err=True)
                    continue
                header = plan.carried(done[source], each, routes(each), all_routes)
                try:
                    keeper = store.create(into, header, FREE_DISK_BYTES, source)
                    stack.enter_context(store.locked(into))
                    done[into] = _performed(header, where.site(into), equipment, keeper)
                except ResultError as error:
                    problem = error
                    break
                source = into
    judgements = {place: judge(result, others) for place, result in done.items()}
    for place, judgement in judgements.items():
        _show(judgement, place, "json" if as_json else "full" if verbose else "console")
    if problem:
        raise problem  # the classes before are finished and shown
    sys.exit(max(judgement.exit_code for judgement in judgements.values()))


@click.command()
@click.option(
    "--suite",
    "suites",
    multiple=True,
    default=["resnet50"],
    show_default=True,
    metavar="NAME",
    help="Measure this suite. Repeatable.",
)
@ADAPTER
@TIER
@click.option(
    "--pairs", type=click.IntRange(6, 100), default=6, show_default=True, help="Number of repeated A/A pairs."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Result folder, new or empty.  [default: results/<time>-selftest]"
)
@WAIT_IDLE
@CONFIG
@JSON
def selftest(
    suites: tuple[str, ...],
    adapters: tuple[str, ...],
    tier: Any,
    pairs: int,
    out: Path | None,
    wait_idle_s: float | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure the noise floor of this machine, with which `mixmark compare` tells a difference from noise.

    The same measurement is repeated in pairs, each in a fresh process. The noise floor is the difference that 95 % of
    the pairs stay within.

    Example: mixmark selftest --adapter onnxruntime
    """
    from datetime import UTC, datetime

    from mixmark.harness.contracts.errors import ResultError
    from mixmark.harness.contracts.schema import NoiseFloor
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.discover import noise_floor, setup
    from mixmark.harness.judge.compare import solo as comparing
    from mixmark.harness.judge.judgement import judge
    from mixmark.harness.measure.executor import Here
    from mixmark.harness.measure.metering import Meters
    from mixmark.harness.plan import phases as plan
    from mixmark.harness.plan import presets
    from mixmark.harness.record import store

    configured = configuration.load(config)
    existing = setup.load_suites(configured, tier)
    workloads = existing.chosen(suites, ("single-stream",))
    folder = out or Path("results") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-selftest"
    setup.choose(adapters, configured)
    store.refuse_used(folder)
    with (
        reserve(folder, tier, wait_idle_s),
        plugins_print_to_stderr(),
        Meters(configuration.Config(), (), {}) as nothing,
    ):
        bench = setup.prepare(configured, existing, adapters)
        phases = plan.solo(
            bench.targets(), workloads, tier, presets.SELFTEST, scenarios=("single-stream",), runs=2 * pairs
        )
        header = bench.header(phases, tier, presets.SELFTEST.name)
        keeper = store.create(folder, header, needs_bytes=FREE_DISK_BYTES)
        with store.locked(folder):
            equipment = bench.equipment(header.seed, SELFTEST_TIMEOUT_S)
            result = _performed(header, Here(equipment, folder, nothing), equipment, keeper)
    judgement = judge(result)
    floors = comparing.noise_floors(judgement)
    known = [floor for floor in floors.values() if floor is not None]
    where = problem = None
    if known and result.finished:
        try:
            where = noise_floor.keep(NoiseFloor(share=max(known), tier=tier, created_utc=result.created_utc))
        except ResultError as error:
            problem = error
    if as_json:
        kept_in = None if where is None else str(where)
        floor = {"tier": tier, "noise_floor": max(known, default=None), "by_cell": floors}
        print_json({**floor, "kept_in": kept_in, "result": str(folder)})
    else:
        rows = [(cell, "–" if floor is None else f"{floor * 100:.2f} %") for cell, floor in floors.items()]
        print_table(("cell", "95 % of the pairs differ by at most"), rows, "Nothing was measured.")
        if known:
            click.echo(f"\nThe noise floor of the {tier} tier is {max(known) * 100:.2f} %.")
            click.echo(f"It is stored in {where}." if where else "It is not stored.")
            click.echo(f"The measurements are in {folder}.")
        else:
            click.echo("\nThe noise floor was not measured: six pairs of a cell must finish.")
    if problem:
        raise problem
    sys.exit(judgement.exit_code)


@dataclass(frozen=True)
class _Where:
    """The machine or the machines that are measured."""

    bench: Workbench
    devices: tuple[Device, ...]
    """All devices that the meters cover, also those that are not measured."""
    domains: tuple[Domain, ...]
    absent: tuple[Absent, ...]
    """The meters that cannot be read."""
    site: Callable[[Path], Site]
    """Where the phases of a result folder are measured."""


def _here(
    bench: Workbench,
    adapters: Sequence[str],
    before: Result | None,
    seed: int | None,
    timeout_s: float,
    stack: ExitStack,
) -> _Where:
    """This machine. before: the run that goes on."""
    from mixmark.harness.measure.executor import Here
    from mixmark.harness.measure.metering import metered

    devices = before.devices if before else bench.found.devices
    meters = stack.enter_context(metered(devices, adapters, bench.config))
    equipment = bench.equipment(seed, timeout_s)
    return _Where(bench, meters.devices, meters.domains, meters.absent, lambda folder: Here(equipment, folder, meters))


def _on_hosts(
    several: tuple[Launcher, tuple[Host, ...]],
    look: Look,
    workloads: Sequence[Workload],
    config: Config,
    suites: Suites,
    stack: ExitStack,
) -> _Where:
    """The hosts of a cluster. Raises MixmarkError where none can be measured."""
    from mixmark.harness.discover.setup import Workbench
    from mixmark.harness.measure.cluster.executor import Cluster

    remotes, found = gathered(several, look, workloads, stack)
    bench = Workbench(config, {}, suites, found.found, found.hosts)
    units = {name: each.unit for name, each in suites.facts.items()}
    return _Where(
        bench,
        found.found.devices,
        found.domains,
        (),
        lambda folder: Cluster(remotes, found.domains, units, folder, found.neighbours),
    )


def _performed(header: Result, site: Site, equipment: Equipment, keeper: Store) -> Result:
    """Measures what the header plans and does not have yet, and shows the progress. An interruption leaves the result
    unfinished."""
    from mixmark.harness.cli.progress import Progress
    from mixmark.harness.contracts.errors import ResultError
    from mixmark.harness.measure import benchmark as run

    how, auditor = run.procedure(header), run.auditor(equipment, keeper.path, header.tier)
    progress = Progress(header, how, site.metered, site.current_power)
    benchmark = run.Benchmark(header, site, auditor, keeper, how, progress.observer)
    try:
        with run.until_interrupted(), progress:
            benchmark.run()
    except ResultError as error:
        raise ResultError(str(error), f"{error.hint}; continue with: mixmark run --resume {keeper.path}") from error
    keeper.finish(benchmark.result)
    return benchmark.result


def _show(judgement: Judgement, folder: Path, form: str) -> None:
    """Prints the report and where the result lies. With JSON on stdout, the verdict goes to stderr."""
    from mixmark.harness.plugins import registry

    as_json = form == "json"
    click.echo(registry.find("reporters")[form].load()(judgement), nl=False)
    if as_json:
        click.echo(plain(str(judgement.verdict)), err=True)
    page = write_page(judgement, folder)
    click.echo(f"page    {page}" if page else f"result  {folder}", err=as_json)
    if not judgement.result.finished:
        hosts = " --hosts FILE" if judgement.result.hosts else ""
        click.echo(f"The run was interrupted. Continue it with: mixmark run --resume {folder}{hosts}", err=True)
