"""Engines that cheat, through the whole pipeline: a worker measures, the parent draws, a fresh worker compares.

A finding or a failure shows what each of them gains, or docs/method.md names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mixmark.harness.contracts.schema import (
    Finding,
    Limits,
    Mix,
    Phase,
    Placement,
    Precision,
    Rate,
    Record,
    Route,
    ScenarioName,
    Share,
    Task,
)
from mixmark.harness.discover.config import AdapterConfig, Config
from mixmark.harness.discover.setup import Equipment
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.roofline import PeakRates
from mixmark.harness.judge.rules import integrity
from mixmark.harness.judge.rules.records import finished
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.measure import mixed, solo
from mixmark.harness.measure.audit import kept_at
from mixmark.harness.measure.benchmark import auditor
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.outputs import KEPT_BYTES
from tests.fakes import cheats
from tests.fakes.cheats import DEVICE, TOKENS, WORK_S, Chain
from tests.fakes.reference import NUMPY
from tests.golden.sample import result

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROUTE = Route(suite="chain", tier="smoke", suite_version="1", device=DEVICE.id, adapter="cheats", precision="fp32")
RATE_PER_S = 100.0
LIMITS = Limits(
    warmup_ns=20_000_000, search_ns=100_000_000, min_ns=200_000_000, max_ns=2 * 10**9, min_feeds=20, audits=30
)
FEED_BYTES = TOKENS << 20  # of a feed of the suite `bulky`
MIX = Mix(name="solo", tier="smoke", units={"chain": 40})


def equipment(options: Mapping[str, str]) -> Equipment:
    """The suite comes from a module that is imported once, as the real ones do: to patch its class is to patch all."""
    return Equipment(
        adapters={"cheats": Plugin("adapters", "cheats", "tests.fakes.cheats:Cheats", "")},
        suites={
            "chain": Plugin("suites", "chain", "tests.fakes.cheats:Chain", ""),
            "probe": Plugin("suites", "probe", "mixmark.suites.probe:Probe", ""),
            "bulky": Plugin("suites", "bulky", "tests.fakes.cheats:Bulky", ""),
        },
        suite_options={},
        units={"chain": "token", "bulky": "token", "probe": "kernel"},
        devices={(DEVICE.id, "cheats"): DEVICE},
        config=Config(adapters={"cheats": AdapterConfig(options=options)}),
        seed=None,
        timeout_s=60,
    )


def limits(scenario: ScenarioName, suite: str = "chain") -> Limits:
    more = {"bulky": {"min_feeds": 60, "max_ns": 60 * 10**9}, "server": {"min_ns": 500_000_000}}
    return LIMITS.model_copy(update=more.get(suite) or more.get(scenario))


def measured(
    folder: Path,
    engine: str,
    batch: int | None = 1,
    run: int = 1,
    scenario: ScenarioName = "single-stream",
    suite: str = "chain",
    precision: Precision = "fp32",
    timeout_s: float = 60,
    **options: str,
) -> Record:
    """On its own."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    share = Share(
        key=f"{engine.lower()}.{suite}.{scenario}.{run}",
        route=ROUTE.model_copy(update={"suite": suite, "precision": precision}),
        scenario=scenario,
        batch=batch,
        rate_per_s=RATE_PER_S if scenario == "server" else None,
        run=run,
        limits=limits(scenario, suite),
    )
    key = share.key
    phase = Phase(name=key, purpose="solo", tasks=(Task(device=DEVICE.id, shares=(share,)),))
    using = replace(equipment({"as": engine, **options}), timeout_s=timeout_s)
    (record,) = attend(phase, using, folder, solo.drive)
    return record


def served(folder: Path, engine: str) -> Record:
    """On its own, where feeds arrive by themselves."""
    return measured(folder, engine, scenario="server")


def stored(folder: Path, engine: str) -> Record:
    """On its own, with outputs that outgrow the memory for them."""
    return measured(folder, engine, scenario="offline", suite="bulky")


