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


def test_a_device_that_its_driver_gave_up_is_told_with_what_to_do() -> None:
    for says in (
        "VK_ERROR_DEVICE_LOST",
        "DXGI_ERROR_DEVICE_REMOVED: 887A0005",
        "CUDA error: unspecified launch failure",
        "GPU 0000:01:00.0: GPU has fallen off the bus.",
        "WebGPU device lost",
    ):
        failure = failure_of(RuntimeError(says))
        assert failure.kind == "device lost", says
        assert says in failure.message and "reset the device" in failure.hint
    assert failure_of(RuntimeError("a string broke")).kind == "raised"
