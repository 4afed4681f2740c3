"""Sensitivity of λ* to a mix's units: λ* with each m_w halved and doubled, as a multiple of λ*.

Run: python -m bench.mix_sensitivity [RESULT …]

It prints a table for the nominal device of every frozen mix, and for each machine whose result folder holds a mixed
phase. The values are predictions from solo rates. A suite that does not limit a machine changes λ* little; on a single
device each suite takes its own part of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mixmark.harness.contracts.schema import Mix, Rate
from mixmark.harness.plan import mixes
from mixmark.harness.plan.placement import bound
from mixmark.harness.plugins import registry
from mixmark.harness.record import store

BATCHES = {"llm": 1, "diffusion": 1, "dlrm": 2048, "resnet50": 32}


def nominal(mix: Mix) -> list[Rate]:
    """The rates of the nominal device, from which the mix was derived."""
    assert mix.nominal_flops_per_s and mix.nominal_bytes_per_s  # every frozen mix has them
    rates = []
    for name, batch in BATCHES.items():
        suite = registry.find("suites")[name].load()(mix.tier, {})
        feed_s = sum(
            cost.yields * max(cost.flops / mix.nominal_flops_per_s, cost.bytes / mix.nominal_bytes_per_s)
            for cost in suite.costs("bf16", batch)
        )
        speed = suite.units(batch) / feed_s
        rates.append(
            Rate(suite=name, device="nominal", adapter="none", precision="bf16", batch=batch, units_per_s=speed)
        )
    return rates


def table(mix_units: Mapping[str, float], rates: Sequence[Rate]) -> Iterator[str]:
    base = bound(mix_units, rates).mixes_per_s
    yield "| suite | m_w | × ½ | × 2 |"
    yield "|---|---:|---:|---:|"
    for suite, count in mix_units.items():
        moved = [bound({**mix_units, suite: count * by}, rates).mixes_per_s / base for by in (0.5, 2)]
        yield f"| {suite} | {count:,g} | {moved[0]:.3f} | {moved[1]:.3f} |"


def main(folders: Sequence[str]) -> None:
    for mix in mixes.frozen().values():
        print(f"\n{mix.name} on its nominal device, λ* {bound(mix.units, nominal(mix)).mixes_per_s:.3f} mix/s\n")
        print(*table(mix.units, nominal(mix)), sep="\n")
    for folder in folders:
        result = store.open(Path(folder))
        plans = [phase.placement for phase in result.phases if phase.placement]
        if not plans or result.mix is None:
            print(f"\n{folder} has no mixed phase")
            continue
        rates, system = plans[-1].rates, result.system
        print(
            f"\n{result.mix.name} on {system.cpu_model} and {len({rate.device for rate in rates})} device(s), λ* "
            f"{bound(result.mix.units, rates).mixes_per_s:.3g} mix/s\n"
        )
        print(*table(result.mix.units, rates), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
