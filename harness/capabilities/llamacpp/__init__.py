"""llama.cpp: runs the llm suite with llama.cpp's network and loop, through llama-cpp-python.

The suite's weights are written once to a GGUF file in the cache of converted models. The precision applies to all
matrices, including the embedding and the output head. Weights of norms are in F32, and the KV cache is in F16, or in
F32 at fp32. At int8 and int4 llama.cpp rounds activations to Q8_0, blocks of 32 integers of 8 bits with a scale. It
copies matrices into the order of its fastest kernels ("repacks" them): on AMX decoding is then 1.7 times as fast in
int8, 2.8 times in int4 and 1.1 times in fp16.

A build for CUDA, Vulkan, Metal, SYCL, HIP, CANN or MUSA reaches the devices that ggml lists (`devices.py`). All layers
and the KV cache are on the device. The host looks up the rows of the embedding and chooses the token.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mixmark.harness.adapters.devices import cores, reached, threads_option
from mixmark.harness.capabilities.llamacpp import gguf
from mixmark.harness.capabilities.llamacpp.devices import GgmlDevice, ggml_devices
from mixmark.harness.contracts.errors import MixmarkError, PluginError
from mixmark.harness.contracts.protocols import Array, Feed, Runner, Suite, Use
from mixmark.harness.contracts.schema import Device
from mixmark.harness.plugins import install
from mixmark.harness.plugins.model_cache import converted

REPACKED = ("F16", "Q8_0", "Q4_0", "as-file")
BUILD = "CMAKE_ARGS='-DGGML_NATIVE=ON -DCMAKE_CXX_FLAGS=-fno-dse'"
FROM_SOURCE = "--no-cache-dir --no-binary llama-cpp-python"
"""-fno-dse: GCC 12 assumes that the instruction which configures AMX's tiles reads 8 of its 64 bytes, and removes the
stores of the other bytes as dead. The program then crashes in that instruction."""
ALL_LAYERS = 9999  # any number from the number of layers on means all of them


class LlamaCpp:
    """Decoding by llama.cpp. options: `threads`, the size of the CPU's thread pool; by default one thread a core."""

    name = "llamacpp"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._threads = threads_option("llamacpp", options) or cores()

    def discover(self) -> Iterable[Device]:
        return [found.device for found in ggml_devices(_import())]

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        library = _import()
        place = reached(ggml_devices(library), device, "this build of llama.cpp", suite, precision)
        if precision == "as-file":
            with closing(Bench(library, Path(suite.options["file"]), suite, precision, self._threads, place)) as bench:
                yield bench
            return
        kind = gguf.type_of(suite, precision)
        write = partial(gguf.write, suite, kind)
        with (
            converted(suite, precision, "gguf", gguf.size_bytes(suite, kind), write) as folder,
            closing(LlamaCppRunner(library, folder / gguf.FILE, suite, kind, self._threads, place)) as decoder,
        ):
            yield decoder


