from __future__ import annotations

from collections.abc import Mapping

from mixmark.harness.contracts.schema import Result
from tests.fakes.hosts import cluster


def made() -> Mapping[str, Result]:
    return {"scaling": cluster(("host1", "host2", "host3"), parts={1: 1.0, 2: 0.8})}
