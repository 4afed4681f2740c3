"""Engines that cheat, through the whole pipeline: a worker measures, the parent draws, a fresh worker compares.

A finding or a failure shows what each of them gains, or docs/method.md names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.contracts import schema
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.roofline import PeakRates
from mixmark.harness.judge.rules import integrity, registered
from mixmark.harness.judge.rules.quality import finished
from mixmark.harness.judge.statistics import timestamps
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import mixed, solo
from mixmark.harness.measure.audit import auditor
from mixmark.harness.measure.phase import attend
from mixmark.harness.plan import placement
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import handle
from mixmark.harness.worker.messages import Setup
from mixmark.harness.worker.outputs import KEPT_BYTES
from mixmark.harness.worker.process.child_process import ChildProcess
from tests.fakes import cheats
from tests.fakes.cheats import DEVICE, TOKENS, WORK_S, Chain
from tests.fakes.inline import InlineProcess
from tests.fakes.reference import NUMPY
from tests.golden.sample import result

pytestmark = pytest.mark.slow

ROUTE = schema.Route(
    suite="chain", tier="smoke", suite_version="1", device=DEVICE.id, adapter="cheats", precision="fp32"
)
RATE_PER_S = 100.0
LIMITS = schema.Limits(
    warmup_ns=20_000_000, search_ns=100_000_000, min_ns=200_000_000, max_ns=20 * 10**9, min_feeds=20, audits=30
)
FEED_BYTES = TOKENS << 20  # of a feed of the suite `bulky`
MIX = schema.Mix(name="solo", tier="smoke", units={"chain": 40})


def equipment(options: Mapping[str, str], adapter: str = "cheats") -> Equipment:
    """The suite comes from a module that is imported once, as the real ones do: to patch its class is to patch all."""
    return Equipment(
        adapters={adapter: Plugin("adapters", adapter, f"tests.fakes.{adapter}:{adapter.title()}", "")},
        suites={
            "chain": Plugin("suites", "chain", "tests.fakes.cheats:Chain", ""),
            "probe": Plugin("suites", "probe", "mixmark.suites.probe:Probe", ""),
            "bulky": Plugin("suites", "bulky", "tests.fakes.cheats:Bulky", ""),
        },
        suite_options={},
        units={"chain": "token", "bulky": "token", "probe": "kernel"},
        devices={(DEVICE.id, adapter): DEVICE},
        config=Config(adapters={adapter: AdapterConfig(options=options)}),
        seed=None,
        timeout_s=60,
    )


def limits(scenario: schema.ScenarioName, suite: str = "chain") -> schema.Limits:
    more = {"bulky": {"min_feeds": 60, "max_ns": 60 * 10**9}, "server": {"min_ns": 500_000_000}}
    more["probe"] = {"warmup_ns": 0, "search_ns": 0, "min_ns": 10**8, "max_ns": 10**9, "min_feeds": 4, "audits": 4}
    return LIMITS.model_copy(update=more.get(suite) or more.get(scenario))


def measured(
    folder: Path,
    engine: str,
    batch: int | None = 1,
    run: int = 1,
    scenario: schema.ScenarioName = "single-stream",
    suite: str = "chain",
    precision: schema.Precision = "fp32",
    timeout_s: float = 60,
    adapter: str = "cheats",
    **options: str,
) -> schema.Record:
    """On its own."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    share = schema.Share(
        key=f"{engine.lower()}.{suite}.{scenario}.{run}",
        route=ROUTE.model_copy(update={"suite": suite, "precision": precision, "adapter": adapter}),
        scenario=scenario,
        batch=batch,
        rate_per_s=RATE_PER_S if scenario == "server" else None,
        run=run,
        limits=limits(scenario, suite),
    )
    tasks = (schema.Task(device=DEVICE.id, shares=(share,)),)
    phase = schema.Phase(name=share.key, purpose="probe" if suite == "probe" else "solo", tasks=tasks)
    using = replace(equipment({"as": engine, **options}, adapter), timeout_s=timeout_s)
    (record,) = attend(phase, using, folder, solo.drive)
    return record


