"""Memory is used again when nobody holds it, and not before."""

import numpy as np

from mixmark.suites.array_pool import ArrayPool


def test_memory_is_used_again_once_no_view_of_it_is_held() -> None:
    memory = ArrayPool((4, 8), np.uint8)
    first = memory()
    at = first.ctypes.data
    part = first.reshape(8, 4)[1:]
    second = memory()
    assert not np.shares_memory(first, second)
    del first
    third = memory()  # `part` is held still
    assert not np.shares_memory(part, third)
    del part
    assert memory().ctypes.data == at
    assert third.shape == (4, 8) and third.dtype == np.uint8
