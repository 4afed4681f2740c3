"""The classes of entries with their reasons, the score over several results, and the level of an energy measurement."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Conditions, Device, Environment, Metering, Record, Result, Samples
from mixmark.harness.judge import score as scoring
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.findings import found, in_full
from mixmark.harness.plan import mixes
from mixmark.harness.plugins.registry import BUILT_IN as BUILT_IN_PLUGINS
from mixmark.submissions import versions
from mixmark.submissions.conclude import Contribution, contribution_of, entry, whole
from mixmark.submissions.entry import Entry, Signed
from tests.fakes.folders import CODE, SECOND, Maker
from tests.golden.sample import altered, domain
from tests.judge.found import not_none
from tests.submissions.made import DECLARED

RESULT = Maker().result(runs=2)
BUILT_IN = Environment(
    origin="built in", spec="mixmark.harness.adapters.torch:Torch", python="CPython 3.12.3", mixmark="0.1.0"
)


def contribution(number: int = 1, result: Result = RESULT, **changes: Any) -> Contribution:
    """The contribution of the result with other facts."""
    return contribution_of(number, judge(result.model_copy(update=changes)), "0" * 64)


def concluded(*results: Contribution) -> Entry:
    return entry(DECLARED, results, Signed(state="none"))


def published(found: Contribution) -> Contribution:
    """The contribution as if its mix were a published one."""
    assert found.score is not None
    return replace(found, score=replace(found.score, mix=mixes.frozen()["smoke-1"], grade="ranked", unranked=()))


CLOSED = published(contribution())
FUSED = "mixmark/harness/adapters/torch/fused.py"
MORE = "mixmark/suites/more.py"
METER = "mixmark/harness/capabilities/acme/meter.py"
LADDER, PLAN = "mixmark/harness/capabilities/ladder/options.py", "mixmark/harness/capabilities/plan/bounds.json"
EVIL = "mixmark/harness/capabilities/evil/__init__.py"
DLRM = "mixmark/suites/dlrm/__init__.py"
BENT = "0" * 64


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of the result, and a commit of it."""
    (tmp_path / "0.1.0.json").write_text(json.dumps(CODE))
    (tmp_path / "0.1.0-12345678.json").write_text(json.dumps(CODE | {FUSED: "1" * 64}))
    monkeypatch.setattr(versions, "FOLDER", tmp_path)


def test_an_entry_is_disturbed_if_one_of_its_results_is() -> None:
    """A result of which others took a tenth of the CPUs' time, beside a calm one."""

    def taken(block: Conditions) -> Conditions:
        stolen_ns = (block.end_ns - block.begin_ns) * (block.cpus or 0) // 10
        return block.model_copy(update={"stolen_ns": stolen_ns})

    disturbed = (each.model_copy(update={"conditions": tuple(map(taken, each.conditions))}) for each in RESULT.records)
    loud = contribution(1, records=tuple(disturbed))
    assert [each.verdict.word for each in (loud, contribution())] == ["disturbed", "fair"]
    found = concluded(contribution(), replace(loud, number=2))
    assert found.verdict == "disturbed" and found.reasons["verdict"] == tuple(map(in_full, loud.verdict.reasons))
    assert "its verdict is disturbed" in found.reasons["grade"]
    assert not {*found.reasons["grade"]} & {*found.reasons["verdict"]}, "each reason stands once"
    calm = concluded(contribution())
    assert calm.verdict == "fair" and "its verdict is disturbed" not in calm.reasons["grade"]


def routed(*suites: str, **changes: Any) -> tuple[Record, ...]:
    """The records with other facts in the routes of the mixed records of these suites."""
    mixed = [f"mix{run}.{suite}" for run in (1, 2) for suite in suites]
    route = {f"route__{name}": value for name, value in changes.items()}
    return altered(RESULT, lambda record: record.key.startswith(tuple(mixed)), **route).records


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (CLOSED, ()),
        (contribution(), ("two is none of the published mixes",)),
        (published(contribution(records=routed("dlrm", weights="x.safetensors"))), ("its weights are x.safetensors",)),
        (
            published(contribution(records=routed("dlrm", suite_options={"rows": "full"}))),
            ("the suite dlrm has options",),
        ),
        (published(contribution(seed=7)), ("its seed was given",)),
    ],
)
def test_only_the_same_work_for_everybody_is_closed(found: Contribution, why: tuple[str, ...]) -> None:
    computed = concluded(found)
    assert (computed.division, computed.reasons["division"]) == ("open" if why else "closed", why)