def served(folder: Path, engine: str) -> schema.Record:
    """On its own, where feeds arrive by themselves."""
    return measured(folder, engine, scenario="server")


def stored(folder: Path, engine: str) -> schema.Record:
    """On its own, with outputs that outgrow the memory for them."""
    return measured(folder, engine, scenario="offline", suite="bulky")


def played(folder: Path, engine: str) -> schema.Record:
    """In the mixed phase."""
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    rate = schema.Rate(
        suite="chain", device=DEVICE.id, adapter="cheats", precision="fp32", batch=1, units_per_s=1 / WORK_S
    )
    share = schema.Share(key=f"mix.{engine.lower()}", route=ROUTE, scenario="mixed", batch=1, limits=LIMITS)

    def planner(units: Mapping[str, float], rates: Sequence[schema.Rate]) -> schema.Placement:
        return placement.place(units, rates, [DEVICE])

    phase = schema.Phase(
        name=share.key,
        purpose="mixed",
        tasks=(schema.Task(device=DEVICE.id, shares=(share,)),),
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
    "Bundling": ("units_counted.yields", ""),
    # nonsense
    "Narrow": ("audited.problem", "the output is int32 (4,), but should be int64 (4,)"),
    "NotANumber": ("audited.problem", "outputs with values that are not finite"),
    "Hollow": ("finished.failed", "the output for a feed is empty"),
    "Huge": ("finished.failed", "a unit's output has 1024 MiB"),
    "Growing": ("finished.failed", "the outputs for two feeds differ in shape"),
    "Endless": ("finished.failed", "the runner yielded at least 5 units"),
    "Bending": ("audited.wrong", ""),
}
"""The code of the finding, and what its values hold. These engines change nothing but themselves."""
PATCHING = {
    # a suite bent to suit
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
    "Unsealed": ("finished.failed", "the worker did not close its window"),
    "Choosing": ("audited.problem", "the worker handed over the digests of"),
    "Forging": ("finished.failed", "its feeds are not numbered one by one"),
    "Babbling": ("finished.failed", "cannot be read"),
}
"""The same of engines that patch the code of their process."""
GAIN_NOTHING = ("Overhearing", "SlowingTime", "Owing", "Outliving", "Forestalling", "Shifting")
"""No rule is broken, and no figure is better."""
HARMLESS = ("Honest", *GAIN_NOTHING[:3], "Listed", "Reusing", "Stubborn")
CAUGHT_IN_THE_MIX = {
    **{name: CAUGHT[name] for name in ("Narrow", "NotANumber", "Huge")},
    "Growing": ("cut short", "the outputs for two feeds differ in shape"),
    "TurningBack": PATCHING["TurningBack"],
    "Owing": ("finished.failed", "ValueError: a yield without units"),
    "Babbling": ("finished.failed", "cannot be read"),
    **{name: PATCHING[name] for name in ("Amending", "AmendingSooner", "Choosing")},
}
"""Where the parent hands out the feeds; the other engines are caught as in a solo measurement."""
CAUGHT_AS_SERVERS = {
    "SlowingTheClock": ("finished.failed", "the worker's timestamps cannot be used: time runs backwards"),
    "Quitting": ("on_schedule.left_out", ""),
}
CAUGHT_WITH_BULK = {"Hiding": ("audited.problem", "that it had to keep"), "EverySecond": CAUGHT["EverySecond"]}
"""Where the outputs outgrow the memory for them."""
CAUGHT_AS_PROBES = {"Boasting": ("audited.wrong", ""), "Squeezing": ("audited.wrong", "")}
GAIN_NOTHING_AS_PROBES = ("Anticipating",)
"""Their outputs are right, and no figure is compared with their ceiling."""


INLINE = {*CAUGHT, "", "Honest", "Overhearing", "Listed", "Reusing", "Slipping", "Boasting", "Squeezing"}
"""The engines whose worker may be a thread of this process, and the auditor's, which has no name."""
ALIKE = {"AmendingSooner", "Reopening"}
"""What catches these catches others of the table too."""


