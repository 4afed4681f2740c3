"""Prepares a run: chooses adapters and suites, finds devices, and writes the header of the result."""

from __future__ import annotations

import itertools
import secrets
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from mixmark.harness.contracts import schema, seeds
from mixmark.harness.contracts.device_ids import is_covered
from mixmark.harness.contracts.errors import MixmarkError, Unsupported, UsageError, choose_by_name
from mixmark.harness.contracts.text import plain, unnamed
from mixmark.harness.judge.rules.integrity import LARGEST_CACHE_BYTES, last_level_bytes
from mixmark.harness.machine import cpu_slices, noise_floor
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.machine.devices import Found, discover
from mixmark.harness.machine.disclosure import disclose
from mixmark.harness.machine.suite_claims import models
from mixmark.harness.plan.phases import Target, Workload
from mixmark.harness.plan.placement import Objective
from mixmark.harness.plugins import model_cache
from mixmark.harness.plugins import registry as plugins
from mixmark.harness.plugins.calls import error_text
from mixmark.harness.plugins.manifest import WITH_SECTION
from mixmark.harness.plugins.options import of_machines
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import processor
from mixmark.harness.worker import messages, sealed
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.isolation import isolation
from mixmark.harness.worker.plugin_process import SuiteModel, SuiteProcess, suite_of

REACHED = "mixmark devices shows which devices are reached, and what the others lack"
MEASURING_S = 3600.0  # of a suite before a run: sixteen feeds of a large model
MODELS = "models"
"""The folder of a run's own converted models, in the result folder while the run goes on."""


@dataclass(frozen=True)
class Equipment:
    """The adapters, suites and devices with which the phases of a run are measured."""

    adapters: Mapping[str, Plugin]
    suites: Mapping[str, Plugin]
    suite_options: Mapping[str, Mapping[str, str]]
    """The options that each suite is built with. They include a checkpoint's path, which no record discloses."""
    units: Mapping[str, str]
    """The name of each suite's unit."""
    devices: Mapping[tuple[str, str], schema.Device]
    """A device as an adapter sees it, by (device id, adapter)."""
    config: Config
    seed: int | None
    """The seed that all others are derived from. If None, each seed is drawn when it is needed."""
    timeout_s: float
    """How long a worker may be silent beyond what a share's limits allow, before it counts as hung."""
    own_models: bool = False
    """Whether converted models are made anew in the run's folder, and not taken from the user's cache: anyone can write
    there between two runs."""

    def choice(self, route: schema.Route) -> messages.SuiteChoice:
        """A route's suite, as a worker builds it."""
        options = {**self.suite_options.get(route.suite, {}), **route.suite_options}
        return messages.SuiteChoice(
            name=route.suite,
            spec=self.suites[route.suite].spec,
            tier=route.tier,
            options=options,
            weight_class=route.weight_class,
        )

    def suite(self, route: schema.Route) -> SuiteModel:
        """What this process needs of a route's suite, out of reach of the adapters. Raises MixmarkError."""
        return suite_of(self.suites[route.suite]).build(self.choice(route))

    def drawn(self, share: schema.Share, use: str) -> int:
        """A seed that is unknown before this call, unless the run has a seed. It differs between shares and between
        uses, so that outputs which an engine cached are never requested again."""
        return secrets.randbits(63) if self.seed is None else seeds.derived(self.seed, use, share.key)

    def worker(self, route: schema.Route, scratch: Path, log: Path) -> Worker:
        """A fresh process for the route, pinned to its cores if the device is a slice. scratch: a folder in the run's
        folder. The probe of a built-in adapter is a witness, so nothing but Mixmark and the engine runs in its process.
        Raises WorkerFailed."""
        chosen, device = self.config.adapter(route.adapter), self.devices[route.device, route.adapter]
        plugin, suite = self.adapters[route.adapter], self.suites[route.suite]
        witness = suite.name == "probe" and suite.built_in and plugin.built_in and not chosen.own_interpreter
        apart = isolation(suite.spec, device) if witness else None
        models = {model_cache.FOLDER: str(scratch.parent / MODELS)} if self.own_models else {}
        return Worker(plugin, chosen.options, scratch, log, chosen.python, device.cores, apart, models)