class LlamaCppRunner:
    """A model and its KV cache on one device. kind: the type of the matrices."""

    concurrency = 1

    def __init__(self, library: Any, path: Path, suite: Suite, kind: str, threads: int, place: GgmlDevice) -> None:
        config: Any = suite.config
        self._library = library
        self._tokens_out = suite.units(1)
        self._close = ExitStack()
        self._tokens = (library.llama_token * config["max_position_embeddings"])()
        model_settings = library.llama_model_default_params()
        handles = [place.handle] if place.handle else []
        repacked = kind in REPACKED and not handles
        self._devices = (ctypes.c_void_p * (len(handles) + 1))(*handles)  # ends with NULL; the CPU is not listed
        model_settings.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        model_settings.n_gpu_layers = ALL_LAYERS if handles else 0
        model_settings.use_extra_bufts = repacked
        # Repacked matrices are copies. With a mapped file each matrix would be in memory twice.
        model_settings.load_mode = library.LLAMA_LOAD_MODE_NONE if repacked else library.LLAMA_LOAD_MODE_MMAP
        _log.clear()
        _offloaded.clear()
        model = library.llama_model_load_from_file(str(path).encode(), model_settings)
        if not model:
            mend = "take a newer one" if kind == "as-file" else f"remove {path}, if it is damaged: it is made again"
            raise MixmarkError(f"llama.cpp could not load {path}: {_last_log_lines()}", mend)
        self._close.callback(library.llama_model_free, model)
        settings = library.llama_context_default_params()
        settings.n_ctx = config["max_position_embeddings"]
        settings.n_batch = settings.n_ubatch = settings.n_ctx
        settings.n_threads = settings.n_threads_batch = threads
        settings.type_k = settings.type_v = library.GGML_TYPE_F32 if kind == "F32" else library.GGML_TYPE_F16
        if kind == "F32":  # llama.cpp's flash attention computes in fp16
            settings.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        settings.no_perf = True
        settings.pooling_type = library.LLAMA_POOLING_TYPE_NONE  # the hidden states
        settings.embeddings = kind != "as-file"
        self.context = library.llama_init_from_model(model, settings)
        if not self.context:
            self.close()
            raise RuntimeError(f"llama.cpp could not make a context: {_last_log_lines()}")
        self._close.callback(library.llama_free, self.context)
        self._memory = library.llama_get_memory(self.context)
        self._vocabulary, self._width = int(config["vocab_size"]), int(config.get("hidden_size", 0))
        self.facts = {
            "llama-cpp-python": library.__version__,
            "matrices": kind,
            "KV cache": "F32" if kind == "F32" else "F16",
            "threads": str(threads),
            "repacked": "yes" if repacked else "no",
            "llama.cpp": ", ".join(used(library.llama_print_system_info().decode())),
        }
        if handles:
            self.facts |= offloading(place.name, _offloaded)

    def __call__(self, feed: Feed) -> Iterator[Array]:
        """Yields the most probable token, chosen on the host and fed back, with its hidden state."""
        self._library.llama_memory_clear(self._memory, True)
        entering = feed["ids"].tolist()
        for _ in range(self._tokens_out):
            entering = [self._next(entering)]
            hidden = np.ctypeslib.as_array(self._library.llama_get_embeddings_ith(self.context, -1), (self._width,))
            yield np.concatenate((entering, hidden), dtype=np.float32)[None]

    def _next(self, entering: Sequence[int]) -> int:
        """The most probable token after these have entered the context."""
        library = self._library
        self._tokens[: len(entering)] = entering
        if code := library.llama_decode(self.context, library.llama_batch_get_one(self._tokens, len(entering))):
            raise RuntimeError(f"llama_decode failed with code {code}: {_last_log_lines()}")
        return int(np.ctypeslib.as_array(library.llama_get_logits_ith(self.context, -1), (self._vocabulary,)).argmax())

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        self._close.close()
        gc.collect()


class Bench(LlamaCppRunner):
    """llama-bench's tests pp and tg of a file of the user's own: all tokens that enter are given."""

    def __call__(self, feed: Feed) -> Iterator[Array]:
        alone = self._tokens_out - 1
        for at, entering in enumerate([feed["ids"][:-alone], *np.split(feed["ids"][-alone:], alone)]):
            if at < 2:
                self._library.llama_memory_clear(self._memory, False)
            yield np.array([self._next(entering.tolist())])


def used(system_info: str) -> list[str]:
    """The instruction sets and features of llama.cpp's system info, such as `CPU : AVX2 = 1 | AMX_INT8 = 1 | `."""
    return [
        part.split("=")[0].strip() for part in system_info.replace(":", "|").split("|") if part.strip().endswith("= 1")
    ]


def offloading(name: str, logged: Sequence[tuple[int, int]]) -> dict[str, str]:
    """The facts about the layers on a device. logged: (layers on a device, all layers) from each line of the log."""
    facts = {"ggml's device": name, "embedding's rows": "looked up on the host", "token": "chosen on the host"}
    if not logged:
        return facts | {"layers on the device": "unknown: not in llama.cpp's log"}
    on_device, layers = logged[-1]
    facts["layers on the device"] = f"{on_device} of {layers}"
    return (
        facts if on_device == layers else facts | {"elsewhere": f"{layers - on_device} of {layers} layers by the CPU"}
    )


_log: list[str] = []  # the last lines of llama.cpp's log, with the reason of a failed call
_offloaded: list[tuple[int, int]] = []  # (layers on a device, all layers) from lines of the log
_callbacks: list[Any] = []  # the log callback, which must live as long as the library


def _last_log_lines() -> str:
    return "".join(_log[-5:]).strip()


def _install() -> str:
    return f"{BUILD} {install.command('llamacpp')} {FROM_SOURCE}"


def _import() -> Any:
    try:
        importlib.import_module("gguf")  # reports a missing package here instead of in the middle of a run
        import llama_cpp
    except ImportError as error:
        raise PluginError(f"{error.name} is not installed", _install()) from error
    except (OSError, RuntimeError) as error:  # the shared library was built for another machine
        raise PluginError(f"llama_cpp does not load: {error}", _install()) from error
    if not _callbacks:
        _callbacks.append(llama_cpp.llama_log_callback(_keep_log_line))
        llama_cpp.llama_log_set(_callbacks[0], ctypes.c_void_p())
        llama_cpp.llama_backend_init()
    return llama_cpp


def _keep_log_line(level: int, text: bytes, data: object) -> None:
    line = text.decode(errors="replace")
    _log[:] = [*_log[-9:], line]
    _offloaded.extend((int(on), int(of)) for on, of in re.findall(r"offloaded (\d+)/(\d+) layers", line))
