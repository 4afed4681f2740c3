"""Engines that cheat, through the whole pipeline: a worker measures, the parent draws, a fresh worker compares.

What each of them gains is told by a finding or a failure here, or in docs/method.md by name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from harness import honesty, mixed, stats, validate
from harness.audit import kept_at
from harness.config import AdapterConfig, Config
from harness.place import place
from harness.plugins import Plugin
from harness.run import Equipment, measure
from harness.schema import Finding, Limits, Mix, Phase, Rate, Record, Route, ScenarioName, Share, Task
from tests.fakes import cheats
from tests.fakes.cheats import DEVICE, TOKENS, WORK_S
from tests.golden.sample import result

ROOT = Path(__file__).parent.parent
ROUTE = Route(suite="chain", tier="smoke", suite_version="1", device=DEVICE.id, adapter="cheats", precision="fp32")
LIMITS = Limits(
    warmup_ns=20_000_000, search_ns=100_000_000, min_ns=200_000_000, max_ns=2 * 10**9, min_feeds=20, audits=30
)


def equipment(options: Mapping[str, str]) -> Equipment:
    """The suite comes from a module that is imported once, as the real ones do: to patch its class is to patch all."""
    return Equipment(
        adapters={"cheats": Plugin("adapters", "cheats", "tests.fakes.cheats:Cheats", "")},
        suites={"chain": Plugin("suites", "chain", "tests.fakes.cheats:Chain", "")},
        suite_options={},
        units={"chain": "token"},
        devices={(DEVICE.id, "cheats"): DEVICE},
        config=Config(adapters={"cheats": AdapterConfig(options=options)}),
        seed=7,
        timeout_s=60,
    )


def played(folder: Path, engine: str) -> Record:
    """Alone in a mixed phase, and audited."""
    (folder / "raw").mkdir(parents=True)
    mix = Mix(name="one", tier="smoke", units={"chain": TOKENS})
    rate = Rate(
        suite="chain", device=DEVICE.id, adapter="cheats", precision="fp32", batch=1, units_per_s=TOKENS / WORK_S
    )
    share = Share(key=f"mix1.{engine.lower()}", route=ROUTE, scenario="mixed", batch=1, limits=LIMITS)
    placement = place(mix.units, [rate], [DEVICE])
    phase = Phase(name="mix1", tasks=(Task(device=DEVICE.id, shares=(share,)),), placement=placement)
    tools = equipment({"as": engine})
    kept = mixed.perform(phase, mix, lambda units, rates: place(units, rates, [DEVICE]), tools, folder)
    tools.auditor(folder, "smoke").run(kept, kept.append)
    return kept[-1]


def measured(folder: Path, engine: str, batch: int | None = 1, run: int = 1, **options: str) -> Record:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    key = f"{engine.lower()}.{run}"
    share = Share(key=key, route=ROUTE, scenario="single-stream", batch=batch, run=run, limits=LIMITS)
    phase = Phase(name=key, tasks=(Task(device=DEVICE.id, shares=(share,)),))
    return measure(phase, share, equipment({"as": engine, **options}), folder)


WRONG = "audited feeds fail"
SEALED = "the answers are not those that were sealed when they were timed"
CAUGHT = {
    # less work
    "Caching": ("audited", WRONG),
    "Tiring": ("audited", WRONG),
    "EverySecond": ("audited", WRONG),
    "Early": ("audited", WRONG),
    "Guessing": ("audited", WRONG),
    "Cut": ("finished", "wrong answer: the runner yielded 2 units for a feed of 4"),
    "Padding": ("finished", "wrong answer: the runner yielded at least 5 units for a feed of 4"),
    "Bundling": ("units_counted", "feeds of 4 yields came in 1 at the least"),
    # nonsense
    "Wide": ("audited", "the answer is int64 (4, 2), and should be int64 (4,)"),
    "Scalar": ("finished", "wrong answer: a runner yields arrays"),
    "Narrow": ("audited", "the answer is int32 (4,), and should be int64 (4,)"),
    "Double": ("finished", "wrong answer: a runner yields arrays of float32, int32 or int64"),
    "NotANumber": ("audited", "answers hold values that are not finite"),
    "Infinite": ("audited", "answers hold values that are not finite"),
    "Nothing": ("finished", "wrong answer: a runner yields arrays"),
    "Ragged": ("finished", "raised: ValueError"),
    "Empty": ("finished", "wrong answer: the runner yielded 0 units for a feed of 4"),
    "Growing": ("finished", "wrong answer: the answers to two feeds differ in shape"),
    "Mute": ("finished", "wrong answer: the runner yielded nothing"),
    "Endless": ("finished", "wrong answer: the runner yielded at least 5 units"),
    "Breaking": ("finished", "raised: ConnectionError: the engine is gone"),
    # a suite bent to suit
    "Bending": ("audited", WRONG),
    "BendingFeeds": ("audited", WRONG),
    "BendingUnits": ("units_counted", "1 to 1 units were counted for feeds of 4"),
    "Foreseeing": ("little_between", "% of the window lies between feeds"),
    # a harness bent to suit
    "SlowingTheLoop": ("clock_bracketed", "the worker's clock tells"),
    "TurningBack": ("finished", "raised: ValueError: time runs backwards"),
    "Amending": ("audited", SEALED),
    "AmendingSooner": ("clock_bracketed", "the worker's clock tells"),
    "Choosing": ("audited", "answers of the"),
    "Loading": ("audited", WRONG),
    "Forging": ("audited", "answers of the"),
}
"""By which rule, and in which words."""
HARMLESS = ("Honest", "SlowingTime")


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    """The workers import this package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
        yield