@dataclass(frozen=True)
class Suites:
    """The suites with the options of the configuration and the command line."""

    plugins: Mapping[str, Plugin]
    workloads: Sequence[Workload]
    facts: Mapping[str, schema.SuiteFacts]
    options: Mapping[str, Mapping[str, str]]
    """The options that each suite is built with, the path of its checkpoint included."""
    absent: tuple[schema.Absent, ...]
    """The suites that cannot be loaded."""
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """`Measured.files` of each suite that measured itself."""

    def choose(self, asked: Sequence[str], scenarios: Sequence[str] = ()) -> list[Workload]:
        """The named suites, or all. Raises UsageError for an unknown suite or scenario, for a scenario that no chosen
        suite has, and for a named suite that has none of the scenarios."""
        names = choose_by_name("suite", asked, [workload.name for workload in self.workloads])
        known = dict.fromkeys(name for workload in self.workloads for name in workload.scenarios if name != "probe")
        choose_by_name("scenario", scenarios, known)
        chosen = [workload for workload in self.workloads if workload.name in names]
        idle = [each for each in chosen if asked and scenarios and set(scenarios).isdisjoint(each.scenarios)]
        lacking = [name for name in scenarios if not any(name in each.scenarios for each in chosen)]
        if idle or lacking:
            first = (idle or chosen)[0]
            none = f"{first.name} has no scenario {' or '.join(lacking or scenarios)}"
            raise UsageError(none, hint=f"it has {', '.join(first.scenarios)}")
        return chosen

    @property
    def probe(self) -> Workload | None:
        """The suite that measures the ceilings of a device, with the size of the last-level cache, so that it streams
        more than that. None if it cannot be loaded."""
        found = next((workload for workload in self.workloads if workload.name == "probe"), None)
        cache_bytes = last_level_bytes(dict(processor.caches())) or LARGEST_CACHE_BYTES
        return found and replace(found, options={"cache_bytes": str(cache_bytes), **found.options})


@dataclass(frozen=True)
class Workbench:
    """The configuration, adapters, suites and devices of a run."""

    config: Config
    adapters: Mapping[str, Plugin]
    suites: Suites
    found: Found
    hosts: tuple[schema.Hosts, ...] = ()
    """The hosts that the devices belong to. Empty means this machine."""

    def targets(self, devices: Sequence[str] = ()) -> list[Target]:
        """The targets on the named devices, or all. Raises MixmarkError if no device can be measured, UsageError for
        an unknown device."""
        if not self.found.targets:
            reasons = "; ".join(f"{each.label}: {each.reason}" for each in self.found.absent)
            raise MixmarkError("no device can be measured here", hint=reasons or "mixmark devices shows why")
        ids = choose_by_name("device", devices, [device.id for device in self.found.devices], REACHED)
        return [target for target in self.found.targets if target.device.id in ids]

    def header(
        self,
        phases: tuple[schema.Phase, ...],
        tier: schema.Tier,
        preset: str,
        seed: int | None = None,
        mix: schema.Mix | None = None,
        objective: Objective = "throughput",
    ) -> schema.Result:
        """The result of a run that has not begun. Without a seed, each window draws its own."""
        system, failed_watchers = (self.hosts[0].system, ()) if self.hosts else disclosed()
        return schema.Result(
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=seed,
            tier=tier,
            preset=preset,
            command=command_line(),
            phases=phases,
            system=system,
            hosts=self.hosts,
            devices=self.found.devices,
            code=dict(sealed.own().files),
            environments=dict(self.found.environments),
            absent=(*self.suites.absent, *self.found.absent, *failed_watchers),
            noise_floor=None if self.hosts else noise_floor.floors().get(tier),
            mix=mix,
            objective=objective,
            suites=tuple(self.suites.facts.values()),
            records=(),
            finished=False,
        )

    def equipment(self, seed: int | None, timeout_s: float, own_models: bool = False) -> Equipment:
        """The equipment of a run's phases. It holds no devices of other hosts: their agents hold them."""
        return Equipment(
            adapters=self.adapters,
            suites=self.suites.plugins,
            suite_options=self.suites.options,
            units={name: each.unit for name, each in self.suites.facts.items()},
            devices={}
            if self.hosts
            else {(target.device.id, target.adapter): target.device for target in self.found.targets},
            config=self.config,
            seed=seed,
            timeout_s=timeout_s,
            own_models=own_models,
        )

    def check_same(self, before: schema.Result) -> None:
        """Raises UsageError if a resumed run would use other code, devices, suites or weights than it began with."""
        if changed := sorted(path for path, _ in before.code.items() ^ sealed.own().files.items()):
            raise UsageError(f"the run began with another {changed[0]}", "resume it with the same files of Mixmark")
        targets = {(target.device.id, target.adapter) for target in self.found.targets}
        now = {(each.name, each.version, unnamed(each.weights)) for each in self.suites.workloads}
        for route in (share.route for phase in before.phases for task in phase.tasks for share in task.shares):
            if (route.device, route.adapter) not in targets:
                raise UsageError(
                    f"the run began with {route.device} by {route.adapter}, which is not here now",
                    hint="resume it where it began, with the same --adapter, --config and --split-cpu",
                )
            if not route.hosted and (route.suite, route.suite_version, unnamed(route.weights)) not in now:
                raise UsageError(
                    f"the run began with {route.suite} {route.suite_version} and its weights: {route.weights}; "
                    "now they differ",
                    hint="resume it with the same version of Mixmark and the same --weights",
                )


