"""A vendor's backend for PyTorch, out of tree and without C++: device `acme`, whose memory is the host's.

Every operator on it comes to `Held.__torch_dispatch__`, which computes on what the tensor holds; the few that make or
fill one are registered with the dispatcher, as a vendor's are. torch loads it by an entry point `torch.backends`.
COUNTED holds what a real one would have to do: launches of kernels, copies between host and device, and waits for it.
While `hold` is on, no kernel ends: what waits for one blocks, and a copy behind one does not arrive.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import library as operators
from torch.utils import _pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


class Queue:
    """A stream of the device: its kernels and copies run in order."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.kernels = 0
        """Those that do not end yet, as the device is held."""


class Current(threading.local):
    """The stream that each thread launches on."""

    default = Queue()

    def __init__(self) -> None:
        self.queue = self.default


CURRENT = Current()
RUNNING = threading.Event()  # cleared while the device is held
RUNNING.set()


@contextmanager
def hold() -> Iterator[None]:
    """Lets no kernel end that is launched inside."""
    RUNNING.clear()
    try:
        yield
    finally:
        RUNNING.set()


def _wait() -> None:
    """Waits for the thread's stream, as a copy does that is not asynchronous."""
    if CURRENT.queue.kernels and not RUNNING.wait(timeout=60):
        raise RuntimeError("the device was held for a minute")
    CURRENT.queue.kernels = 0


def _set_stream(stream: Queue) -> None:
    CURRENT.queue = stream


MODULE = SimpleNamespace(
    __name__="torch.acme",
    Stream=Queue,
    set_stream=_set_stream,
    synchronize=lambda device=None: _wait(),
    is_available=lambda: True,
    is_initialized=lambda: True,
    _is_in_bad_fork=lambda: False,
    manual_seed_all=lambda seed: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
    get_device_properties=lambda index: SimpleNamespace(name="Acme Topaz", total_memory=8 << 30),
    is_bf16_supported=lambda: True,
    empty_cache=lambda: None,
)
"""What such a package puts at `torch.acme`."""
_setup_privateuseone_for_python_backend("acme", backend_module=MODULE)
ACME = torch.device("acme:0")
COUNTED: Counter[str] = Counter()
"""`launches`, `bytes in`, `bytes out` and `waits`: a copy to the host waits for all that was launched before it.
`bytes ahead` came in from pinned memory while the device was held, before all kernels of their stream."""


class Held(torch.Tensor):
    """A tensor on acme: it holds one of the host's."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Held:
        made: Held = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=ACME
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, *call: Any, **_: Any) -> Any:
        op, _types, args, kwargs = (*call, {})[:4]
        return _anywhere(op, *args, **kwargs)


def _anywhere(op: Any, *args: Any, **kwargs: Any) -> Any:
    flat = _pytree.tree_leaves((args, kwargs))
    asked = [each for each in flat if isinstance(each, torch.device)]
    if op is torch.ops.aten.copy_.default:
        return _copy_from(args[1], args[0], *args[2:])
    _count(op, args, to_host=bool(asked) and asked[0].type == "cpu")
    held = [isinstance(each, Held) for each in flat if isinstance(each, torch.Tensor) and each.dim()]
    if any(held) and not all(held):
        raise RuntimeError(f"{op}: some tensors are on acme, and some on the host")
    on_acme = asked[0].type == "acme" if asked else any(isinstance(each, Held) for each in flat)
    back = {id(each.held): each for each in flat if isinstance(each, Held)}
    plain_args, plain = _pytree.tree_map(_plain, (args, kwargs))
    with torch.inference_mode(False), torch.no_grad():  # a tensor made here has views, which one of inference has not
        out = op(*plain_args, **plain)
        return _pytree.tree_map(lambda each: _wrapped(each, back) if on_acme else each, out)


def _count(op: Any, args: tuple[Any, ...], to_host: bool) -> None:
    if to_host or op is torch.ops.aten._local_scalar_dense.default:
        _wait()
        COUNTED.update({"waits": 1, "bytes out": args[0].nbytes})
    elif not op.is_view:
        _launch()


def _launch() -> None:
    COUNTED["launches"] += 1
    CURRENT.queue.kernels += not RUNNING.is_set()


def _plain(value: Any) -> Any:
    if isinstance(value, Held):
        return value.held
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _wrapped(value: Any, back: dict[int, Held]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return back[id(value)] if id(value) in back else Held(value)


def _empty(size: Any, **kwargs: Any) -> Held:
    return Held(torch.empty(size, dtype=kwargs.get("dtype")))


def _empty_strided(size: Any, stride: Any, **kwargs: Any) -> Held:
    return Held(torch.empty_strided(size, stride, dtype=kwargs.get("dtype")))


def _copy_from(source: torch.Tensor, into: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if isinstance(source, Held) and isinstance(into, Held):
        _launch()
    elif isinstance(source, Held):
        _wait()
        COUNTED.update({"waits": 1, "bytes out": source.nbytes})
    else:
        COUNTED["bytes in"] += into.nbytes
        if not (non_blocking and getattr(source, "pinned", False)):
            _wait()
        elif not RUNNING.is_set() and not CURRENT.queue.kernels:
            COUNTED["bytes ahead"] += into.nbytes
    _plain(into).copy_(_plain(source))
    return into


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Memory that is marked as pinned: torch has none to give for a backend in Python."""
    copy = tensor.clone()
    vars(copy)["pinned"] = True
    return copy


cast(Any, torch.Tensor).pin_memory = _pinned


def autoload() -> None:
    """What the entry point names: importing this module did it all."""


_own: Any = cast(Any, operators.Library)("aten", "IMPL")  # its constructor has no types
_own.impl("empty.memory_format", _empty, "PrivateUse1")
_own.impl("empty_strided", _empty_strided, "PrivateUse1")
_own.impl("_copy_from", _copy_from, "PrivateUse1")
