"""Exceptions become failures."""

from __future__ import annotations

import json

from mixmark import Unsupported
from mixmark.harness.worker.failures import failure_of


def test_frameworks_have_many_words_for_out_of_memory() -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    assert failure_of(OutOfMemoryError("CUDA")).kind == "out of memory"
    assert failure_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")).kind == "out of memory"
    assert failure_of(RuntimeError("shape mismatch")).kind == "raised"
    assert failure_of(Unsupported("no", hint="try")).hint == "try"
    assert json.loads(failure_of(ValueError("x" * 9999)).model_dump_json())["message"].endswith("x")
