"""Checks the options of `mixmark run`, prepares the run, and measures it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.errors import ResultError, UsageError
from mixmark.harness.contracts.schema import Phase, Result
from mixmark.harness.machine import config as configuration
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import Config
from mixmark.harness.machine.setup import Equipment, Suites, Workbench
from mixmark.harness.machine.suite_claims import refuse_contradictions
from mixmark.harness.measure import experiments
from mixmark.harness.measure.audit import auditor, clean_process
from mixmark.harness.measure.benchmark import Benchmark, Observer, until_interrupted
from mixmark.harness.measure.executor import Executor
from mixmark.harness.measure.local_executor import LocalExecutor
from mixmark.harness.measure.metering import Meters, metered
from mixmark.harness.measure.request import OTHER_MACHINES, MeasuredMachine, PreparedRun, RunRequest
from mixmark.harness.plan import mixes, phases, presets
from mixmark.harness.plan.phases import Workload
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.options import options
from mixmark.harness.record import store
from mixmark.harness.worker.handle import Worker

FREE_DISK_BYTES = 1 << 30  # results are small; an engine may lay weights on disk while it loads
Observed = Callable[[Result, Executor], AbstractContextManager[Observer]]
"""Opens the observer of a run that begins, such as a progress display."""


def prepare(request: RunRequest, clean: Worker | None = None, stack: ExitStack | None = None) -> PreparedRun:
    """Checks all that can be checked without waiting for the machine: no device is looked for, since another run may
    be measured now. clean: see `Auditor`; it was started before, since plugins run here. stack: holds the auditors of
    suites that have their own.

    Raises UsageError or ResultError.
    """
    request.check()
    resumed = _interrupted(request.resume) if request.resume else None
    if resumed:
        request = replace(request, tier=resumed.tier, seed=resumed.seed)
    specs = {each: registry.name_of_spec(each) for each in request.suites if registry.is_spec(each)}
    request = replace(request, suites=tuple(specs.get(each, each) for each in request.suites))
    config = configuration.load(request.config)
    if request.sections:
        config = replace(config, suites={**config.suites, **request.sections})
        if not (request.suites or request.mix not in (None, "none") or resumed):
            request = replace(request, suites=tuple(request.sections))
    own = {}
    if stack:
        read = {name: each for name, each in setup.measuring(config).items() if name in (request.suites or [name])}
        for name, plugin in read.items():
            own[name] = stack.enter_context(clean_process(plugin.load().imports))
    suites = setup.load_suites(config, request.tier, request.weights, [*specs])
    suites = setup.measure_suites(suites, request.tier, own)
    workloads = tuple(suites.choose(request.suites, request.scenarios))
    closed_loop = [workload.name for workload in workloads] if request.rate is None else []
    names = [workload.name for workload in suites.workloads]
    mix = resumed.mix if resumed and not request.mix else mixes.choose(request.mix, request.tier, closed_loop, names)
    if resumed and mix != resumed.mix:
        raise UsageError("the run that is resumed has another mix", hint="leave --mix away, or give its own")
    asked = [(experiments.installed()[name], given) for name, given in request.experiments.items()]
    needed = {each: {*each.suites(request, suites, given)} for each, given in asked}
    of_experiments = set().union(*needed.values())
    if not request.suites and not resumed:
        of_mix = None if of_experiments and not mix else mix or mixes.load(None, request.tier, names)
        wanted = of_experiments | (of_mix.units.keys() if of_mix else set())
        workloads = _measured(workloads, suites, wanted, only=bool(request.mix if mix else of_experiments))
    for experiment, its_suites in needed.items():
        if lacking := its_suites - {workload.name for workload in workloads}:
            option = options("experiments")[experiment.name][0].opts[0]
            why = f"{option} needs {', '.join(sorted(lacking))}, which this run does not measure"
            raise UsageError(why, hint="leave --suite and --scenario away")
    if lacking := request.sections.keys() - {workload.name for workload in workloads}:
        why = f"this run does not measure the model {', '.join(sorted(lacking))}"
        raise UsageError(why, hint="name it by --suite or in the file of --mix, or leave these away")
    if request.machines:
        request.machines.check()
    else:  # refuses a name that does not exist before anything is waited for
        setup.choose_adapters(request.adapters, config)
    default = store.RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{request.tier}-{request.preset}"
    folder = request.resume or request.out or default
    if not resumed:
        store.refuse_used(folder)
    suites = setup.check_checkpoints(suites, request.tier)
    weights = {each.name: each.weights for each in suites.workloads}
    workloads = tuple(replace(each, weights=weights[each.name]) for each in workloads)
    run = PreparedRun(request, resumed, config, suites, workloads, mix, folder, clean=clean, own=own)
    return replace(run, experiments=_prepared(run))


def _prepared(run: PreparedRun) -> dict[str, Any]:
    """What the experiments of a run prepare, by their names. Raises UsageError if the run cannot have one."""
    request, found = run.request, {}
    names = [each.name for each in experiments.of(run.resumed)] if run.resumed else [*request.experiments]
    for experiment in (experiments.installed()[name] for name in names):
        if experiment.needs_mix and not run.resumed and (request.machines or not run.mix):
            lacks = OTHER_MACHINES if request.machines else mixes.remedy(request.mix)
            option = options("experiments")[experiment.name][0].opts[0]
            raise UsageError(f"{option} runs or serves a mix on this machine", hint=lacks)
        found[experiment.name] = experiment.prepare(run, request.experiments.get(experiment.name, {}))
    return found


def _measured(
    workloads: Sequence[Workload], suites: Suites, needed: Collection[str], only: bool
) -> tuple[Workload, ...]:
    """What a run measures whose command line names no suite: the suites of its mix and of its experiments and, unless
    these are `only`, those of other packages. The other suites of Mixmark must be asked for."""
    return tuple(
        workload
        for workload in workloads
        if workload.name in needed or not (only or suites.plugins[workload.name].built_in)
    )


def _interrupted(folder: Path) -> Result:
    """The run in a folder. Raises UsageError if it is finished, ResultError if it is still going on or
    contradicts itself."""
    result = store.open(folder)
    if result.finished:
        raise UsageError(f"the run in {folder} is finished", hint="there is nothing to resume; start a new run")
    if result.live:
        raise store.still_going_on(folder)
    refuse_contradictions(result)
    if lacking := result.experiments.keys() - experiments.installed().keys():
        raise UsageError(f"the run in {folder} has experiments that are not installed: {', '.join(sorted(lacking))}")
    return result


def opened(run: PreparedRun, stack: ExitStack) -> MeasuredMachine:
    """The machines that the run names. Without any, asks the adapters for the devices of this machine and opens its
    meters, which are read until the stack is closed."""
    request = run.request
    if request.machines:
        return request.machines.open(run, stack)
    bench = setup.prepare(run.config, run.suites, request.adapters, request.split_cpu)
    devices = run.resumed.devices if run.resumed else bench.found.devices
    meters = Meters(Config(), devices, {})
    if not presets.of(request.preset, request.tier).bare:
        meters = metered(devices, () if run.resumed else request.adapters, run.config)
    stack.enter_context(meters)
    equipment = _equipment(bench, request)
    return MeasuredMachine(
        bench,
        meters.devices,
        meters.domains,
        meters.absent,
        lambda folder, asked: LocalExecutor(equipment, folder, meters, run.experiments, asked),
    )


def measure(run: PreparedRun, machine: MeasuredMachine, observed: Observed) -> Result:
    """Measures the planned phases that have no records yet, and writes the result. An interruption leaves the result
    unfinished. Raises UsageError if the run cannot be resumed or planned here, ResultError if its folder cannot be
    written."""
    folder, keeper = run.folder, None
    if run.resumed:
        machine.bench.check_same(run.resumed)
        header = run.resumed.model_copy(update={"resumed": (*run.resumed.resumed, len(run.resumed.records))})
    else:
        header = _header(run, machine)
        keeper = store.create(folder, header, FREE_DISK_BYTES)
    equipment, preset = _equipment(machine.bench, run.request), presets.of(header.preset, header.tier)
    with store.locked(folder), _models_of(folder):
        keeper = keeper or store.resume(folder)
        executor = machine.executor(folder, header.experiments)
        audits = auditor(equipment, folder, header.tier, clean=run.clean, own=run.own)
        with observed(header, executor) as observer:
            benchmark = Benchmark(header, executor, audits, keeper, preset, observer)
            try:
                with until_interrupted():
                    benchmark.run()
                keeper.finish(benchmark.result)
            except ResultError as error:
                left = folder if folder.exists() else "NEW-NAME, if it was renamed"
                raise ResultError(str(error), f"{error.hint}; continue with: mixmark run --resume {left}") from error
    return benchmark.result


def _equipment(bench: Workbench, request: RunRequest) -> Equipment:
    """A run that may have a rank makes its converted models itself."""
    return bench.equipment(
        request.seed, request.timeout_s, own_models=presets.of(request.preset, request.tier).runs > 1
    )


@contextmanager
def _models_of(folder: Path) -> Iterator[None]:
    """Removes a run's own converted models after the block, and before it: those of a run that was killed may have been
    changed since."""
    shutil.rmtree(folder / setup.MODELS, ignore_errors=True)
    try:
        yield
    finally:
        shutil.rmtree(folder / setup.MODELS, ignore_errors=True)


def _header(run: PreparedRun, machine: MeasuredMachine) -> Result:
    """The header of a new run. Raises UsageError if its objective needs watts and no meter can be read."""
    request, bench = run.request, machine.bench
    bits = request.weight_class
    candidates = _routes(run, machine)
    all_routes = request.all_routes or presets.of(request.preset, request.tier).bare
    header = bench.header(candidates, request.tier, request.preset, request.seed, run.mix, request.objective)
    unused = phases.left_out(bench.targets(request.devices), candidates, bits) if not request.precisions else ()
    if run.mix and request.objective == "efficiency" and not machine.domains:
        raise UsageError(
            "--objective efficiency plans with watts, and no meter can be read",
            hint="mixmark meters says what is missing",
        )
    update = {
        "bits": None if request.precisions else bits,
        "phases": candidates if all_routes else (),
        "candidates": () if all_routes else candidates,
        "devices": machine.devices,
        "domains": machine.domains,
        "absent": (*header.absent, *machine.absent, *unused),
    }
    header = header.model_copy(update=update)
    asked = {
        name: experiments.installed()[name].asked(run, machine, header, given).model_dump(mode="json")
        for name, given in request.experiments.items()
    }
    return header.model_copy(update={"experiments": asked})


def _routes(run: PreparedRun, machine: MeasuredMachine) -> tuple[Phase, ...]:
    """The solo phases of every route whose weights have at least as many bits as the weight class."""
    request, preset = run.request, presets.of(run.request.preset, run.request.tier)
    return phases.solo(
        machine.bench.targets(request.devices),
        run.workloads,
        request.tier,
        preset,
        request.precisions,
        request.scenarios,
        None if preset.bare else run.suites.probe,
        None if request.rate == float("inf") else request.rate,
        request.runs,
        request.weight_class,
    )
