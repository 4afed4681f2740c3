"""Mixmark's own plugins, by the manifest `built_in.toml`. It imports nothing that is heavy."""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

Kind = str
"""`adapters`, `suites`, …: a table of the manifest."""
PACKAGE = Path(__file__).absolute().parents[2]
"""The folder of the package `mixmark`."""


_MANIFEST = tomllib.loads((pkgutil.get_data(__package__, "built_in.toml") or b"").decode())
WITH_SECTION = frozenset(_MANIFEST.pop("with_section"))
"""The adapters that are asked only if mixmark.toml has their section or the command line names them."""


NEEDS: Mapping[str, Sequence[str]] = _MANIFEST.pop("needs")
"""The capabilities that each capability needs."""


def _built_in() -> dict[Kind, dict[str, str]]:
    """The plugins of the manifest whose modules are there. A kind whose contract is not there has none."""

    def is_there(spec: str) -> bool:
        module = PACKAGE.joinpath(*spec.partition(":")[0].split(".")[1:])
        return (module / "__init__.py").is_file() or module.with_suffix(".py").is_file()

    found = {kind: {name: spec for name, spec in specs.items() if is_there(spec)} for kind, specs in _MANIFEST.items()}
    return {kind: specs for kind, specs in found.items() if kind in found["kinds"] or kind not in _MANIFEST["kinds"]}


BUILT_IN = _built_in()
OPTIONS = BUILT_IN.pop("options")
"""The options that ask for experiments, for other machines and for models."""
MODELS = BUILT_IN.pop("models")
"""The suites that only a section of the configuration makes."""
KINDS = BUILT_IN.pop("kinds")
"""The kinds of plugins whose contract a capability has, each with its `PluginKind`."""
