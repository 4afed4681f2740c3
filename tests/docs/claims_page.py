"""docs/claims.md from the published entries: how far predictions lie off, and what a mixture saves.

python -m tests.docs.claims_page    rewrites the page; read the diff before you commit it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mixmark.harness.cli import plan as command
from mixmark.harness.contracts.numbers import percent, significant
from mixmark.harness.judge import catalogue
from mixmark.harness.judge.catalogue import Checked
from mixmark.harness.plan import mixes
from mixmark.harness.plan.machine import Answer, Kind, Limits, Planner, Retained
from mixmark.submissions.references import ENTRIES

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
DEMANDS = (1, 10, 100)
"""Times the work of the fastest host."""
USED = (0.8, 0.5)
"""The fractions of a machine's work that are asked of it."""
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
    return "\n".join([HEAD, *accuracy(checks), MIXTURE, *mixture]).rstrip("\n") + "\n"


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
