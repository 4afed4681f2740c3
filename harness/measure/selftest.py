"""The self-test of a machine: repeats the same measurements in pairs, from which its noise floor follows."""

from __future__ import annotations

from datetime import UTC, datetime

from mixmark.harness.contracts.schema import Result
from mixmark.harness.discover import config as configuration
from mixmark.harness.discover import setup
from mixmark.harness.measure.benchmark import Observed, perform
from mixmark.harness.measure.executor import LocalExecutor
from mixmark.harness.measure.metering import Meters
from mixmark.harness.measure.request import FREE_DISK_BYTES, PreparedRun, RunRequest
from mixmark.harness.plan import phases
from mixmark.harness.plan.presets import SELFTEST
from mixmark.harness.record import store

TIMEOUT_S = 600


def prepare(request: RunRequest) -> PreparedRun:
    """Checks all that can be checked before any device is asked. Raises UsageError or ResultError."""
    config = configuration.load(request.config)
    suites = setup.load_suites(config, request.tier)
    workloads = tuple(suites.choose(request.suites, ("single-stream",)))
    setup.choose_adapters(request.adapters, config)
    folder = request.out or store.RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-selftest"
    store.refuse_used(folder)
    return PreparedRun(request, None, config, suites, workloads, None, {16: folder}, {})


def measure(run: PreparedRun, pairs: int, observed: Observed) -> Result:
    """Measures each suite 2 × `pairs` times on each device, each time in a fresh process and without meters."""
    request = run.request
    bench = setup.prepare(run.config, run.suites, request.adapters)
    planned = phases.solo(
        bench.targets(), run.workloads, request.tier, SELFTEST, scenarios=("single-stream",), runs=2 * pairs
    )
    header = bench.header(planned, request.tier, SELFTEST.name)
    keeper = store.create(run.folder, header, FREE_DISK_BYTES)
    equipment = bench.equipment(header.seed, TIMEOUT_S)
    with store.locked(run.folder), Meters(configuration.Config(), (), {}) as no_meters:
        return perform(header, LocalExecutor(equipment, run.folder, no_meters), equipment, keeper, observed)
