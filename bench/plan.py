"""How long the planner of machines takes for many kinds of device.

Run: python -m bench.plan [KINDS] [SUITES]   (64 16)

Random kinds with prices and watts, a quarter of them hosts; up to 1,000 of each, and work for some hundred devices. One
in sixteen has too little memory for all suites at once. Prints the seconds and the gap of each question.
"""

from __future__ import annotations

import random
import sys
import time

from mixmark.harness.capabilities.plan.machine import Constraints, Kind, Question, Speed
from mixmark.harness.capabilities.plan.program import Planner
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.figures import Estimate

SEEDS = 3
QUESTIONS: tuple[tuple[Question, Constraints], ...] = (
    ("cheapest", Constraints(mixes_per_hour=200 * 3600)),
    ("most", Constraints(budget=1e6, watts=1e5)),
    ("efficient", Constraints(mixes_per_hour=200 * 3600, budget=2e6)),
    ("efficient", Constraints(budget=1e6)),
)


def kind(rng: random.Random, number: int, suites: int) -> Kind:
    """An accelerator, or a host for up to eight accelerators, with a random speed for each suite."""
    host, scale = number % 4 == 0, rng.uniform(0.5, 8)
    speeds = tuple(
        Speed(
            f"s{suite}",
            Estimate(scale * rng.lognormvariate(0, 0.7) * (0.2 if host else 1)),
            extra_watts=rng.uniform(50, 500),
            memory_bytes=rng.randint(1, 4),
        )
        for suite in range(suites)
        if rng.random() < 0.9
    )
    held = sum(speed.memory_bytes for speed in speeds)
    limited = number % 16 == 1  # two suites do not fit into memory beside the others
    room = {"": held - max(speed.memory_bytes for speed in speeds)} if limited else {}
    return Kind(
        f"k{number}",
        speeds,
        is_host=host,
        slots=rng.choice((1, 2, 4, 8)) if host else 0,
        threads=0.0 if host else rng.uniform(0.01, 0.1),
        pool_bytes=room,
        idle_watts=rng.uniform(20, 100),
        price=round(scale * rng.uniform(500, 3000)),
    )


def main() -> None:
    kinds, suites = (int(word) for word in (*sys.argv[1:], *("64", "16")[len(sys.argv) - 1 :]))
    for seed in range(SEEDS):
        rng = random.Random(seed)
        table = [kind(rng, number, suites) for number in range(kinds)]
        planner = Planner(table, {f"s{suite}": 1.0 for suite in range(suites)})
        for question, limits in QUESTIONS:
            begin = time.perf_counter()
            try:
                answer = planner.answer(question, limits)
            except MixmarkError as error:
                print(f"seed {seed}  {question:10}  {time.perf_counter() - begin:6.2f} s  {error}")
                continue
            gap = "nothing proved" if answer.gap is None else f"gap {answer.gap:.2%}"
            devices = sum(answer.counts.values())
            print(f"seed {seed}  {question:10}  {time.perf_counter() - begin:6.2f} s  {gap}  {devices} devices")


if __name__ == "__main__":
    main()
