"""Mixmark's own plugins, by the manifest `built_in.toml`. It imports nothing that is heavy."""

from __future__ import annotations

import pkgutil
import tomllib
from pathlib import Path
from typing import Literal, cast

Kind = Literal[
    "adapters",
    "meters",
    "watchers",
    "limiters",
    "suites",
    "paths",
    "formats",
    "policies",
    "reporters",
    "comparisons",
    "experiments",
    "commands",
    "services",
]

PACKAGE = Path(__file__).absolute().parents[2]
"""The folder of the package `mixmark`."""


def _built_in() -> dict[Kind, dict[str, str]]:
    """The plugins of the manifest whose modules are there."""
    manifest = tomllib.loads((pkgutil.get_data(__package__, "built_in.toml") or b"").decode())

    def is_there(spec: str) -> bool:
        module = PACKAGE.joinpath(*spec.partition(":")[0].split(".")[1:])
        return module.is_dir() or module.with_suffix(".py").is_file()

    kinds = cast(dict[Kind, dict[str, str]], manifest)
    return {kind: {name: spec for name, spec in specs.items() if is_there(spec)} for kind, specs in kinds.items()}


BUILT_IN = _built_in()
