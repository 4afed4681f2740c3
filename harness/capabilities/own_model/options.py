"""The options of `mixmark run` for an ONNX file, and the sections of the configuration that they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mixmark.harness.cli.options import AgainOption
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.plugins import registry

PLUGIN = "onnx-file"
"""The name of the suite in the manifest."""
OPTIONS = (
    AgainOption(
        ["--model"],
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Measure a model of your own: an ONNX file, or a language model's folder of config.json and safetensors.",
    ),
    AgainOption(
        ["--inputs"],
        type=click.Path(path_type=Path),
        metavar="FILE.npz",
        help="Samples of the model's inputs: arrays by their names, samples in the first dimension. Without them, or "
        "a --range for each input, its outputs are not audited.",
    ),
    AgainOption(
        ["--dim", "dims"],
        multiple=True,
        metavar="NAME=N",
        help="Size of a symbolic axis, NAME or INPUT.AXIS. Repeatable.",
    ),
    AgainOption(
        ["--range", "ranges"],
        multiple=True,
        metavar="INPUT=LOW:HIGH",
        help="Draw an input uniformly from LOW up to HIGH, without HIGH. Repeatable.",
    ),
)


def sections(given: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    """The section of the configuration that the options stand for, by the name of its suite. Raises UsageError."""
    model = given["model"]
    if model is None:
        raise UsageError("--inputs, --dim and --range describe a model", hint="give its file with --model")
    if model.is_dir() and (folder := registry.find("services").get("model folder")):
        if given["inputs"] or given["dims"] or given["ranges"]:
            raise UsageError("--inputs, --dim and --range describe an ONNX file", hint="leave them away")
        return {suite_name(model): folder.load()(model)}
    section = {"plugin": PLUGIN, "file": str(model.absolute())}
    if given["inputs"]:
        section["inputs"] = str(given["inputs"].absolute())
    for kind, several in (("dim", given["dims"]), ("range", given["ranges"])):
        for each in several:
            name, equals, value = each.rpartition("=")
            if not equals:
                raise UsageError(f"--{kind} {each!r} has no value", hint=f"give it as --{kind} NAME=VALUE")
            section[f"{kind}.{name}"] = value
    return {suite_name(model): section}


def suite_name(file: Path) -> str:
    """The name of a suite: that of its file or folder, as far as a suite may have it."""
    stem = file.resolve().name if file.is_dir() else file.stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-") or "model"
    return f"my-{name}" if registry.name_problem("suites", name) else name
