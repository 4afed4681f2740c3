"""A language model of your own by our routes beside the loop that a user would run instead, on the same weights.

Run: python -m bench.capabilities.own_llm FOLDER_OR_GGUF [ROUNDS [ADAPTER …]]

Rates are of decoding: of a folder beside transformers' generate, both in bf16, and of a GGUF file beside llama.cpp's
own loop, which chooses no token, as llama-bench's tg128. Both stay loaded and work in turn.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.capabilities.own_model import compare, ours
from mixmark.harness.capabilities.language_model import LanguageModel
from mixmark.harness.capabilities.own_model.gguf_file import PROMPT, SINGLE, GgufFile
from mixmark.harness.capabilities.own_model.options import section
from mixmark.harness.contracts.weights import read_weight
from mixmark.harness.resources.cpus import cores


def by_transformers(folder: Path, suite: LanguageModel) -> Callable[[], float]:
    """Tokens decoded per second, as `streamer` sees them: the prompt, then each token."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval().requires_grad_(False)
    model.generation_config.eos_token_id, weights, own = None, suite.weights(), model.state_dict()
    for name in weights.names():
        own[name].copy_(torch.from_numpy(read_weight(weights, name)))
    ids = torch.from_numpy(suite.feeds(1, 0)(0)["ids"])[None]
    seen: list[int] = []
    streamer = SimpleNamespace(put=lambda tokens: seen.append(time.perf_counter_ns()), end=lambda: None)

    def window() -> float:
        arguments = {"max_new_tokens": suite.units(1), "do_sample": False, "streamer": streamer}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
        _, *tokens = seen
        seen.clear()
        return (len(tokens) - 1) / (tokens[-1] - tokens[0]) * 1e9

    return window


def by_llamacpp(file: Path, suite: GgufFile) -> Callable[[], float]:
    """Tokens per second that enter one by one."""
    library: Any = importlib.import_module("llama_cpp")
    model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
    settings = library.llama_context_default_params()
    settings.n_ctx, settings.n_threads = SINGLE, cores()
    context = library.llama_init_from_model(model, settings)
    tokens = [(library.llama_token * 1)(token) for token in suite.feeds(1, 0)(0)["ids"][PROMPT:].tolist()]

    def window() -> float:
        library.llama_memory_clear(library.llama_get_memory(context), False)
        begin = time.perf_counter()
        for token in tokens:
            assert library.llama_decode(context, library.llama_batch_get_one(token, 1)) == 0
            library.llama_synchronize(context)
        return SINGLE / (time.perf_counter() - begin)

    return window


def main(model: str, rounds: str = "5", *adapters: str) -> None:
    path, given = Path(model).absolute(), dict(section({"file": str(Path(model).absolute())}))
    plugin = given.pop("plugin")
    if path.is_dir():
        routes, precision, goal = adapters or ("torch", "openvino"), "bf16", 1.0
        peer = by_transformers(path, LanguageModel("edge", given))
    else:
        given |= GgufFile("edge", given).measured().options
        routes, precision, goal = ("llamacpp",), "as-file", 0.9
        peer = by_llamacpp(path, GgufFile("edge", given))
    for adapter in routes:
        with ours(adapter, plugin, precision, given) as window:
            compare(f"{path.name} {adapter}", window, peer, goal, int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
