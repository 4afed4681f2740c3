"""An assessment as JSON: the result as it is stored, and every number that follows from it.

The keys are what the classes of the assessment publish. docs/json.md is written from the same classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel

from mixmark.harness.contracts.figures import published
from mixmark.harness.contracts.text import escaped
from mixmark.harness.judge.assessment import Assessment


def report(assessment: Assessment) -> str:
    """Keys are sorted; unknown is null."""
    return written(assessment)


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