def disclosed() -> tuple[schema.System, tuple[schema.Absent, ...]]:
    """This machine, and the vendors' watchers that failed."""
    with Accelerators() as accelerators:
        system = disclose(accelerators=accelerators.disclose())
    return system, accelerators.absent


def known_adapters(config: Config, specs: Iterable[str] = (), named: Collection[str] = ()) -> dict[str, Plugin]:
    """All adapters by name: the installed ones, and those with a section in the configuration or on the command line.

    specs: adapters of the command line, as FILE:CLASS. named: adapters that the command line names; an adapter that
    needs a section of the configuration is listed only if it has one or is named.
    """
    brought = {plugins.name_of_spec(each) for each in specs}
    configured = {
        name: _configured(name, each)
        for name, each in config.adapters.items()
        if (each.own_interpreter or each.plugin) and name not in brought
    }
    idle = WITH_SECTION - config.adapters.keys() - set(named)
    return {name: each for name, each in {**plugins.find("adapters", specs), **configured}.items() if name not in idle}


def _configured(name: str, section: AdapterConfig) -> Plugin:
    """The adapter of a section. A worker of another interpreter looks the class up unless the section gives it. Raises
    UsageError if no adapter may have the section's name."""
    if section.plugin and (problem := plugins.name_problem("adapters", name)):
        raise UsageError(f"[adapter.{name}] in the configuration: {problem}", hint="give the section another name")
    spec = section.plugin if plugins.is_spec(section.plugin) else ""
    itself = plugins.name_of_spec(spec) if spec else section.plugin
    known = None if spec or section.own_interpreter else plugins.find("adapters").get(itself)
    if known:
        return replace(known, name=name, own_name=itself)
    return Plugin("adapters", name, spec, plugins.ELSEWHERE if section.own_interpreter else "configuration", itself)


def choose_adapters(asked: Sequence[str], config: Config) -> dict[str, Plugin]:
    """The adapters to use: all, or what the command line names, by name or as FILE:CLASS. Raises UsageError."""
    found = known_adapters(config, [each for each in asked if plugins.is_spec(each)], asked)
    names = [plugins.name_of_spec(each) if plugins.is_spec(each) else each for each in asked]
    return {name: found[name] for name in choose_by_name("adapter", names, found)}


