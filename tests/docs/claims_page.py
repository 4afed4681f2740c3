"""docs/claims.md from the published entries: how far predictions lie off, and what a mixture saves.

python -m tests.docs.claims_page    rewrites the page; read the diff before you commit it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mixmark.harness.cli import plan as command
from mixmark.harness.contracts.numbers import percent, significant
from mixmark.harness.discover.suite_claims import workload
from mixmark.harness.judge import catalogue
from mixmark.harness.judge.catalogue import Checked
from mixmark.harness.plan import assumed, mixes
from mixmark.harness.plan.machine import Answer, Kind, Limits, Planner, Retained
from mixmark.submissions.references import ENTRIES

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
DEMANDS = (1, 10, 100)
"""Times the work of the fastest host."""
USED = (0.8, 0.5)
"""The fractions of a machine's work that are asked of it."""
UNITS = {"llm": "tok/s", "diffusion": "img/s", "dlrm": "samples/s", "resnet50": "img/s"}
SHOWN = 5
HEAD = """# Claims about mixtures

This page is generated from the published entries (`python -m tests.docs.claims_page`). Everything but the measured
column is [predicted](plan.md), and none of it is ranked.

## How far predictions lie off

Each machine's mix, predicted from its own solo rates and what the *other* machines retained of their plans:
"""
MIXTURE = """
## Is a mixture cheaper than the best single kind?

Published studies of mixed GPUs found up to 41 % more work for the same money, 20 to 25 % on average
([arXiv 2502.00722](https://arxiv.org/abs/2502.00722)), and 33 to 77 % less cost for three kinds of requests
([arXiv 2404.14527](https://arxiv.org/abs/2404.14527)). From our entries, where *one kind* means that devices of one
kind do all of the work, and the processors of their hosts none:
"""

BOUNDS = """
## What datasheets allow

No published result has an accelerator, so this table holds *bounds*: the most that a device could do by its
[datasheet](plan.md#devices-that-nobody-measured) and the suites' own cost models, with weights of 16 bits. Nobody
measured these figures, they are not ranked, and a real machine stays below them. The watts are the maker's limit of a
board, module or system, without the host.
"""


PAIRS = """
Vendors' papers claim that mixtures cost *2 to 5 times less* than one kind of device, and that a server of *575 W* does
the work of one of 1,000 W: 74 % more work per joule. If each suite runs on the device that does more of it per joule,
and both devices reach the same part of their bounds, a pair gains this over the better of the two alone, for the mix
edge-1. So the datasheets alone support neither claim for this mix. Devices that reach unlike parts of their bounds may
gain more or less: only a measurement of both in one machine tells. Costs cannot be told, since no maker publishes a
price.
"""


def page() -> str:
    """The whole page from the published entries."""
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
    sections = [HEAD, *accuracy(checks), MIXTURE, *mixture, BOUNDS.lstrip("\n"), *bounds("edge-1")]
    return "\n".join(sections).rstrip("\n") + "\n"


def bounds(name: str) -> Iterator[str]:
    """The bounds of each shipped datasheet, and the pairs of devices that gain most per watt: each suite then runs on
    the device that does more of it per joule."""
    mix = mixes.frozen()[name]
    workloads = {suite: workload(suite, mix.tier, 16) for suite in mix.units}
    joules: dict[str, dict[str, float]] = {}  # of each suite's part of a mix
    yield f"| device | {' | '.join(f'{suite}, {unit}' for suite, unit in UNITS.items())} | mix/h | mix/kWh |"
    yield f"|---|{'---:|' * (len(UNITS) + 2)}"
    for device, sheet in assumed.datasheets().items():
        kind = assumed.kind(device, sheet, workloads, [], fraction=1.0)
        rates = {speed.suite: speed.units_per_s.estimate for speed in kind.speeds}
        took_s = {suite: units / rates[suite] if suite in rates else math.inf for suite, units in mix.units.items()}
        if kind.idle_watts:
            joules[device] = {suite: kind.idle_watts * each for suite, each in took_s.items()}
        per_hour = significant(3600 / sum(took_s.values())) if math.inf not in took_s.values() else "no mix"
        per_kwh = significant(3.6e6 / sum(joules[device].values())) if device in joules else "watts not published"
        cells = (significant(rates[suite]) if suite in rates else "does not fit" for suite in UNITS)
        yield f"| {device} | {' | '.join(cells)} | {per_hour} | {'no mix' if per_hour == 'no mix' else per_kwh} |"
    gains: dict[str, float] = {}
    for (one, first), (other, second) in itertools.combinations(joules.items(), 2):
        alone = min(sum(first.values()), sum(second.values()))
        gains[f"{one} and {other}"] = alone / sum(min(first[suite], second[suite]) for suite in mix.units) - 1
    yield PAIRS
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
    PAGE.write_text(page(), "utf-8")
