"""What the capabilities bring to the benchmarks of Mixmark itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def parts(name: str) -> dict[str, Any]:
    """What the capabilities that are there call by a name, such as `ROWS`, by capability."""
    modules = {each.name: importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)}
    return {capability: getattr(module, name) for capability, module in modules.items() if hasattr(module, name)}