@pytest.mark.parametrize(
    ("environment", "tuning"),
    [
        (BUILT_IN, "base"),
        (BUILT_IN.model_copy(update={"spec": "acme:Torch"}), "peak"),
        (BUILT_IN.model_copy(update={"origin": "acme 1.0"}), "peak"),
        (BUILT_IN.model_copy(update={"origin": "Mixmark of another interpreter"}), "peak"),
        (None, "peak"),
    ],
)
def test_only_built_in_adapters_are_base(environment: Environment | None, tuning: str) -> None:
    found = concluded(contribution(environments={} if environment is None else {"torch": environment}))
    assert found.tuning == tuning
    assert found.reasons["tuning"] == (() if tuning == "base" else ("the adapter torch is not a built-in one",))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ()),
        ({FUSED: "1" * 64}, ()),
        (dict.fromkeys((LADDER, LADDER.replace("options", "report"), PLAN)), ()),  # neither is used
        ({LADDER: BENT}, (f"{LADDER} is not that of Mixmark 0.1.0",)),
        ({LADDER: None}, (f"{LADDER} is not that of Mixmark 0.1.0",)),
        ({PLAN: BENT}, (f"{PLAN} is not that of Mixmark 0.1.0",)),
        ({EVIL: BENT}, (f"{EVIL} is not that of Mixmark 0.1.0",)),
        ({FUSED: BENT}, (f"{FUSED} is not that of Mixmark 0.1.0-12345678",)),
        ({FUSED: "1" * 64, MORE: BENT}, (f"{MORE} is not that of Mixmark 0.1.0-12345678",)),
        ({MORE: BENT}, (f"{MORE} is not that of Mixmark 0.1.0",)),
        ({DLRM: None}, (f"{DLRM} is not that of Mixmark 0.1.0",)),
        (
            dict.fromkeys(CODE),
            ("mixmark/__init__.py is not that of Mixmark 0.1.0-12345678", "the adapter torch is not a built-in one"),
        ),
    ],
)
def test_only_the_files_of_a_known_version_are_base(changes: dict[str, str | None], why: tuple[str, ...]) -> None:
    """The nearest known version is named, whatever the result calls itself. Of a capability, only all files may be
    absent."""
    code = {path: sha256 for path, sha256 in (CODE | changes).items() if sha256}
    system = RESULT.system.model_copy(update={"mixmark": "9.9", "git_commit": None})
    found = concluded(contribution(code=code, system=system))
    unlisted = "peak" if len(why) > 1 else "code not known here"
    assert (found.tuning, found.reasons["tuning"]) == (unlisted if why else "base", why)


def test_a_capability_that_the_result_used_is_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = contribution(code={path: sha256 for path, sha256 in CODE.items() if path != METER})
    assert concluded(absent).tuning == "base"
    monkeypatch.setitem(BUILT_IN_PLUGINS["meters"], "nvml", "mixmark.harness.capabilities.acme.meter:Nvml")
    assert concluded(absent).reasons["tuning"] == (f"{METER} is not that of Mixmark 0.1.0",)
    assert concluded(contribution()).tuning == "base"


def test_code_that_differs_from_its_known_commit_is_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = {"c" * 40: CODE | {MORE: "2" * 64}}
    monkeypatch.setattr(versions, "_committed", lambda id, repository: commit.get(id))
    known, unknown = (RESULT.system.model_copy(update={"git_commit": letter * 40}) for letter in "cd")
    more, bent = CODE | {MORE: "2" * 64}, CODE | {MORE: BENT, FUSED: "1" * 64}
    assert concluded(contribution(code=more, system=known)).tuning == "base"
    assert concluded(contribution(code=bent, system=known)).tuning == "peak"
    assert concluded(contribution(code=more, system=unknown)).tuning == "code not known here"
    assert concluded(contribution(system=unknown)).tuning == "base", "its hashes say which it is"


def test_several_settings_on_one_device_are_peak() -> None:
    one_device, settings = {"device": "cpu:0"}, {"options": {"threads": "1"}}
    header = contribution(environments={"torch": BUILT_IN})
    dlrm, resnet50 = (route.model_copy(update=one_device) for route in header.routes)
    assert concluded(replace(header, routes=(dlrm, resnet50))).tuning == "base"
    found = concluded(replace(header, routes=(dlrm, resnet50.model_copy(update=settings))))
    assert found.reasons["tuning"] == ("torch on cpu:0 has other options for some suites",)
    assert (
        concluded(contribution(environments={"torch": BUILT_IN}, records=routed("dlrm", **settings))).tuning == "base"
    )


def named(system: str, processor: str, *devices: Device) -> tuple[str, ...]:
    machine = RESULT.system.model_copy(update={"cpu_model": processor})
    found = contribution(system=machine, devices=devices)
    declared = DECLARED.model_copy(update={"system": system})
    return entry(declared, (found,), Signed(state="none")).reasons["devices"]