def find_devices(adapters: Sequence[str], config: Config) -> Found:
    """The devices that the chosen adapters reach."""
    chosen = choose_adapters(adapters, config)
    found = discover(chosen, config)
    unknown = set(config.adapters) - set(known_adapters(config)) - set(chosen)
    unused = [
        schema.Absent(
            kind="configuration",
            name=f"[adapter.{name}]",
            reason="there is no such adapter; if it is installed for another interpreter, name that by python = …",
        )
        for name in sorted(unknown)
    ]
    return replace(found, absent=(*found.absent, *plugins.refused_entry_points("adapters"), *unused))


def bystanders(adapters: Sequence[str], config: Config, seen: Iterable[schema.Device]) -> tuple[schema.Device, ...]:
    """The devices that only adapters reach which the command line leaves out: they draw power too."""
    if not adapters:
        return ()
    chosen = choose_adapters(adapters, config)
    others = {name: plugin for name, plugin in known_adapters(config).items() if name not in chosen}
    silicon = {part for each in seen for part in (each.whole.id, *each.silicon)}
    return tuple(
        each for each in discover(others, config).devices if not all(is_covered(part, silicon) for part in each.silicon)
    )


def load_suites(config: Config, tier: schema.Tier, weights: Sequence[str] = (), specs: Sequence[str] = ()) -> Suites:
    """Loads the suites. weights: SUITE=PATH each. specs: more suites, as ./acme.py:Acme. Raises UsageError, also for an
    option that a suite refuses."""
    found = known_suites(config, specs)
    choose_by_name("suite in the configuration", list(config.suites), found)
    checkpoints = checkpoint_paths(weights, found)
    workloads, facts, options, absent = [], {}, {}, [*plugins.refused_entry_points("suites")]
    for name, plugin in found.items():
        try:
            suite = suite_of(plugin)
            described = suite.describe()
        except MixmarkError as error:
            absent.append(schema.Absent(kind="suite", name=name, reason=str(error)))
            continue
        configured = config.suites.get(name, {})
        if configured:
            try:
                suite.build(messages.SuiteChoice(name=name, spec=plugin.spec, tier=tier, options=dict(configured)))
            except Unsupported:  # of a suite without the tier; its records say so if it is measured
                pass
            except Exception as error:  # whatever a plugin raises
                raise UsageError(f"[suite.{name}] in the configuration: {error_text(error)}") from error
        scenarios = cast(tuple[schema.ScenarioName, ...], described.scenarios)
        workloads.append(Workload(name, described.version, scenarios, configured))
        words = described.unit_names
        if plugin.built_in:
            with suppress(Unsupported):  # as above
                words = plugins.build_suite(name, plugin.spec, tier, {}).unit_names
        facts[name] = schema.SuiteFacts(
            name=name, version=described.version, unit=described.unit, unit_names=words, continues=described.continues
        )
        options[name] = {**configured, **({"weights": str(checkpoints[name])} if name in checkpoints else {})}
    return Suites(found, workloads, facts, options, tuple(absent))


def known_suites(config: Config, specs: Iterable[str] = ()) -> dict[str, Plugin]:
    """All suites by name: the installed ones, those of the command line, and the sections that name their suite by
    `plugin`, so that one suite can be configured several times. Raises UsageError."""
    found = plugins.find("suites", specs)
    for name, options in config.suites.items():
        if (plugin := options.get("plugin")) is None:
            continue
        if problem := plugins.name_problem("suites", name):
            raise UsageError(f"[suite.{name}] in the configuration: {problem}", hint="give the section another name")
        itself = plugins.name_of_spec(plugin) if plugins.is_spec(plugin) else plugin
        known = models() | plugins.find("suites", [plugin] if plugins.is_spec(plugin) else ())
        choose_by_name(f"suite [suite.{name}] plugin", [itself], known)
        found[name] = replace(known[itself], name=name)
    return found


def measuring(config: Config) -> dict[str, Plugin]:
    """The sections of Mixmark's suites that measure themselves before a run."""
    known = known_suites(config)
    chosen = {name: known[name] for name, options in config.suites.items() if "plugin" in options}
    return {name: each for name, each in chosen.items() if each.built_in and hasattr(each.load(), "measured")}


