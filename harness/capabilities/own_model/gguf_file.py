"""A GGUF file, as llama-bench measures it: a suite that llama.cpp alone runs, unaudited and in no rank.

Its weights have types that no precision names, and nothing computes their reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mixmark.harness.capabilities.own_model import OnnxFile
from mixmark.harness.capabilities.own_model.model import MAGIC, regular
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.protocols import Feeds, Graph, Value
from mixmark.harness.contracts.schema import UnitNames
from mixmark.harness.record.files import sha256_of
from mixmark.harness.resources import memory
from mixmark.harness.worker.messages import Measured
from mixmark.suites.weights import generator

PROMPT, SINGLE = 512, 128
"""The tokens of llama-bench's tests: of a prompt, and those that enter one by one."""
NO_GATE = "llama.cpp runs a GGUF file as it is, and nothing here computes its reference"


class GgufFile(OnnxFile):
    """A GGUF file. options: `file`; all others are what `measured` found.

    Feed: ids [PROMPT + SINGLE] int64, random. The prompt enters an empty context; then each other token enters alone,
    the first of them an empty context. One yield for each entry, the most probable next token.
    """

    name, unit = "gguf-file", "token"
    unit_names = UnitNames(short="tok", work="LLM tokens", taken_in=PROMPT, first_unit="pp512", per_unit="tg128")
    scenarios = ("single-stream",)

    @property
    def config(self) -> Mapping[str, Value]:
        return {"vocab_size": int(self.options["vocab_size"]), "max_position_embeddings": PROMPT}

    def graphs(self) -> Mapping[str, Graph]:
        return {}

    def feeds(self, batch: int, seed: int) -> Feeds:
        words = int(self.options["vocab_size"])
        return lambda nonce: {"ids": generator(self.name, seed, nonce).integers(words, size=PROMPT + SINGLE)}

    def units(self, batch: int) -> int:
        return 1 + SINGLE

    def measured(self) -> Measured:
        """Reads what the file says of itself. Raises UsageError."""
        file, free = Path(self.options["file"]), memory.available_bytes()
        try:
            size = regular(file).stat().st_size
            with file.open("rb") as opened:
                if opened.read(4) != MAGIC:
                    raise ValueError("it does not begin with GGUF")
            from gguf import GGUFReader, LlamaFileType

            reader = GGUFReader(file)
            if "split.count" in reader.fields:
                raise ValueError("it is a part of a split file: join them by llama-gguf-split --merge")
            kinds = [each.contents() for name, each in reader.fields.items() if name == "general.file_type"]
            named = [LlamaFileType(kind).name.partition("_")[2] for kind in kinds]
            words = {each.name: each.shape for each in reader.tensors}["token_embd.weight"][1]
        except Exception as error:  # of what is damaged: gguf's and numpy's errors have no common class
            why = f"{file.name} cannot be read as GGUF: {getattr(error, 'strerror', None) or error}"
            hint = "give a whole language model; llama.cpp and the package gguf come with mixmark[llamacpp]"
            raise UsageError(why, hint) from error
        if size > free:
            raise UsageError(f"{file.name} has {filesize(size)}, and {filesize(free)} of memory are free", "free some")
        counts = Counter(each.tensor_type.name for each in reader.tensors).most_common()
        types = ", ".join([*named, *(f"{count} {name}" for name, count in counts)])
        options = {"plugin": self.name, "vocab_size": str(words), "types": types, "no gate": NO_GATE}
        digest, scenarios = sha256_of(file.resolve()), self.scenarios
        found = Measured(options=options, weights=f"{file.name} sha256:{digest[:16]}", scenarios=scenarios)
        return found.model_copy(update={"files": {str(file): digest}, "precisions": ("as-file",)})
