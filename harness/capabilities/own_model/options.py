"""The options of `mixmark run` for a model of one's own, and the sections of the configuration that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mixmark.harness.capabilities.own_model.model import is_gguf
from mixmark.harness.cli.options import AgainOption
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.toml import flat
from mixmark.harness.plugins import registry

PLUGIN, GGUF = "onnx-file", "gguf-file"
"""The names of the suites in the manifest."""
MODEL = """Measure a model of your own: an ONNX file, a language model's folder of config.json and safetensors, or a
GGUF file, which llama.cpp runs unaudited."""
SAMPLES = """Samples of the model's inputs: arrays by their names, samples in the first dimension. Without them, or a
--range for each input, its outputs are not audited."""
SIZE = "Size of a symbolic axis, NAME or INPUT.AXIS. Repeatable."
RANGE = "Draw an input uniformly from LOW up to HIGH, without HIGH. Repeatable."
FILE = click.Path(path_type=Path)
OPTIONS = (
    AgainOption(["--model"], type=FILE, metavar="PATH", help=" ".join(MODEL.split())),
    AgainOption(["--inputs"], type=FILE, metavar="FILE.npz", help=" ".join(SAMPLES.split())),
    AgainOption(["--dim", "dims"], multiple=True, metavar="NAME=N", help=SIZE),
    AgainOption(["--range", "ranges"], multiple=True, metavar="INPUT=LOW:HIGH", help=RANGE),
)


def sections(given: Mapping[str, Any], tables: Mapping[str, Any], folder: Path) -> Mapping[str, Mapping[str, str]]:
    """The sections of the configuration that the options stand for, by the names of their suites. tables: those of
    the models in the file of a mix, whose paths begin at this folder. GGUF files in a language model's folder are
    measured beside its shape. Raises UsageError."""
    found = dict[str, Mapping[str, str]]()
    for name, table in tables.items():
        options = {key: str(value) for key, value in flat(table).items()}
        options |= {key: str(folder.absolute() / options[key]) for key in ("file", "inputs") if key in options}
        found[name] = section(options)
    if given["model"] is None:
        if any(given.values()):
            raise UsageError("--inputs, --dim and --range describe a model", hint="give its file with --model")
        return found
    options = {"file": str(given["model"].absolute())}
    if given["inputs"]:
        options["inputs"] = str(given["inputs"].absolute())
    for kind, several in (("dim", given["dims"]), ("range", given["ranges"])):
        for each in several:
            name, equals, value = each.rpartition("=")
            if not equals:
                raise UsageError(f"--{kind} {each!r} has no value", hint=f"give it as --{kind} NAME=VALUE")
            options[f"{kind}.{name}"] = value
    for beside in sorted(given["model"].glob("*.gguf")):  # first: one that cannot be read is refused in a second
        found[f"{suite_name(beside)}.gguf"] = section({"file": str(beside.absolute())})
    found[suite_name(given["model"])] = section(options)
    return found


def section(options: Mapping[str, str]) -> Mapping[str, str]:
    """The section of a suite. Its `file` is an ONNX file, a GGUF file or a language model's folder, unless its `plugin`
    is given. Raises UsageError."""
    file = Path(options.get("file", PLUGIN))
    folder, gguf = registry.find("services").get("model folder") if file.is_dir() else None, is_gguf(file)
    if "plugin" in options or not (folder or gguf):
        return {"plugin": PLUGIN, **options}
    if len(options) > 1:
        raise UsageError("--inputs, --dim and --range describe an ONNX file", hint="leave them away")
    made: Mapping[str, str] = folder.load()(file) if folder else {"plugin": GGUF, **options}
    return made


def suite_name(file: Path) -> str:
    """The name of a suite: that of its file or folder, as far as a suite may have it."""
    stem = file.resolve().name if file.is_dir() else file.stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-") or "model"
    return f"my-{name}" if registry.name_problem("suites", name) else name
