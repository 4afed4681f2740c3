"""Everything that a plugin needs: `from mixmark import Device, GraphRunner, Unsupported, …`.

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


def __getattr__(name: str) -> object:
    """Imports the names of `mixmark.api` when the first of them is asked for: `mixmark --help` needs none of them."""
    from importlib import import_module

    return getattr(import_module("mixmark.api"), name)
