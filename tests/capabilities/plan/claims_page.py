"""docs/capabilities/plan/claims.md from the published entries: how far predictions lie off, and what a mixture saves.

python -m tests.capabilities.plan.claims_page    rewrites its tables; read the diff before you commit it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from mixmark.harness.capabilities.plan import assumed, catalogue, command
from mixmark.harness.capabilities.plan.catalogue import Checked
from mixmark.harness.capabilities.plan.machine import Answer, Kind, Limits, Planner, Retained
from mixmark.harness.contracts.numbers import percent, significant
from mixmark.harness.plan import mixes
from tests.docs import parts

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "capabilities" / "plan" / "claims.md"
ENTRIES = ROOT / "submissions" / "entries"
DEMANDS = (1, 10, 100)
"""Times the work of the fastest host."""
USED = (0.8, 0.5)
"""The fractions of a machine's work that are asked of it."""
UNITS = {"llm": "tok/s", "diffusion": "img/s", "dlrm": "samples/s", "resnet50": "img/s"}
SHOWN = 5


def renewed(page: str) -> str:
    """The page with its figures from the published entries as they are now. Without entries it stays as it is."""
    if not ENTRIES.is_dir():
        return page
    left_out: list[tuple[str, str]] = []
    checks: list[Checked] = []
    mixture: list[str] = []
    sources = list(command._sources((), (ENTRIES,), left_out))
    for name in sorted({source.assessment.result.mix.name for source in sources if source.assessment.result.mix}):
        mix = mixes.frozen()[name]
        machines = list(command._measured(sources, mix, 16, left_out))
        for _, machine in machines if len(machines) > 1 else ():
            others = catalogue.of_runs(other.retained for _, other in machines if other is not machine)
            checks.append(catalogue.check(machine, mix.units, others))
        kinds, currency, _ = command._kinds(machines, None, left_out)
        retained = catalogue.of_runs(machine.retained for _, machine in machines)
        mixture += [f"### {name}", "", *savings(kinds, mix.units, retained, currency), ""]
    told = {"accuracy": accuracy(checks), "savings": mixture[:-1], "bounds": bounds("edge-1"), "pairs": pairs("edge-1")}
    return parts.renewed(page, **{name: "\n".join((*lines, "")) for name, lines in told.items()})


Bounds = tuple[str, Kind, dict[str, float], dict[str, float]]
"""A device, its bounds, the seconds that each suite's part of a mix takes, and their joules: empty if no watts are
published."""


@cache
def bounds_of(name: str) -> tuple[Bounds, ...]:
    """The bounds of each shipped datasheet for the work of a mix."""
    mix = mixes.frozen()[name]
    workloads = {suite: assumed.workload(suite, mix.tier, 16) for suite in mix.units}
    found: list[Bounds] = []
    for device, sheet in assumed.datasheets().items():
        kind = assumed.kind(device, sheet, workloads, [], fraction=1.0)
        rates = {speed.suite: speed.units_per_s.estimate for speed in kind.speeds}
        took_s = {suite: units / rates[suite] if suite in rates else math.inf for suite, units in mix.units.items()}
        joules = {suite: kind.idle_watts * each for suite, each in took_s.items() if kind.idle_watts}
        found.append((device, kind, took_s, joules))
    return tuple(found)


def bounds(name: str) -> Iterator[str]:
    yield f"| device | {' | '.join(f'{suite}, {unit}' for suite, unit in UNITS.items())} | mix/h | mix/kWh |"
    yield f"|---|{'---:|' * (len(UNITS) + 2)}"
    for device, kind, took_s, joules in bounds_of(name):
        rates = {speed.suite: speed.units_per_s.estimate for speed in kind.speeds}
        per_hour = significant(3600 / sum(took_s.values())) if math.inf not in took_s.values() else "no mix"
        per_kwh = significant(3.6e6 / sum(joules.values())) if joules else "watts not published"
        cells = (significant(rates[suite]) if suite in rates else "does not fit" for suite in UNITS)
        yield f"| {device} | {' | '.join(cells)} | {per_hour} | {'no mix' if per_hour == 'no mix' else per_kwh} |"


def pairs(name: str) -> Iterator[str]:
    """The pairs of devices that gain most per watt: each suite runs on the device that does more of it per joule."""
    known = {device: joules for device, _, _, joules in bounds_of(name) if joules}
    gains: dict[str, float] = {}
    for (one, first), (other, second) in itertools.combinations(known.items(), 2):
        alone = min(sum(first.values()), sum(second.values()))
        gains[f"{one} and {other}"] = alone / sum(min(first[suite], second[suite]) for suite in first) - 1
    yield from ("| pair | more work per joule than the better one |", "|---|---:|")
    for pair in sorted(gains, key=lambda pair: -gains[pair])[:SHOWN]:
        yield f"| {pair} | {percent(gains[pair])} |"


def accuracy(checks: Sequence[Checked]) -> Iterator[str]:
    if not checks:
        yield "This cannot be told yet: one machine is published, and there is no other to predict it from."
        return
    yield "| machine | predicted, mix/h | interval | measured | off | inside |"
    yield "|---|---:|---:|---:|---:|---|"
    for check in sorted(checks, key=lambda check: check.name):
        figure = check.predicted
        interval = " to ".join(map(significant, figure.ends))
        yield (
            f"| {check.name} | {significant(figure.estimate)} | {interval} | {significant(check.measured.estimate)} "
            f"| {check.off:+.1%} | {'yes' if check.inside else '**no**'} |"
        )


def savings(kinds: Sequence[Kind], mix_units: Mapping[str, float], retained: Retained, currency: str) -> Iterator[str]:
    """What the cheapest machine costs beside the best of one kind, or why that cannot be told."""
    free = [replace(kind, owned=0) for kind in kinds]
    cards = [kind.name for kind in free if not kind.is_host]
    lacking = [kind.name for kind in free if kind.price is None]
    if not cards or lacking:
        reasons = ["" if cards else "only machines of processors are published"]
        reasons += [f"no price is declared of {', '.join(sorted(lacking))}"] if lacking else []
        yield "It cannot be told yet, nor what a load of 50 % costs beside one of 80 %:"
        yield f"{'; '.join(filter(None, reasons))}."
        return
    planner = Planner(free, mix_units, retained)
    base = max(
        planner.of({kind.name: 1}).mixes_per_hour.estimate
        for kind in free
        if kind.is_host and mix_units.keys() <= {speed.suite for speed in kind.speeds}
    )
    yield f"| work, mix/h | load | cheapest, {currency} | machine | best of one kind, {currency} | saved |"
    yield "|---:|---:|---:|---|---:|---:|"
    for times in DEMANDS:
        for used in USED:
            limits = Limits(mixes_per_hour=base * times / used)
            best = planner.answer("cheapest", limits)
            alone = min(answer.price or 0.0 for answer in planner.alone("cheapest", limits).values())
            price = best.price or 0.0
            yield (
                f"| {significant(base * times)} | {percent(used)} | {significant(price, 4)} | {_counts(best)} "
                f"| {significant(alone, 4)} | {percent(1 - price / alone)} |"
            )


def _counts(answer: Answer) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in answer.counts.items())


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
