"""The requests of a level of load: their number, size and due times for each suite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from mixmark.harness.capabilities.ladder import HIGHEST
from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import duration, percent
from mixmark.harness.contracts.schema import Fact, Int64s, Limits, Placement
from mixmark.harness.plan.presets import longer
from mixmark.harness.plugins.experiments import Facts

DEFAULT = (0.75, 0.5, 0.25, 0.1)
"""The levels, if none are named."""
ENOUGH_REQUESTS = 100
"""A level lasts until the suite with the costliest request has served this many, which is enough for a p90."""
DRAIN = 0.25  # time after the last arrival, as a fraction of the time of arrivals; later responses are too late anyway


class Levels(Fact):
    """The levels of load of a run."""

    levels: tuple[Annotated[float, Field(gt=0, le=HIGHEST)], ...]
    """Fractions of the rate of the mixed runs."""


class Load(Fact):
    """Requests of a mix that arrive during a phase by independent Poisson processes, one for each suite.

    A suite's due times, from the begin of the phase, are `contracts.seeds.arrivals_within` with the seed
    `seeds.derived(seed, suite)`.
    """

    level: float = Field(gt=0, le=HIGHEST)
    """The arrival rate, as a fraction of the rate of the mixed runs."""
    mixes_per_s: float = Field(gt=0)
    """The arrival rate in mixes per second."""
    length_ns: int = Field(gt=0)
    """The time during which requests arrive."""
    requests: dict[str, int] = Field(min_length=1)
    """The number of requests of each suite."""
    request_units: dict[str, int]
    """The units in a request of each suite. A request is one feed, or several feeds in a row."""
    seed: int = Field(ge=0)
    """The seed of the due times, drawn when the level was planned."""


FACTS = Facts(of_run=Levels, of_phase=Load)


def level_name(mix: str, level: float) -> str:
    """The name of a level of load, also in `Absent` if it cannot be served."""
    return f"{mix} at {percent(level)}"


def load_at(
    level: float,
    mixes_per_s: float,
    mix_units: Mapping[str, float],
    units: Mapping[str, int],
    limits: Limits,
    seed: int,
) -> Load:
    """The load at a level. It lasts until ENOUGH_REQUESTS of the suite with the costliest request have arrived, if the
    limits allow. The number of these requests is whole, so that the suites arrive in the proportion of the mix.

    mixes_per_s: the rate of the mixed runs. units: in a request of each suite. Raises UsageError if no request of the
    costliest suite arrives within `max_ns`.
    """
    arriving = level * mixes_per_s
    coarsest, mixes = max(((suite, units[suite] / mix_units[suite]) for suite in mix_units), key=lambda each: each[1])
    gap_ns = mixes / arriving * 1e9
    most = int(limits.max_ns / gap_ns)
    if not most:
        raise UsageError(
            f"at {percent(level)} load a request of {coarsest} arrives every {duration(gap_ns)}, and a level lasts "
            f"{duration(limits.max_ns)} at most",
            hint=longer(limits.max_ns) or "--tier with smaller suites has shorter requests",
        )
    count = min(most, max(ENOUGH_REQUESTS, math.ceil(limits.min_ns / gap_ns)))
    return Load(
        level=level,
        mixes_per_s=arriving,
        length_ns=round(count * gap_ns),
        requests={suite: max(1, round(count * mixes * each / units[suite])) for suite, each in mix_units.items()},
        request_units={suite: units[suite] for suite in mix_units},
        seed=seed,
    )


def limits_of(load: Load, plan: Placement, limits: Limits) -> Limits:
    """The limits of a phase with the load. It ends when all requests are done, or DRAIN after the time of arrivals."""
    slowest_s = max(load.request_units[rate.suite] / rate.units_per_s for rate in plan.rates)
    drain_ns = max(DRAIN * load.length_ns, 2e9 * slowest_s)
    return limits.model_copy(update={"min_ns": load.length_ns, "max_ns": load.length_ns + round(drain_ns)})


def due_ns(load: Load) -> dict[str, Int64s]:
    """The due times of the requests of each suite, from the begin of the phase."""
    return {
        suite: seeds.arrivals_within(load.length_ns, count, seeds.derived(load.seed, suite))
        for suite, count in load.requests.items()
    }