def test_a_machine_that_is_called_like_an_accelerator_and_has_none_is_noted() -> None:
    cpu, gpu = RESULT.devices
    assert (cpu.kind, gpu.kind) == ("cpu", "gpu")
    why = "the name of its {} says {}, and no accelerator took part".format
    assert named("Stolen Box", "NVIDIA H100", cpu) == (why("processor", "H100"),)
    assert named("GeForce box", "Acme Quartz", cpu) == (why("system", "GeForce"),)
    assert named("GeForce box", "NVIDIA H100", cpu, gpu) == ()
    for processor in ("NVIDIA Grace", "Intel(R) Xeon(R) Platinum 8480+", "AMD EPYC 7B13", "ARM Cortex-A76"):
        assert named("Acme One", processor, cpu) == ()


def test_each_suite_without_its_code_is_named_once() -> None:
    costs = (found("suites_verified.unranked", suites=("llm", "own")),)
    assert CLOSED.score is not None
    opened = concluded(replace(CLOSED, score=replace(CLOSED.score, unranked=costs)))
    assert opened.reasons["division"] == ("the suites llm, own were not compared with their code",)


def test_an_entry_is_ranked_only_without_a_reason_against_it() -> None:
    assert concluded(CLOSED).ranked
    assert CLOSED.score is not None
    indicative = replace(
        CLOSED, score=replace(CLOSED.score, grade="indicative", missing=(found("score_graded.runs", runs=1, needed=3),))
    )
    computed = concluded(indicative)
    assert not computed.ranked and computed.reasons["grade"] == ("1 of 3 runs",)


# Several results


def test_the_score_of_several_results_is_that_of_all_their_runs() -> None:
    first, second = contribution(), contribution(2, Maker(2).result())
    assert first.score is not None and second.score is not None
    runs = [*first.score.runs, *second.score.runs]
    found = whole((first, second))
    expected = math.exp(sum(math.log(run.mixes_per_hour.estimate) for run in runs) / 3)
    assert found.mixes_per_hour is not None and found.mixes_per_hour.estimate == pytest.approx(expected, rel=1e-12)
    assert [run.phase for run in found.runs] == ["1/mix1", "1/mix2", "2/mix1"]
    assert "score_graded.runs" not in [reason.code for reason in found.missing]
    assert whole((first,)) is first.score


def test_the_worst_of_several_results_counts_and_a_system_has_an_entry_for_each_weight_class() -> None:
    score = not_none(contribution().score)
    drifted = found("speed_stable.much", drift=0.3)
    joined = scoring.joined([score, replace(score, weight_class=4, unranked=(drifted,))])
    assert (joined.weight_class, joined.grade) == (4, "indicative")
    entries = (concluded(replace(contribution(), score=each)) for each in (score, joined))
    assert [each.path.rpartition("/")[2] for each in entries] == ["two-16-bit", "two-4-bit"]
    assert drifted in joined.missing
    assert list(joined.unranked) == [*score.unranked, drifted]


def test_results_with_other_boundaries_have_no_common_efficiency() -> None:
    score = not_none(contribution().score)
    runs = tuple(replace(run, total=replace(run.total, boundary="wall")) for run in score.runs)
    found = scoring.joined([score, replace(score, runs=runs)])
    assert found.mixes_per_kwh is None and "different boundaries" in (found.unmeasured or "")
    assert found.mixes_per_hour is not None


def metered(accuracy: float | None) -> Contribution:
    """The contribution of the result with a counter at the wall as its only energy source."""
    wall = domain("wall", ("node",), boundary="wall", method="external", accuracy=accuracy)

    def read(metering: Metering) -> Metering:
        at = np.arange(metering.begin_ns, metering.end_ns, SECOND // 20)
        joules = np.cumsum(300 + np.random.default_rng(1).random(len(at))) / 20
        return metering.model_copy(update={"samples": {"wall": Samples(at, at + 1000, joules)}})

    return contribution(domains=(wall,), meterings=tuple(map(read, RESULT.meterings)))


@pytest.mark.parametrize(
    ("accuracy", "words"), [(0.01, "meters of ±1 %, as declared"), (None, "not every meter declares its accuracy")]
)
def test_a_boundary_has_its_meters_and_the_accuracy_that_they_declare(accuracy: float | None, words: str) -> None:
    found = concluded(metered(accuracy))
    assert found.boundary == "wall", found.unmeasured
    assert found.reasons["boundary"] == (f"the sum of wall; it leaves nothing out; {words}",)


def test_without_a_meter_there_is_no_boundary() -> None:
    bare = concluded(contribution(domains=(), meterings=()))
    assert (bare.boundary, bare.mixes_per_kwh, bare.unmeasured) == (None, None, "no meter was read")
