"""The auditor's adapter for suites that have no graphs, so that no auditor loads torch for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from mixmark import Device, GraphRunner, Runner, Session, Suite, Use

NUMPY = {"torch": f"{Path(__file__)}:Reference"}
"""It, in the place of torch in the table of built-in adapters."""


class Reference:
    """Computes a suite by the suite's own `infer`, and a suite with graphs by torch."""

    name = "torch"

    def __init__(self, options: Mapping[str, str]) -> None:
        pass

    def discover(self) -> Iterable[Device]:
        return ()

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        if suite.graphs():
            from mixmark.harness.adapters.torch import Torch

            with Torch({}).open(device, suite, precision, use) as runner:
                yield runner
        else:
            yield GraphRunner(suite, cast(Session, None), concurrency=1, facts={})
