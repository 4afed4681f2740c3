"""Each form of results side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from mixmark.harness.capabilities.compare import forms
from mixmark.harness.capabilities.compare.machines import MachineComparison, compare_machines
from mixmark.harness.contracts.schema import NoiseFloor, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.judge.verdict import Verdict
from mixmark.harness.plugins import registry
from mixmark.reporters import data
from tests.capabilities.compare.test_machines import on_another_machine, one_run
from tests.capabilities.compare.test_solo import runs, several
from tests.docs.test_json_page import contradictions
from tests.fakes.machine import WATTS_AT_THE_WALL
from tests.golden.sample import altered, result, sample
from tests.reporters.hostile import hostile
from tests.reporters.parsed import Page
from tests.reporters.test_states import STATES, measured

FORMS: dict[str, Callable[[MachineComparison], str]] = {
    "console": forms.console,
    "markdown": forms.markdown,
    "html": forms.html,
    "json": forms.json,
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))


def beside(*results: Result) -> MachineComparison:
    return compare_machines([(f"results/{at}", [judge(each)]) for at, each in enumerate(results)])


@cache
def scored() -> MachineComparison:
    return beside(one_run(WATTS_AT_THE_WALL, 3), one_run(WATTS_AT_THE_WALL * 2, 3), one_run(None))


@cache
def with_verdicts() -> MachineComparison:
    floor = NoiseFloor(fraction=0.031, tier="edge", created_utc="2025-12-21T03:04:05+00:00")
    [a] = several([1_000_000, 1_001_000, 1_002_000])
    [b] = several([1_200_000, 1_201_000, 1_202_000], 9)
    return beside(a.model_copy(update={"noise_floor": floor}), b)


def hostile_result(text: str) -> Result:
    """A result with hostile text in a folder that can be opened: it has exactly the devices of its records."""
    return altered(hostile(text), lambda _: True, route__device="cpu:0")


def test_the_forms_are_found_as_plugins() -> None:
    found = registry.find("comparisons")
    assert {name: found[name].load() for name in found} == FORMS


@every_form
def test_every_form_has_the_scores_and_what_they_are_relative_to_the_first(
    form: Callable[[MachineComparison], str],
) -> None:
    text = form(scored())
    assert ("1,420" in text or "142" in text) and "711" in text, "both figures"
    assert "0.500" in text or '"estimate": 0.5' in text or ",0.50" in text or "0.499" in text
    assert "no meter was read" in text


def test_a_verdict_says_what_it_rests_on() -> None:
    text = forms.console(with_verdicts())
    assert "Solo measurements of B tested against A" in text and "slower" in text and "3 : 3" in text
    flat = " ".join(text.split())
    assert "differ; the noise floor of the edge tier is 3.1 %, measured 12 days before A, and in the error" in flat
    bare = " ".join(forms.markdown(beside(*runs([1_000_000, 1_000_000]))).replace("\\", "").split())
    assert "δ is 1 %." in bare and "differ; no noise floor of this tier is known." in bare


def test_equal_reasons_of_what_is_not_compared_share_a_note() -> None:
    text = " ".join(forms.console(beside(sample(), on_another_machine(sample()))).split())
    assert text.count("not alike in device model: Acme Quartz 9000 and Basalt cpu; device state:") == 1
    assert "; and 5 more" in text


def test_a_figure_of_another_number_format_is_seen_as_one() -> None:
    found = forms.markdown(beside(sample(), runs([1_000_000])[0]))
    assert "fp32 by torch on cpu:0" in found and "bf16 by torch on Acme Topaz" in found


def test_the_page_has_its_sections_each_with_an_id_of_its_own() -> None:
    page = Page(forms.html(scored()))
    assert {"baseline", "Not compared", "llm, offline, 16-bit weights"} <= {*"\n".join(page.words).splitlines()}
    assert len(ids := page.values("id")) == len(set(ids))


def test_a_relative_speed_has_its_interval_or_says_that_there_is_none() -> None:
    for form in (forms.console, forms.markdown, forms.html):
        text = form(scored())
        assert "1.00×, not proven" in text and "0.500× (0.4" in text


@pytest.mark.parametrize("form", ["html", "json"])
@pytest.mark.parametrize("state", STATES)
def test_a_comparison_names_the_state_of_each_side(state: str, form: str) -> None:
    found, _, verdict, *_ = STATES[state]
    text = FORMS[form](compare_machines([("A", [judge(result(measured()))]), ("B", [judge(found)])]))
    assert verdict in text


@pytest.mark.parametrize("form", ["html", "json"])
def test_a_ratio_to_a_disturbed_result_is_not_proven(form: str) -> None:
    quiet = judge(one_run(WATTS_AT_THE_WALL, runs=3))
    disturbed = replace(quiet, verdict=Verdict("disturbed", quiet.verdict.reasons))
    found = compare_machines([("a", [quiet]), ("b", [disturbed]), ("c", [quiet])])
    for first, second, third in (found.mixes_per_hour, found.mixes_per_kwh):
        assert first is None and second is not None and third is not None
        assert (second.low, second.reason) == (None, "B is disturbed")
        assert third.low is not None
    _, suite, _ = found.rows[0].relatives
    assert suite is not None and (suite.low, suite.reason) == (None, "B is disturbed")
    text = FORMS[form](found)
    assert form == "json" or "1.00×, not proven" in text


def test_a_comparison_has_exactly_the_fields_of_the_schema() -> None:
    first, second = ([judge(one_run(watts))] for watts in (300.0, 200.0))
    found = compare_machines([("a", first), ("b", second)])
    assert contradictions(json.loads(data.written(found)), "MachineComparison") == []