def played(folder: Path, engine: str) -> Record:
    """In the mixed phase."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    rate = Rate(suite="chain", device=DEVICE.id, adapter="cheats", precision="fp32", batch=1, units_per_s=1 / WORK_S)
    share = Share(key=f"mix.{engine.lower()}", route=ROUTE, scenario="mixed", batch=1, limits=LIMITS)

    def planner(units: Mapping[str, float], rates: Sequence[Rate]) -> Placement:
        return placement.place(units, rates, [DEVICE])

    phase = Phase(
        name=share.key,
        purpose="mixed",
        tasks=(Task(device=DEVICE.id, shares=(share,)),),
        placement=planner(MIX.units, [rate]),
    )
    drive = mixed.local_driver(MIX, phase, planner)
    (record,) = attend(phase, equipment({"as": engine}), folder, drive, on_ready=drive.on_ready)
    return record


CAUGHT = {
    # less work
    "Caching": ("audited.wrong", ""),
    "Tiring": ("audited.wrong", ""),
    "EverySecond": ("audited.wrong", ""),
    "Early": ("audited.wrong", ""),
    "Guessing": ("audited.wrong", ""),
    "Cut": ("finished.failed", "the runner yielded 2 units for a feed of 4"),
    "Padding": ("finished.failed", "the runner yielded at least 5 units for a feed of 4"),
    "Bundling": ("units_counted.yields", ""),
    # nonsense
    "Wide": ("audited.problem", "the output is int64 (4, 2), but should be int64 (4,)"),
    "Scalar": ("finished.failed", "a runner yields arrays"),
    "Narrow": ("audited.problem", "the output is int32 (4,), but should be int64 (4,)"),
    "Double": ("finished.failed", "a runner yields arrays of float32, int32 or int64"),
    "NotANumber": ("audited.problem", "outputs with values that are not finite"),
    "Infinite": ("audited.problem", "outputs with values that are not finite"),
    "Nested": ("finished.failed", "a runner yields arrays of float32, int32 or int64"),
    "Attached": ("finished.failed", "RuntimeError: Can't call numpy() on Tensor that requires grad"),
    "Hollow": ("finished.failed", "the output for a feed is empty"),
    "Huge": ("finished.failed", "a unit's output has 1024 MiB"),
    "Returning": ("finished.failed", "TypeError: 'NoneType' object is not iterable"),
    "Nothing": ("finished.failed", "a runner yields arrays"),
    "Ragged": ("finished.failed", "ValueError"),
    "Empty": ("finished.failed", "the runner yielded 0 units for a feed of 4"),
    "Growing": ("finished.failed", "the outputs for two feeds differ in shape"),
    "Mute": ("finished.failed", "the runner yielded nothing"),
    "Endless": ("finished.failed", "the runner yielded at least 5 units"),
    "Breaking": ("finished.failed", "ConnectionError: the engine is gone"),
    # a suite bent to suit
    "Bending": ("audited.wrong", ""),
    "BendingFeeds": ("audited.wrong", ""),
    "BendingUnits": ("units_counted.units", ""),
    "Foreseeing": ("device_busy", ""),
    # a harness bent to suit
    "SlowingTheClock": ("window_bracketed.outside", ""),
    "TurningBack": ("finished.failed", "ValueError: time runs backwards"),
    "Leaving": ("finished.failed", "s of at least 0.20 s, with 1 feed of at least 20"),
    "Amending": ("audited.problem", "the outputs do not match the commitments of the timed window"),
    "AmendingSooner": ("audited.wrong", ""),
    "Preparing": ("window_bracketed.short", ""),
    "Resealing": ("finished.failed", "sealed came after the window was closed"),
    "Reopening": ("finished.failed", "measure was due, but stage came"),
    "Piping": ("finished.failed", "is not a regular file"),
    "Negative": ("finished.failed", "cannot be read: the reply to open has a wrong field"),
    "Unsealed": ("finished.failed", "the worker did not close its window"),
    "Choosing": ("audited.problem", "the worker handed over the digests of"),
    "Loading": ("audited.wrong", ""),
    "Forging": ("finished.failed", "its feeds are not numbered one by one"),
    "Babbling": ("finished.failed", "cannot be read"),
}
"""The code of the finding, and what its values hold."""
GAIN_NOTHING = ("Overhearing", "SlowingTime", "Owing", "Outliving", "Forestalling", "Shifting")
"""No rule is broken, and no figure is better."""
HARMLESS = ("Honest", *GAIN_NOTHING[:3], "Listed", "Reusing", "Stubborn")
CAUGHT_IN_THE_MIX = {
    "Narrow": CAUGHT["Narrow"],
    "NotANumber": CAUGHT["NotANumber"],
    "Huge": CAUGHT["Huge"],
    "Growing": ("cut short", "the outputs for two feeds differ in shape"),
    "TurningBack": CAUGHT["TurningBack"],
    "Owing": ("finished.failed", "ValueError: a yield without units"),
    "Babbling": ("finished.failed", "cannot be read"),
    "Amending": CAUGHT["Amending"],
    "AmendingSooner": CAUGHT["AmendingSooner"],
    "Choosing": CAUGHT["Choosing"],
}
"""Where the parent hands out the feeds; the other engines are caught as in a solo measurement."""
CAUGHT_AS_SERVERS = {
    "SlowingTheClock": ("finished.failed", "the worker's timestamps cannot be used: time runs backwards"),
    "Quitting": ("on_schedule.left_out", ""),
}
CAUGHT_WITH_BULK = {
    "Hiding": ("audited.problem", "that it had to keep"),
    "EverySecond": CAUGHT["EverySecond"],
}
"""Where the outputs outgrow the memory for them."""
CAUGHT_AS_PROBES = {"Boasting": ("audited.wrong", ""), "Squeezing": ("audited.wrong", "")}
GAIN_NOTHING_AS_PROBES = ("Anticipating",)
"""Their outputs are right, and no figure is compared with their ceiling."""


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    """The workers import this package. The auditor's adapter is that for suites without graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILT_IN, "adapters", {**registry.BUILT_IN["adapters"], **NUMPY})
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
        yield


