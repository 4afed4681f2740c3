"""llama.cpp: the llm suite by its own network and its own loop, through llama-cpp-python.

The suite's weights are written once to a GGUF file in the cache of converted models. The precision names what matrices
are held in, the embedding and the output head included; weights of norms are in F32 and the KV cache is in F16, but in
F32 at fp32. llama.cpp rounds activations to what its kernels multiply: to Q8_0, blocks of 32 integers of 8 bits with a
scale, at int8 and int4.

The authors have run only the CPU; accelerators are reached by llama.cpp's own backends as its headers describe them.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness.adapters import gguf
from harness.adapters.cpu import cores, cpu, flags, threads_option
from harness.cache import converted
from harness.contracts import Array, Feed, Runner, Suite, Use
from harness.errors import MixmarkError, PluginError, Unsupported
from harness.schema import HOST_PROCESSOR, Device, Precision

TYPES: dict[Precision, str] = {"bf16": "BF16", "fp16": "F16", "fp32": "F32", "int8": "Q8_0", "int4": "Q4_0"}
"""What GGUF calls each precision, the best one of each weight class first."""
INSTALL = "CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python 'mixmark[llamacpp]'"
BEST = {
    "avx2": "AVX2",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
}
"""What llama.cpp calls the instruction sets that its kernels use, by the processor's flags."""
GPU = (1, 2)  # ggml_backend_dev_type: discrete and integrated GPUs


class LlamaCpp:
    """Decoding by llama.cpp. options: `threads`, the size of the CPU's thread pool; by default one thread a core."""

    name = "llamacpp"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._threads = threads_option("llamacpp", options) or cores()

    def discover(self) -> Iterable[Device]:
        return [device for device, _ in _places()]

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        library = _import()
        place = next((place for each, place in _places() if each.id == device.id), None)
        if place is None and device.id != HOST_PROCESSOR:
            raise Unsupported(f"llama.cpp of llama-cpp-python {library.__version__} does not reach {device.id}")
        if suite.name != "llm" or suite.config.get("model_type") != "llama":
            raise Unsupported(f"this adapter writes Llama models, and {suite.name} is none")
        kind = next((kind for name, kind in TYPES.items() if name == precision), None)
        if kind is None:
            raise Unsupported(f"llama.cpp holds no weights in {precision}", f"it has {', '.join(TYPES)}")
        size_bytes = gguf.size_bytes(suite, kind)
        with converted(suite, precision, "gguf", size_bytes, partial(gguf.write, suite, kind)) as folder:
            decoder = Decoder(library, folder / gguf.FILE, suite, kind, self._threads, place)
            try:
                yield decoder
            finally:
                decoder.close()


