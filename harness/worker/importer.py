"""Imports modules from a file that nothing can change.

A worker runs the text of this module before it imports Mixmark, so it needs the standard library alone.
"""

from __future__ import annotations

import marshal
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any


class Importer:
    """A finder and loader of the modules in a file.

    descriptor: of a file that holds two marshalled dictionaries: `name: (path, whether it is a package, its marshalled
    code)` and `path: content` for the other files.
    """

    def __init__(self, descriptor: int) -> None:
        self.modules: Mapping[str, tuple[str, bool, bytes]]
        self.files: Mapping[str, bytes]
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:  # several processes share one position
            self.modules, self.files = marshal.loads(content)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        file, package, _ = self.modules[name]
        folders = [os.path.dirname(file)] if package else None
        # It is a loader by its methods; typeshed asks for a subclass.
        return spec_from_file_location(name, file, loader=self, submodule_search_locations=folders)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """The default module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(marshal.loads(self.modules[module.__name__][2]), vars(module))

    def get_data(self, path: str) -> bytes:
        """The content of a file beside the modules. Raises OSError."""
        if path in self.files:
            return self.files[path]
        with open(path, "rb") as file:
            return file.read()


def install(descriptor: int) -> Any:
    """Imports the modules of a file from now on, before those of the same names in folders."""
    importer: Any = Importer(descriptor)  # typeshed's finders are classes of their own
    sys.meta_path.insert(0, importer)
    return importer
