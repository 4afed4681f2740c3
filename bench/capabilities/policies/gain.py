"""The gain of placing a mix by the plan: simulated machines of 2 to 4 unlike devices, run by each policy.

Run: python -m bench.capabilities.policies.gain [MACHINES]    (1000)

Each machine has random rates, up to 100 times apart, and noise of 2 % a feed. The mix is edge-1. Printed is the
distribution of the plan's mixes per hour over each policy's mixes per hour, in windows of 60 mixes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.dispatch import EDGE_1
from mixmark.harness.capabilities.policies import policies
from mixmark.harness.capabilities.serving.contract import Policy
from mixmark.harness.capabilities.serving.request_queue import RequestQueue, Table
from mixmark.harness.measure.dispatch import Source
from tests.fakes.machine import Machine, Rates

COMPARED: dict[str, Callable[[Table, Table], Policy]] = {
    "round-robin": policies.RoundRobin,
    "fastest-device": policies.FastestDevice,
    "greedy": policies.Greedy,
}
FEEDS = {"llm": 128, "diffusion": 1, "dlrm": 16_384, "resnet50": 64}
MIXES = 60.0
NOISE = 0.02


def by(policy: Callable[[Table, Table], Policy]) -> Source:
    """A closed run by a policy."""
    return partial(RequestQueue, policy=policy, limits={})


def random_rates(seed: int) -> Rates:
    """The units per second of 2 to 4 devices. Each device is better at some suites than at others."""
    chance = random.Random(seed)
    devices = [f"npu:{index}" for index in range(chance.randint(2, 4))]
    typical = {"llm": 20.0, "diffusion": 1.0, "dlrm": 50_000.0, "resnet50": 500.0}
    return {
        (suite, id): rate * size * 10 ** chance.uniform(-0.5, 0.5)
        for id, size in ((id, 10 ** chance.uniform(-0.5, 0.5)) for id in devices)
        for suite, rate in typical.items()
    }


def mixes_per_s(seed: int, source: Source | None = None) -> float:
    """The rate of a machine in a window of about MIXES mixes. source: None: by the plan."""
    rates, noise = random_rates(seed), random.Random(seed)
    quanta = {pair: FEEDS[pair[0]] for pair in rates}
    machine = Machine(EDGE_1, rates, quanta, lambda pair, at_s: rates[pair] * noise.gauss(1, NOISE), source=source)
    return machine.run(MIXES / machine.placement.bound_per_s)


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else 1000
    planned = np.array([mixes_per_s(seed) for seed in range(count)])
    for name, policy in COMPARED.items():
        gains = planned / np.array([mixes_per_s(seed, by(policy)) for seed in range(count)])
        told = "  ".join(f"p{q} {np.percentile(gains, q):.3f}" for q in (1, 10, 50, 90, 99))
        print(f"plan over {name:<15} least {gains.min():.3f}  {told}  most {gains.max():.3f}", flush=True)


if __name__ == "__main__":
    main()
