"""Everything that a plugin needs, `from mixmark import Device, GraphRunner, Unsupported, …`, and `mixmark.load`, which
opens a result in a notebook.

In the repository `mixmark/harness` and its neighbours are links to the folders beside `mixmark/`; an installed package
holds the folders themselves. `python -m mixmark` is the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if (Path(__file__).parent / "harness").is_file():
    raise ImportError(
        "this checkout has text files in place of the links mixmark/harness, suites, reporters and submissions: "
        "git config core.symlinks true && git checkout -- mixmark"
    )

if TYPE_CHECKING:
    from mixmark.api import *
    from mixmark.notebook import Run as Run
    from mixmark.notebook import load as load

    __version__: str

_ELSEWHERE = {"__version__": ("harness", "VERSION"), "Run": ("notebook", "Run"), "load": ("notebook", "load")}
"""The names that are not in `mixmark.api`."""


def __getattr__(name: str) -> object:
    """Imports a name when it is first asked for: `mixmark --help` needs none of them."""
    from importlib import import_module

    module, own_name = _ELSEWHERE.get(name, ("api", name))
    return getattr(import_module(f"mixmark.{module}"), own_name)


def __dir__() -> list[str]:
    from mixmark import api

    return sorted({*_ELSEWHERE, *(name for name in vars(api) if not name.startswith("_"))})