@pytest.fixture(scope="module")
def records(importable: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Of all engines, some at a time; one auditor compares what they answered."""
    folder = tmp_path_factory.mktemp("cheats")
    engines = (*HARMLESS, *CAUGHT)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kept = dict(zip(engines, pool.map(lambda engine: measured(folder / engine, engine), engines), strict=True))
    kept_at(folder, "all").parent.mkdir()
    (folder / "logs").mkdir()
    by_key = {record.key: engine for engine, record in kept.items()}
    for key, engine in by_key.items():
        with suppress(FileNotFoundError):  # of those that failed there is none
            kept_at(folder / engine, key).rename(kept_at(folder, key))
    equipment({}).auditor(folder, "smoke").run([*kept.values()], lambda each: kept.update({by_key[each.key]: each}))
    return kept


def findings(record: Record) -> Iterator[Finding]:
    """By the rules that a cheat breaks; a smoke run's disturbances are another matter."""
    for rule in (validate.finished, *(rule for rule in validate.RULES if rule.__module__ == honesty.__name__)):
        yield from rule(result(record))


@pytest.mark.parametrize("engine", CAUGHT)
def test_it_is_caught(records: dict[str, Record], engine: str) -> None:
    rule, words = CAUGHT[engine]
    found = [(each.rule, each.message) for each in findings(records[engine])]
    assert [message for named, message in found if named == rule and words in message], (found, records[engine].error)


@pytest.mark.parametrize("engine", HARMLESS)
def test_an_honest_engine_breaks_no_rule(records: dict[str, Record], engine: str) -> None:
    """And one that patches the time module gains nothing: the loop holds the clock that it was defined with."""
    assert [each for each in findings(records[engine]) if each.severity != "note"] == []
    done = records[engine].completions
    assert done is not None
    assert stats.in_flight_ns(done) >= len(done) * TOKENS * WORK_S * 1e9


@pytest.mark.parametrize(
    ("engine", "words"), [("Amending", SEALED), ("AmendingSooner", WRONG), ("Choosing", "answers of the")]
)
def test_it_is_caught_in_a_mixed_phase(tmp_path: Path, engine: str, words: str) -> None:
    """Each feed tells what it answered when it ends: later is too late."""
    told = [each.message for each in findings(played(tmp_path, engine)) if each.rule == "audited"]
    assert [words in message for message in told] == [True], told


def test_an_honest_engine_passes_in_a_mixed_phase(tmp_path: Path) -> None:
    record = played(tmp_path, "Honest")
    assert [each for each in findings(record) if each.severity != "note"] == []
    assert record.audit is not None
    assert record.audit.passed


def test_every_engine_is_tried() -> None:
    classes = {
        name for name, each in vars(cheats).items() if isinstance(each, type) and issubclass(each, cheats.Honest)
    }
    assert classes - {"Skipping", "Odd"} == {*CAUGHT, *HARMLESS, "Outliving"}


def test_answers_kept_for_the_next_process_are_never_asked_for(tmp_path: Path) -> None:
    """No two feeds of a run are alike, in no repetition, warm-up included."""
    for run in (1, 2):
        assert measured(tmp_path, "Outliving", run=run, memory=str(tmp_path / "memory")).completions
    assert len([*(tmp_path / "memory").iterdir()]) > 40
    assert not (tmp_path / "memory/hits").exists()


def test_each_scenario_and_run_has_feeds_of_its_own() -> None:
    scenarios: tuple[ScenarioName, ...] = ("single-stream", "offline", "server", "mixed")
    seeds = {equipment({}).feed_seed(ROUTE, scenario, run) for scenario, run in itertools.product(scenarios, (1, 2, 3))}
    assert len(seeds) == 12
    other = ROUTE.model_copy(update={"adapter": "torch"})
    same = [equipment({}).feed_seed(ROUTE, each, 1) == equipment({}).feed_seed(other, each, 1) for each in scenarios]
    assert same == [True, True, True, False]


def test_an_endless_feed_ends_the_search_for_a_batch(tmp_path: Path) -> None:
    error = measured(tmp_path, "Endless", batch=None).error
    assert error is not None
    assert (error.kind, "at least 5 units" in error.message) == ("wrong answer", True)