@pytest.fixture(scope="module")
def records(importable: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """The records of all engines, some run at a time; one auditor compares their outputs."""
    folder = tmp_path_factory.mktemp("cheats")
    solos, mixes = (*HARMLESS, *CAUGHT), ("Honest", "Overhearing", *CAUGHT_IN_THE_MIX)
    servers, bulky = ("Honest", *CAUGHT_AS_SERVERS), ("Honest", *CAUGHT_WITH_BULK)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = {
            **{each: pool.submit(measured, folder / each, each) for each in solos},
            **{mixing(each): pool.submit(played, folder / mixing(each), each) for each in mixes},
            **{
                serving(each): pool.submit(measured, folder / serving(each), each, scenario="server")
                for each in servers
            },
            **{with_bulk(each): pool.submit(stored, folder / with_bulk(each), each) for each in bulky},
        }
        kept = {name: each.result() for name, each in found.items()}
    kept_at(folder, "all").parent.mkdir()
    (folder / "logs").mkdir()
    by_key = {record.key: engine for engine, record in kept.items()}
    for key, engine in by_key.items():
        with suppress(FileNotFoundError):  # of those that failed there is none
            kept_at(folder / engine, key).rename(kept_at(folder, key))
    auditor(equipment({}), folder, "smoke").run([*kept.values()], lambda each: kept.update({by_key[each.key]: each}))
    return kept


def mixing(engine: str) -> str:
    return f"{engine} in the mix"


def serving(engine: str) -> str:
    return f"{engine} as a server"


def with_bulk(engine: str) -> str:
    return f"{engine} with bulk"


def findings(record: Record) -> Iterator[Finding]:
    """By the rules that a cheat breaks; a smoke run's disturbances are another matter."""
    share = Share(key=record.key, route=record.route, scenario=record.scenario, limits=limits(record.scenario))
    phase = Phase(name=record.phase, purpose="solo", tasks=(Task(device=DEVICE.id, shares=(share,)),))
    for rule in (finished, *integrity.RULES.values()):
        yield from rule(gather(result(record).model_copy(update={"phases": (phase,)})))


@pytest.mark.parametrize("engine", CAUGHT)
def test_it_is_caught(records: dict[str, Record], engine: str) -> None:
    code, text = CAUGHT[engine]
    found = [(each.code, " ".join(map(str, each.values.values()))) for each in findings(records[engine])]
    of_it = [values for named, values in found if named.startswith(code) and text in values]
    assert of_it, (found, records[engine].error)  # beside other tests, `device_busy` names their load


@pytest.mark.parametrize("engine", CAUGHT_IN_THE_MIX)
def test_it_is_caught_in_the_mixed_phase(records: dict[str, Record], engine: str) -> None:
    code, text = CAUGHT_IN_THE_MIX[engine]
    record = records[mixing(engine)]
    found = [(each.code, " ".join(map(str, each.values.values()))) for each in findings(record)]
    if record.cut_short:
        found.append(("cut short", record.cut_short.message))
    assert [values for named, values in found if named == code and text in values], (found, record.error)


@pytest.mark.parametrize("engine", [serving(each) for each in CAUGHT_AS_SERVERS])
def test_it_is_caught_as_a_server(records: dict[str, Record], engine: str) -> None:
    code, text = CAUGHT_AS_SERVERS[engine.split()[0]]
    found = [(each.code, " ".join(map(str, each.values.values()))) for each in findings(records[engine])]
    assert [values for named, values in found if named == code and text in values], (found, records[engine].error)


@pytest.mark.parametrize("engine", [with_bulk(each) for each in CAUGHT_WITH_BULK])
def test_it_is_caught_where_outputs_are_dropped(records: dict[str, Record], engine: str) -> None:
    code, text = CAUGHT_WITH_BULK[engine.split()[0]]
    audit, done = records[engine].audit, records[engine].completions
    assert audit is not None and done is not None and len(done) * FEED_BYTES > KEPT_BYTES
    found = [(each.code, " ".join(map(str, each.values.values()))) for each in findings(records[engine])]
    assert [values for named, values in found if named == code and text in values], (found, records[engine].error)


@pytest.mark.parametrize("engine", [*HARMLESS, mixing("Honest"), mixing("Overhearing"), serving("Honest")])
def test_an_honest_engine_breaks_no_rule(records: dict[str, Record], engine: str) -> None:
    """And one that patches the time module gains nothing, since the harness holds the function of `time` itself;
    nor does one that reads seeds, since those that it can read are of no feed that will be timed."""
    broken = [each for each in findings(records[engine]) if each.severity != "note"]
    # A window of 0.2 s on a busy machine; what other programs send counts too.
    assert {each.rule for each in broken} <= {"device_busy", "network_quiet"}
    done = records[engine].completions
    assert done is not None
    assert timestamps.in_flight_ns(done) >= len(done) * TOKENS * WORK_S * 1e9


def test_an_honest_engine_may_have_outputs_dropped(records: dict[str, Record]) -> None:
    record = records[with_bulk("Honest")]
    assert record.audit is not None and record.audit.passed
    assert len(record.completions or ()) * FEED_BYTES > KEPT_BYTES
    assert not any(each.severity == "invalid" for each in findings(record))


@pytest.mark.parametrize("engine", ["Honest", mixing("Honest")])
def test_the_gate_is_that_of_the_declared_precision(records: dict[str, Record], engine: str) -> None:
    audit = records[engine].audit
    assert audit is not None
    assert audit.gate == Chain("smoke", {}).gate("fp32") != Chain("smoke", {}).gate("int4")


@pytest.mark.parametrize(("precision", "wrong", "passes"), [("int8", 1, True), ("int8", 2, False), ("fp32", 1, False)])
def test_a_quantised_route_that_fails_its_gate_is_a_finding(
    tmp_path: Path, precision: Precision, wrong: int, passes: bool
) -> None:
    """Not a crash: the record is whole, and the finding says what failed."""
    record = measured(tmp_path, "Slipping", precision=precision, wrong=str(wrong))
    records: dict[str, Record] = {}
    auditor(equipment({}), tmp_path, "smoke").run([record], lambda each: records.update({each.key: each}))
    (judged,) = records.values()
    assert judged.error is None and judged.completions
    invalid = [each.code for each in findings(judged) if each.severity == "invalid"]
    assert invalid == ([] if passes else ["audited.wrong"])


def test_outputs_that_are_rewritten_after_the_draw_fail_their_audit(tmp_path: Path) -> None:
    """By a process that the runner named as its helper, for example: any process of this user may."""
    record = measured(tmp_path, "EverySecond")
    path = kept_at(tmp_path, record.key)
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez(path, **(arrays | {"outputs": np.ones_like(arrays["outputs"])}))
    records: dict[str, Record] = {}
    auditor(equipment({}), tmp_path, "smoke").run([record], lambda each: records.update({each.key: each}))
    audit = records[record.key].audit
    assert audit is not None and audit.problem == "the file of the audited outputs was changed after they were drawn"


def test_a_servers_latency_lasts_until_its_output_reaches_the_parent(tmp_path: Path) -> None:
    record = measured(tmp_path, "Forestalling", scenario="server")
    done = record.completions
    assert done is not None and record.stamped
    assert np.median(timestamps.latencies_ns(done)) >= TOKENS * WORK_S * 1e9


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds of a few milliseconds are handed out one by one, as long ones are."""
    monkeypatch.setattr(solo, "TURN_NS", 1_000_000)


def forestalled(folder: Path, how: str) -> Record:
    return played(folder, "Forestalling") if how == "mixed" else measured(folder, "Forestalling")


@pytest.mark.parametrize("how", ["single-stream", "mixed"])
def test_a_feed_ends_when_its_output_reaches_the_parent(tmp_path: Path, in_turns: None, how: str) -> None:
    record = forestalled(tmp_path, how)
    assert record.completions is not None and record.stamped
    assert np.median(timestamps.latencies_ns(record.completions)) >= TOKENS * WORK_S * 1e9
    assert np.median(timestamps.first_unit_ns(record.completions)) >= WORK_S * 1e9


def test_a_brief_feed_is_timed_by_its_worker_and_said_so(tmp_path: Path) -> None:
    record = measured(tmp_path, "Honest")
    assert not record.stamped
    assert [each.code for each in integrity.latencies_bounded(gather(result(record)))] == ["latencies_bounded.window"]


@pytest.mark.parametrize("how", ["single-stream", "server", "mixed"])
def test_a_first_token_exists_once_it_is_the_beginning_of_its_output(
    tmp_path: Path, in_turns: None, how: ScenarioName
) -> None:
    for engine, problem in (
        ("Honest", ""),
        ("Announcing", "a first yield is not the beginning of its output"),
    ):
        folder = tmp_path / engine
        record = played(folder, engine) if how == "mixed" else measured(folder, engine, scenario=how)
        assert record.audit is not None, record.error
        assert record.audit.problem == problem


def test_an_output_that_was_reported_cannot_be_amended_before_the_window_closes(tmp_path: Path, in_turns: None) -> None:
    audit = measured(tmp_path, "AmendingSooner").audit
    assert audit is not None and audit.problem == "the outputs do not match the commitments of the timed window"


def test_outputs_are_drawn_when_no_engine_runs_any_more(tmp_path: Path) -> None:
    """An engine that saw the draw could end the run, and have it drawn again."""
    raw = tmp_path / "raw"
    record = measured(tmp_path, "Spying", raw=str(raw))
    assert record.audit is not None and record.audit.feeds
    assert (kept_at(tmp_path, record.key).exists(), (raw / "seen").read_text()) == (True, "")


def test_a_server_that_draws_its_own_arrivals_waits_for_turns_that_never_come(tmp_path: Path) -> None:
    record = measured(tmp_path, "Shifting", scenario="server", timeout_s=5)
    assert record.error is not None and record.error.kind == "hung"


def test_what_is_computed_before_the_first_timestamp_counts(tmp_path: Path) -> None:
    """The window is open from the moment when its seed is sent."""
    honest, preparing = (measured(tmp_path / each, each) for each in ("Honest", "Preparing"))
    rates = [timestamps.rate_per_s(record) for record in (honest, preparing)]
    assert rates[0] and rates[1] and rates[1] <= 2 * rates[0]  # ten times as much by its own timestamps


def test_every_engine_is_tried() -> None:
    classes = {
        name for name, each in vars(cheats).items() if isinstance(each, type) and issubclass(each, cheats.Honest)
    }
    assert classes - {"Skipping", "Odd", "Slipping", "Forestalling", "Shifting", "Announcing", "Spying"} == {
        *CAUGHT,
        *HARMLESS,
        *CAUGHT_AS_SERVERS,
        *CAUGHT_WITH_BULK,
        "Outliving",
    }


def test_outputs_kept_for_the_next_process_are_never_asked_for(tmp_path: Path) -> None:
    """No two feeds of a run are alike, in no repetition, warm-up included."""
    for run in (1, 2):
        assert measured(tmp_path, "Outliving", run=run, memory=str(tmp_path / "memory")).completions
    assert len([*(tmp_path / "memory").iterdir()]) > 40
    assert not (tmp_path / "memory/hits").exists()


def test_each_share_has_feeds_of_its_own() -> None:
    """Drawn when they are needed; or, where a seed was given, derived from it, so that they come again."""
    shares = [Share(key=key, route=ROUTE, scenario="offline", limits=LIMITS) for key in ("a", "b")]
    asked = [(share, use) for share in shares for use in ("preparation", "window")]
    drawn, given = equipment({}), replace(equipment({}), seed=7)
    assert len({drawn.drawn(*each) for each in (*asked, *asked)}) == 8
    assert len({given.drawn(*each) for each in (*asked, *asked)}) == 4


def test_an_endless_feed_ends_the_search_for_a_batch(tmp_path: Path) -> None:
    error = measured(tmp_path, "Endless", batch=None).error
    assert error is not None
    assert (error.kind, "at least 5 units" in error.message) == ("wrong output", True)


def probed(folder: Path, engine: str) -> Record:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    limits = Limits(warmup_ns=0, search_ns=0, min_ns=10**8, max_ns=10**9, min_feeds=4, audits=4)
    key, route = f"probe.{engine.lower()}", ROUTE.model_copy(update={"suite": "probe"})
    share = Share(key=key, route=route, scenario="probe", batch=1, limits=limits)
    phase = Phase(name=key, purpose="probe", tasks=(Task(device=DEVICE.id, shares=(share,)),))
    using = equipment({"as": engine})
    kept = attend(phase, using, folder, solo.drive)
    auditor(using, folder, "smoke").run([*kept], lambda each: kept.__setitem__(0, each))
    return kept[0].model_copy(update={"conditions": ()})  # other tests may run beside it


@pytest.mark.parametrize("engine", CAUGHT_AS_PROBES)
def test_a_probe_that_leaves_work_out_sets_no_ceiling(tmp_path: Path, engine: str) -> None:
    """It would raise what the device is believed to reach, and so hide a suite that leaves work out."""
    record = probed(tmp_path, engine)
    evidence = gather(result(record))
    assert [each.code for each in integrity.audited(evidence)] == [CAUGHT_AS_PROBES[engine][0]]
    assert (evidence.ceilings, evidence.peaks.flops_per_s, evidence.peaks.bytes_per_s) == ({}, {}, {})


@pytest.mark.parametrize("engine", GAIN_NOTHING_AS_PROBES)
def test_no_figure_is_compared_with_the_ceiling_of_an_adapter_that_is_not_built_in(tmp_path: Path, engine: str) -> None:
    """Its probe is audited and right, and its times are not."""
    told = result(probed(tmp_path, engine))
    evidence = gather(told)
    assert [each.severity for each in integrity.audited(evidence)] == ["note"]
    assert [each.witnessed for each in evidence.ceilings.values()] == [False]
    assert evidence.peaks == PeakRates({}, {})
    believed = gather(told.model_copy(update={"environments": {"cheats": told.environments["torch"]}}))
    assert believed.peaks.flops_per_s, "so a built-in adapter's would be"