class Decoder:
    """A model and its KV cache. place: llama.cpp's handle on a GPU; None: the CPU."""

    slots = 1

    def __init__(self, library: Any, path: Path, suite: Suite, kind: str, threads: int, place: int | None) -> None:
        config: Any = suite.config
        self._library = library
        self._tokens_out = suite.units(1)
        self._close = ExitStack()
        self._tokens = (library.llama_token * config["max_position_embeddings"])()
        model_settings = library.llama_model_default_params()
        self._devices = (ctypes.c_void_p * 2)(place, None)  # ends with NULL; on the CPU it is empty
        model_settings.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        model_settings.n_gpu_layers = 0 if place is None else -1
        # Weights stay as they lie in the file, mapped and not copied. Repacked for AMX, a build by GCC before 13.3 ends
        # the process: that compiler drops the stores of the tile configuration.
        model_settings.use_extra_bufts = False
        _last.clear()
        model = library.llama_model_load_from_file(str(path).encode(), model_settings)
        if not model:
            raise MixmarkError(
                f"llama.cpp could not load {path}: {_said()}",
                "mixmark cache --clear, if the file is damaged: it is then written anew",
            )
        self._close.callback(library.llama_model_free, model)
        settings = library.llama_context_default_params()
        settings.n_ctx = config["max_position_embeddings"]
        settings.n_batch = settings.n_ubatch = settings.n_ctx
        settings.n_threads = settings.n_threads_batch = threads
        settings.type_k = settings.type_v = library.GGML_TYPE_F32 if kind == "F32" else library.GGML_TYPE_F16
        settings.no_perf = True
        self.context = library.llama_init_from_model(model, settings)
        if not self.context:
            self.close()
            raise RuntimeError(f"llama.cpp could not make a context: {_said()}")
        self._close.callback(library.llama_free, self.context)
        self._memory = library.llama_get_memory(self.context)
        self._vocabulary = int(config["vocab_size"])
        told = library.llama_print_system_info().decode()
        self.facts: Mapping[str, str] = {
            "llama-cpp-python": library.__version__,
            "matrices": kind,
            "norms": "F32",
            "KV cache": "F32" if kind == "F32" else "F16",
            "threads": str(threads),
            "repacked": "no",
            "llama.cpp": told.strip(" |"),
        }
        if lacks := missing(told, flags()):
            self.facts["built without"] = f"{', '.join(lacks)}, which this processor has; build it here: {INSTALL}"

    def __call__(self, feed: Feed) -> Iterator[Array]:
        """Yields the most probable token, which is chosen on the host, and feeds it back."""
        library = self._library
        library.llama_memory_clear(self._memory, True)
        ids = feed["ids"]
        self._tokens[: len(ids)] = ids.tolist()
        entering = len(ids)
        for _ in range(self._tokens_out):
            if code := library.llama_decode(self.context, library.llama_batch_get_one(self._tokens, entering)):
                raise RuntimeError(f"llama_decode failed with code {code}: {_said()}")
            logits = np.ctypeslib.as_array(library.llama_get_logits_ith(self.context, -1), (self._vocabulary,))
            self._tokens[0] = token = int(logits.argmax())
            entering = 1
            yield np.array([token])

    def close(self) -> None:
        """Frees the memory, even while the runner is still referenced."""
        self._close.close()
        gc.collect()


def missing(told: str, flags: Iterable[str]) -> list[str]:
    """The instruction sets that the processor has and llama.cpp's build, which tells its own, does not use."""
    used = {part.split("=")[0].strip() for part in told.replace(":", "|").split("|") if part.strip().endswith("= 1")}
    return [name for flag, name in BEST.items() if flag in set(flags) and name not in used]


_last: list[str] = []  # what llama.cpp said last, which tells why a call failed
_callbacks: list[Any] = []  # what llama.cpp calls to say it; it has to live as long as the library


def _said() -> str:
    return "".join(_last[-5:]).strip()


def _import() -> Any:
    try:
        importlib.import_module("gguf")  # a missing one is told here, and not in the middle of a run
        import llama_cpp
    except ImportError as error:
        raise PluginError(f"{error.name} is not installed", INSTALL) from error
    except (OSError, RuntimeError) as error:  # the shared library needs what this machine has not
        raise PluginError(f"llama_cpp does not load: {error}", INSTALL) from error
    if not _callbacks:
        _callbacks.append(llama_cpp.llama_log_callback(_keep))
        llama_cpp.llama_log_set(_callbacks[0], ctypes.c_void_p())
        llama_cpp.llama_backend_init()
    return llama_cpp


def _keep(level: int, text: bytes, data: object) -> None:
    _last[:] = [*_last[-9:], text.decode(errors="replace")]


def _places() -> Iterator[tuple[Device, int | None]]:
    """Each device with llama.cpp's handle on it."""
    library = _import()
    device = cpu(())
    offered = tuple(TYPES)
    yield device.model_copy(update={"precisions_by_suite": {"llm": offered}}), None
    if not library.llama_supports_gpu_offload():
        return
    ggml = library._ggml.libggml
    for function in ("get", "name", "description"):
        getattr(ggml, f"ggml_backend_dev_{function}").restype = ctypes.c_void_p
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    for index in range(ggml.ggml_backend_dev_count()):
        handle = ctypes.c_void_p(ggml.ggml_backend_dev_get(ctypes.c_size_t(index)))
        if ggml.ggml_backend_dev_type(handle) in GPU:
            name, described = (
                ctypes.string_at(getattr(ggml, f"ggml_backend_dev_{function}")(handle)).decode()
                for function in ("name", "description")
            )
            id = f"gpu:{name.lower()}"
            yield (
                Device(id=id, kind="gpu", name=described, memory_pool=id, precisions_by_suite={"llm": offered}),
                handle.value,
            )
