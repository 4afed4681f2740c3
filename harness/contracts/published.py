"""What a class of figures publishes: its fields but the raw ones, and the properties that are figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

RAW: Mapping[str, bool] = {"raw": True}
"""The metadata of a field that is not published: material of which others are computed."""
_Method = TypeVar("_Method", bound=Callable[..., Any])


def figure(method: _Method) -> _Method:
    """Marks the method of a property as a figure that is published beside the fields."""
    method.is_figure = True  # type: ignore[attr-defined]  # a callable has no such attribute
    return method


def published(dataclass: type) -> list[str]:
    """The names of the published fields and properties of a dataclass, in their order."""
    properties = [
        name for name, member in vars(dataclass).items() if hasattr(getattr(member, "fget", None), "is_figure")
    ]
    return [*(field.name for field in fields(dataclass) if not field.metadata.get("raw")), *properties]
