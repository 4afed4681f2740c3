"""Solo measurements without a result, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Route, UnitNames
from mixmark.harness.judge.solo import Solo


def solo(key: str = "a", per_s: float | None = 1.0, **changed: Any) -> Solo:
    """A measurement that counts, unless it is changed. Facts of the route may be given by their names."""
    facts = {"suite": "resnet50", "suite_version": "1", "device": "cpu:0", "adapter": "torch", "precision": "fp32"}
    route = Route.model_validate({"tier": "edge", **{name: changed.pop(name, value) for name, value in facts.items()}})
    fields: dict[str, Any] = {
        "key": key,
        "route": route,
        "device_name": "",
        "scenario": "offline",
        "run": 1,
        "batch": 1,
        "rate_per_s": None,
        "is_highest_rate": False,
        "limits": None,
        "unit": "image",
        "names": UnitNames(short="img", work="images"),
        "status": "ok",
        "failure": None,
        "load_ns": None,
        "peak_pss_bytes": None,
        "units_per_s": None if per_s is None else Estimate(per_s),
    }
    return Solo(**{**fields, **changed})