def measure_suites(suites: Suites, tier: schema.Tier, auditors: Mapping[str, Worker]) -> Suites:
    """The suites with what these of them measured, each in its own auditor; stderr names each. Raises UsageError."""
    workloads, options, files = {each.name: each for each in suites.workloads}, dict(suites.options), {}
    for name, worker in auditors.items():
        given = dict(options[name])
        print(f"mixmark: reading {name}, which takes minutes if it is large", file=sys.stderr)
        choice = messages.SuiteChoice(name=name, spec=suites.plugins[name].spec, tier=tier, options=given)
        try:
            found = worker.call(messages.AdapterCalls.measured, MEASURING_S)(suite=choice)
        except WorkerFailed as failed:
            raise UsageError(f"{name}: {failed.failure.message}", failed.failure.hint) from failed
        workloads[name] = replace(
            workloads[name],
            options=found.options,
            weights=found.weights,
            scenarios=cast(tuple[schema.ScenarioName, ...], tuple(found.scenarios)),
            precisions=found.precisions,
        )
        options[name], files[name] = {**given, **found.options}, found.files
    return replace(suites, workloads=[*workloads.values()], options=options, files=files)


def prepare(config: Config, suites: Suites, adapters: Sequence[str], split_cpu: str | None = None) -> Workbench:
    """Asks the adapters for their devices. split_cpu: see `cpu_slices.split`. Raises UsageError."""
    found = find_devices(adapters, config)
    if split_cpu:
        found = replace(found, targets=cpu_slices.split(found.targets, split_cpu))
    return Workbench(config, choose_adapters(adapters, config), suites, found)


def check_checkpoints(suites: Suites, tier: schema.Tier) -> Suites:
    """Reads every weight of each checkpoint once, in a process of its own, before anything is measured with it. Returns
    the suites with the labels of their weights. Raises UsageError."""
    labels: dict[str, str] = {}
    absent = [*suites.absent]
    for name, options in suites.options.items():
        if "weights" not in options:
            continue
        plugin = suites.plugins[name]
        choice = messages.SuiteChoice(name=name, spec=plugin.spec, tier=tier, options=dict(options))
        process = SuiteProcess(plugin)
        try:
            labels[name], unused = process.check_weights(choice)
        except MixmarkError as error:
            raise UsageError(f"--weights {name}: {error}", error.hint) from error
        finally:
            process.end()
        if unused:
            tensors = f"{plain(unused[0], 80)}{f' and {len(unused) - 1} more' if unused[1:] else ''}"
            reason = f"the suite's network has no {tensors} of the checkpoint: its outputs may not be the model's"
            absent.append(schema.Absent(kind="weights", name=name, reason=reason))
    workloads = [replace(each, weights=labels.get(each.name, each.weights)) for each in suites.workloads]
    return replace(suites, workloads=workloads, absent=tuple(absent))


def checkpoint_paths(given: Sequence[str], suites: Mapping[str, Plugin]) -> dict[str, Path]:
    """The checkpoint of each suite that has one. Raises UsageError."""
    found = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals:
            raise UsageError(f"--weights {each!r} has no suite", hint="give it as SUITE=PATH, e.g. llm=./Llama-3.2-1B")
        choose_by_name("suite", [name], suites)
        try:
            found[name] = Path(path).resolve(strict=True)
        except OSError as error:
            message = f"--weights {name}: {path} cannot be read: {error.strerror}"
            raise UsageError(message, hint="give a checkpoint file or folder") from error
    return found


def command_line() -> tuple[str, ...]:
    """The options of this run without the values that may be paths or are private."""
    private = {name for option in of_machines() if option.hide_input for name in option.opts}
    shown = []
    for before, word in itertools.pairwise(["", *sys.argv[1:]]):
        option, equals, value = word.partition("=") if word.startswith("-") else (before, "", word)
        hidden = f"<{option.lstrip('-')}>" if option in private and value else "<path>" if "/" in value else ""
        shown.append((option + equals if word.startswith("-") else "") + hidden if hidden else word)
    return tuple(shown)
