"""Limits and defaults of the facts of a result, where nothing else depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError

from mixmark.harness.contracts.schema import Completions, Conditions, Device, Failure, Finding, Phase, Placement, Result
from tests.golden.sample import phase, record


def test_a_feed_without_a_yield_is_refused() -> None:
    at_ns = np.array([10, 20])
    with pytest.raises(ValueError, match="a feed has no yield"):
        Completions(at_ns, at_ns, np.array([0, 2]), at_ns + 5, np.array([1, 1]))


def test_an_interval_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before it begins"):
        Conditions(begin_ns=5, end_ns=5)


def test_a_bound_of_zero_is_no_plan() -> None:
    with pytest.raises(ValueError, match=r"bound_per_s\n  Input should be greater than 0"):
        Placement.model_validate({"bound_per_s": 0})


def strings(kind: Any, seen: set[Any]) -> Iterator[str]:
    """The fields of facts, and of all facts in them, whose texts have no bound."""
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Finding and kind not in seen:
        seen.add(kind)
        for name, hint in get_type_hints(kind, include_extras=True).items():
            bare = [each for each in parts(hint) if each is str]
            if bare and name not in ("values", "samples") and not kind.model_fields[name].metadata:
                yield f"{kind.__name__}.{name}"
            for part in parts(hint):
                yield from strings(part, seen)


def parts(hint: Any) -> Iterator[Any]:
    """The types that an annotation is made of; one that has a bound is one."""
    if get_origin(hint) in (Annotated, ClassVar, Literal):
        return
    yield hint
    for inner in get_args(hint):
        yield from parts(inner)


def test_every_text_of_a_result_has_a_bound() -> None:
    assert [*strings(Result, set())] == []
    device = {"id": "gpu:0", "kind": "gpu", "memory_pool": "gpu"}
    assert Device.model_validate({**device, "name": "é" + "e\u0301" * 3_000_000}).name == "é" * 200
    with pytest.raises(ValidationError, match="pattern"):
        Device.model_validate({**device, "id": "gpu:" + "0" * 121})


@pytest.mark.parametrize("purpose", ["solo", "probe", "mixed", "experiment"])
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("experiment", ["", "acme"])
def test_a_phase_has_a_placement_exactly_if_it_runs_a_mix_and_a_name_exactly_if_it_is_an_experiment(
    purpose: str, placed: bool, experiment: str
) -> None:
    solo = phase(record("a", "llm", "token", error=Failure(kind="raised", message="b"))).model_dump()
    changed = {
        "purpose": purpose,
        "placement": Placement.model_construct() if placed else None,
        "experiment": experiment,
    }
    fits = placed == (purpose in ("mixed", "experiment")) and bool(experiment) == (purpose == "experiment")
    with nullcontext() if fits else pytest.raises(ValueError, match=f"is {purpose}: "):
        Phase.model_validate(solo | changed)
