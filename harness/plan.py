"""Which routes are measured, in which phases, and for how long. Pure: nothing here touches the machine."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.schema import Device, Limits, Phase, Precision, Route, ScenarioName, Share, Task, Tier

SECOND = 1_000_000_000
PROBE = "probe"


@dataclass(frozen=True)
class Way:
    """A device as one adapter sees it."""

    device: Device
    adapter: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Workload:
    """What planning needs to know of a suite."""

    name: str
    version: str
    scenarios: Sequence[ScenarioName]
    options: Mapping[str, str] = field(default_factory=dict)
    weights: str = "drawn"


@dataclass(frozen=True)
class Preset:
    """How much to measure. quick: the native scenario of each suite; standard: its closed-loop ones.

    A server is measured where `--scenario server` asks for it: finding a rate takes many feeds.
    """

    name: str
    all_scenarios: bool
    limits: Limits


def _limits(
    warmup_s: float,
    search_s: float,
    min_s: float,
    max_s: float,
    min_feeds: int,
    half_width: float | None = None,
    audits: int = 0,
) -> Limits:
    warmup_ns, search_ns, min_ns, max_ns = (int(seconds * SECOND) for seconds in (warmup_s, search_s, min_s, max_s))
    return Limits(
        warmup_ns=warmup_ns,
        search_ns=search_ns,
        min_ns=min_ns,
        max_ns=max_ns,
        min_feeds=min_feeds,
        half_width=half_width,
        audits=audits,
    )


PRESETS = {
    "quick": Preset("quick", False, _limits(5, 12, 10, 28, 1, 0.05, 1)),  # 45 s a cell together, one long feed excepted
    "standard": Preset("standard", True, _limits(10, 60, 30, 300, 3, 0.02, 3)),
}
SELFTEST = Preset("selftest", False, _limits(3, 0, 5, 10, 3))  # short and many: what repeats is the process
SMOKE = _limits(0.3, 1, 1, 5, 1, audits=1)  # the smoke tier is never ranked: it shows that everything works
PROBING = _limits(0, 0, 1.5, 10, 2)


def expected_s(share: Share) -> float:
    """About how long a share takes, for the progress display: load and start-up are guessed at a few seconds."""
    start_s = 3 if share.route.tier == "smoke" or share.route.suite == PROBE else 10
    search_ns = share.limits.search_ns if share.batch is None or share.scenario == "server" else 0
    return start_s + (share.limits.warmup_ns + search_ns + share.limits.min_ns) / SECOND


def pick(what: str, asked: Sequence[str], existing: Iterable[str]) -> tuple[str, ...]:
    """The asked ones, or all where nothing is asked. Raises UsageError with what was meant and what exists."""
    names = tuple(existing)
    for name in asked:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no {what} {name!r}", hint=f"{meant}there is: {', '.join(names) or 'none'}")
    return tuple(dict.fromkeys(asked)) or names


def solo(
    ways: Sequence[Way],
    workloads: Sequence[Workload],
    tier: Tier,
    preset: Preset,
    precisions: Sequence[Precision] = (),
    scenarios: Sequence[ScenarioName] = (),
    probe: Workload | None = None,
    rate_per_s: float | None = None,
    runs: int = 1,
) -> tuple[Phase, ...]:
    """One phase a cell: for each way onto each device, the probe, every suite in turn, the probe again; and all
    of that `runs` times over, so that the runs of a cell lie as far apart as they can.

    A way runs the asked precisions that its device has, or its best one where none is asked; a suite the
    asked scenarios that it has, or those of the preset. Raises UsageError where nothing is left to run.
    """
    phases: list[Phase] = []

    def add(way: Way, workload: Workload, precision: Precision, scenario: ScenarioName, run: int) -> None:
        route = Route(
            suite=workload.name,
            tier=tier,
            suite_version=workload.version,
            device=way.device.id,
            adapter=way.adapter,
            precision=precision,
            options=dict(way.options),
            suite_options=dict(workload.options),
            weights=workload.weights,
        )
        words = (f"{len(phases):03d}", route.suite, route.adapter, route.device, precision, scenario)
        key = re.sub(r"[^a-z0-9.]+", "-", ".".join(words).lower())
        limits = PROBING if workload.name == PROBE else SMOKE if tier == "smoke" else preset.limits
        share = Share(
            key=key,
            route=route,
            scenario=scenario,
            batch=None if scenario == "offline" else 1,
            rate_per_s=rate_per_s if scenario == "server" else None,
            run=run,
            limits=limits,
        )
        phases.append(Phase(name=key, tasks=(Task(device=route.device, shares=(share,)),)))

    for run, way in itertools.product(range(1, runs + 1), ways):
        asked = [each for each in precisions if each in way.device.precisions]
        for precision in asked or (() if precisions else way.device.precisions[:1]):
            cells = [
                (workload, scenario)
                for workload in workloads
                for scenario in _scenarios(workload, preset, scenarios)
                if workload.name != PROBE
            ]
            if cells and probe:
                add(way, probe, precision, "single-stream", run)
            for workload, scenario in cells:
                add(way, workload, precision, scenario, run)
            if probe:
                add(way, probe, precision, "single-stream", run)
    if not phases:
        have = sorted({each for way in ways for each in way.device.precisions})
        raise UsageError(
            "nothing is left to run",
            hint=f"precisions here: {', '.join(have) or 'none'}; `mixmark suites` shows the scenarios of each suite",
        )
    return tuple(phases)


def _scenarios(workload: Workload, preset: Preset, asked: Sequence[ScenarioName]) -> Iterator[ScenarioName]:
    if asked:
        yield from (each for each in workload.scenarios if each in asked)
    else:
        closed = [each for each in workload.scenarios if each != "server"]
        yield from closed if preset.all_scenarios else closed[:1]