@pytest.fixture(autouse=True)
def _workers(importable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The auditor's adapter is that for suites without graphs."""
    monkeypatch.setitem(registry.BUILT_IN, "adapters", {**registry.BUILT_IN["adapters"], **NUMPY})

    def start(python: str, code: str, arguments: Sequence[str], *given: Any) -> ChildProcess | InlineProcess:
        engine = Setup.model_validate_json(arguments[0]).options.get("as", "")
        return (InlineProcess if engine in INLINE else ChildProcess)(python, code, arguments, *given)

    monkeypatch.setattr(handle, "ChildProcess", start)
    monkeypatch.setattr(solo, "TURN_NS", 10**12)  # also where a busy machine makes a feed long


How = Callable[[Path, str], schema.Record]


def audited(folder: Path, record: schema.Record) -> schema.Record:
    kept = [record]
    auditor(equipment({}), folder, "smoke").run(kept[:], kept.append)
    return kept[-1]


def findings(record: schema.Record) -> Sequence[schema.Finding]:
    """By the rules that a cheat breaks; a smoke run's disturbances are another matter."""
    share = schema.Share(key=record.key, route=record.route, scenario=record.scenario, limits=limits(record.scenario))
    phase = schema.Phase(name=record.phase, purpose="solo", tasks=(schema.Task(device=DEVICE.id, shares=(share,)),))
    evidence = gather(result(record).model_copy(update={"phases": (phase,)}))
    return (*finished(evidence), *registered.findings("facts", evidence))


def cases() -> Iterator[Any]:
    tables = {measured: {**CAUGHT, **PATCHING}, played: CAUGHT_IN_THE_MIX, served: CAUGHT_AS_SERVERS}
    for how, table in {**tables, stored: CAUGHT_WITH_BULK}.items():
        for engine, finding in table.items():
            alike = engine in ALIKE or (how, engine) in ((played, "Babbling"), (played, "Choosing"))
            marks = [pytest.mark.exhaustive] if alike else []
            yield pytest.param(how, engine, *finding, id=f"{engine}-{how.__name__}", marks=marks)


@pytest.mark.parametrize(("how", "engine", "code", "text"), [*cases()])
def test_it_is_caught(tmp_path: Path, how: How, engine: str, code: str, text: str) -> None:
    record = audited(tmp_path, how(tmp_path, engine))
    found = [(each.code, " ".join(map(str, each.values.values()))) for each in findings(record)]
    if record.cut_short:
        found.append(("cut short", record.cut_short.message))
    of_it = [values for named, values in found if named.startswith(code) and text in values]
    assert of_it, (found, record.error)  # beside other tests, `device_busy` names their load
    assert how is not stored or len(record.completions or ()) * FEED_BYTES > KEPT_BYTES


HONEST = [(measured, each) for each in HARMLESS] + [(played, "Honest"), (played, "Overhearing"), (served, "Honest")]


@pytest.mark.parametrize(("how", "engine"), HONEST)
def test_an_honest_engine_breaks_no_rule(tmp_path: Path, how: How, engine: str) -> None:
    """And one that patches the time module gains nothing, since the harness holds the function of `time` itself;
    nor does one that reads seeds, since those that it can read are of no feed that will be timed."""
    record = audited(tmp_path, how(tmp_path, engine))
    broken = [each for each in findings(record) if each.severity != "note"]
    # A window of 0.2 s on a busy machine; what other programs send counts too.
    assert {each.rule for each in broken} <= {"device_busy", "network_quiet"}
    done = record.completions
    assert done is not None
    assert timestamps.in_flight_ns(done) >= len(done) * TOKENS * WORK_S * 1e9
    audit = record.audit
    assert audit is not None
    assert audit.gate == Chain("smoke", {}).gate("fp32") != Chain("smoke", {}).gate("int4"), "that which is declared"


def test_an_honest_engine_may_have_outputs_dropped(tmp_path: Path) -> None:
    record = audited(tmp_path, stored(tmp_path, "Honest"))
    assert record.audit is not None and record.audit.passed
    assert len(record.completions or ()) * FEED_BYTES > KEPT_BYTES
    assert not any(each.severity == "invalid" for each in findings(record))


@pytest.mark.parametrize(("precision", "wrong", "passes"), [("int8", 1, True), ("int8", 2, False), ("fp32", 1, False)])
def test_a_quantised_route_that_fails_its_gate_is_a_finding(
    tmp_path: Path, precision: schema.Precision, wrong: int, passes: bool
) -> None:
    """Not a crash: the record is whole, and the finding says what failed."""
    judged = audited(tmp_path, measured(tmp_path, "Slipping", precision=precision, wrong=str(wrong)))
    assert judged.error is None and judged.completions
    invalid = [each.code for each in findings(judged) if each.severity == "invalid"]
    assert invalid == ([] if passes else ["audited.wrong"])


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Feeds of a few milliseconds are handed out one by one, as long ones are."""
    monkeypatch.setattr(solo, "TURN_NS", 1_000_000)


@pytest.mark.parametrize("how", [measured, served, played])
def test_a_feed_ends_when_its_output_reaches_the_parent(tmp_path: Path, in_turns: None, how: How) -> None:
    record = how(tmp_path, "Forestalling")
    assert record.completions is not None and record.stamped
    # Of single feeds this is not so if the parent reads late.
    assert timestamps.latencies_ns(record.completions).mean() >= TOKENS * WORK_S * 1e9
    assert timestamps.first_unit_ns(record.completions).mean() >= WORK_S * 1e9


def test_a_brief_feed_is_timed_by_its_worker_and_said_so(tmp_path: Path) -> None:
    record = measured(tmp_path, "Honest")
    assert not record.stamped
    assert [each.code for each in integrity.latencies_bounded(gather(result(record)))] == ["latencies_bounded.window"]


@pytest.mark.parametrize("how", [measured, served, played])
def test_a_first_token_exists_once_it_is_the_beginning_of_its_output(tmp_path: Path, in_turns: None, how: How) -> None:
    for engine, problem in (("Honest", ""), ("Announcing", "a first yield is not the beginning of its output")):
        record = how(tmp_path / engine, engine)
        assert record.audit is not None, record.error
        assert record.audit.problem == problem


def test_an_output_that_was_reported_cannot_be_amended_before_the_window_closes(tmp_path: Path, in_turns: None) -> None:
    audit = measured(tmp_path, "AmendingSooner").audit
    assert audit is not None and audit.problem == "the outputs do not match the commitments of the timed window"


def test_a_server_that_draws_its_own_arrivals_waits_for_turns_that_never_come(tmp_path: Path) -> None:
    record = measured(tmp_path, "Shifting", scenario="server", timeout_s=5)
    assert record.error is not None and record.error.kind == "hung"


def test_what_is_computed_before_the_first_timestamp_counts(tmp_path: Path) -> None:
    """The window is open from the moment when its seed is sent."""
    rate_per_s = timestamps.rate_per_s(measured(tmp_path, "Preparing"))
    assert (rate_per_s or 0) <= 1.1 / WORK_S  # several times as much by its own timestamps


def test_every_engine_is_tried() -> None:
    classes = {
        name for name, each in vars(cheats).items() if isinstance(each, type) and issubclass(each, cheats.Honest)
    }
    assert classes - {"Skipping", "Slipping", "Forestalling", "Shifting", "Announcing"} == {
        *CAUGHT,
        *PATCHING,
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
    shares = [schema.Share(key=key, route=ROUTE, scenario="offline", limits=LIMITS) for key in ("a", "b")]
    asked = [(share, use) for share in shares for use in ("preparation", "window")]
    drawn, given = equipment({}), replace(equipment({}), seed=7)
    assert len({drawn.drawn(*each) for each in (*asked, *asked)}) == 8
    assert len({given.drawn(*each) for each in (*asked, *asked)}) == 4


def test_an_endless_feed_ends_the_search_for_a_batch(tmp_path: Path) -> None:
    error = measured(tmp_path, "Endless", batch=None).error
    assert error is not None
    assert (error.kind, "at least 5 units" in error.message) == ("wrong output", True)


def probed(folder: Path, engine: str) -> schema.Record:
    record = audited(folder, measured(folder, engine, scenario="probe", suite="probe"))
    return record.model_copy(update={"conditions": ()})  # other tests may run beside it


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
