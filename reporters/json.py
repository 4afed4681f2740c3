"""A judgement as JSON: the result as it is stored, and every number that follows from it.

The keys are the fields and properties of the judgement's own classes. docs/json.md is written from the same classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from mixmark.harness.contracts.estimate import Estimate
from mixmark.harness.contracts.text import escaped
from mixmark.harness.judge.compare.machines import BestRoutes
from mixmark.harness.judge.diagnosis import Diagnosis
from mixmark.harness.judge.energy.total import MachineEnergy
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Latency, Solo

OMITTED: Mapping[type, frozenset[str]] = {
    Judgement: frozenset({"measured"}),
    Solo: frozenset({"speed"}),
    Estimate: frozenset({"is_bracket", "half_width", "ends"}),
    Latency: frozenset({"tail"}),
    Score: frozenset({"mix"}),
    MachineEnergy: frozenset({"readings"}),
    Diagnosis: frozenset({"plan"}),
    BestRoutes: frozenset({"known"}),
}
"""Fields and properties that are not published: they repeat the result or another field, or they are raw material."""


def report(judgement: Judgement) -> str:
    """Keys are sorted; unknown is null."""
    return written(judgement)


def written(value: object) -> str:
    """The JSON text of dataclasses and models: keys sorted, safe on a terminal."""
    data = json_data(value)
    return escaped(json.dumps(data, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)) + "\n"


def json_data(value: object) -> Any:
    """Dataclasses and models as objects, arrays and plain values."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {name: json_data(getattr(value, name)) for name in published(type(value))}
    if isinstance(value, Mapping):
        return {key: json_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [json_data(item) for item in value]
    return value


def published(dataclass: type) -> list[str]:
    """The names of the published fields and properties of a dataclass."""
    properties = [name for name, member in vars(dataclass).items() if isinstance(member, property)]
    names = [*(field.name for field in fields(dataclass)), *properties]
    return [name for name in names if name not in OMITTED.get(dataclass, ())]
