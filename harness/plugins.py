"""Finds and loads plugins: the built-in table, entry points, and `--adapter ./acme.py:Acme`.

A plugin is not imported when it is found. When it is loaded, whatever is wrong with it becomes a `PluginError` that
names the plugin, the cause and the missing member. Adapters are loaded in worker processes only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, cast

from harness.errors import PluginError, UsageError

Kind = Literal["adapters", "meters", "watchers", "suites", "reporters"]

BUILT_IN: dict[Kind, dict[str, str]] = {
    "adapters": {
        "torch": "harness.adapters.torch:Torch",
        "onnxruntime": "harness.adapters.onnxruntime:OnnxRuntime",
    },
    "meters": {
        "nvml": "harness.meters.nvml:Nvml",
        "rapl": "harness.meters.rapl:Rapl",
        "amdsmi": "harness.meters.amdsmi:AmdSmi",
        "hwmon": "harness.meters.hwmon:Hwmon",
        "ipmi": "harness.meters.ipmi:Ipmi",
        "redfish": "harness.meters.redfish:Redfish",
        "external": "harness.meters.external:External",
    },
    "watchers": {
        "nvidia": "harness.watch.nvidia:Nvidia",
    },
    "suites": {
        "llm": "suites.llm:Llm",
        "diffusion": "suites.diffusion:Diffusion",
        "dlrm": "suites.dlrm:Dlrm",
        "resnet50": "suites.resnet50:ResNet50",
        "probe": "suites.probe:Probe",
    },
    "reporters": {
        "console": "reporters.console:report",
        "json": "reporters.json:report",
        "csv": "reporters.csv:report",
        "markdown": "reporters.markdown:report",
        "html": "reporters.html:report",
    },
}
MEMBERS: dict[Kind, tuple[str, ...]] = {
    "adapters": ("name", "discover", "open"),
    "meters": ("name", "domains", "read"),
    "watchers": ("name", "disclose", "read", "checks", "close"),
    "suites": (
        *("name", "version", "unit", "unit_names", "scenarios", "weights", "graphs", "feeds", "units"),
        *("infer", "gate", "reference", "quality", "costs"),
    ),
    "reporters": ("__call__",),
}


@dataclass(frozen=True)
class Plugin:
    """A plugin that was found and is not loaded yet."""

    kind: Kind
    name: str
    spec: str
    """`module:Name` or `path/to/file.py:Name`; empty for an adapter that another interpreter has to look up."""
    origin: str
    """`built in`, the distribution and its version, `command line`, or the interpreter that looks it up."""

    def load(self) -> Any:
        """Returns the class or function. Raises PluginError, whatever the plugin's own code raises."""
        where, _, attribute = self.spec.rpartition(":")
        try:
            module = _module_of_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
            loaded = getattr(module, attribute)
        except (Exception, SystemExit) as error:
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise PluginError(f"{self.kind[:-1]} {self.name} ({self.spec}) does not load: {cause}") from error
        missing = [member for member in MEMBERS[self.kind] if not hasattr(loaded, member)]
        if missing:
            raise PluginError(
                f"{self.kind[:-1]} {self.name} ({self.spec}) lacks {', '.join(missing)}",
                hint="docs/vendors.md shows the shape that each kind of plugin has",
            )
        return loaded


def find(kind: Kind, extra: Iterable[str] = ()) -> dict[str, Plugin]:
    """Returns all plugins of a kind by name: built-in ones, then entry points, then `extra`. A later one replaces an
    earlier one of the same name.

    extra: specs from the command line; such a plugin's name is that of its class in lower case.
    """
    found = {name: Plugin(kind, name, spec, "built in") for name, spec in BUILT_IN[kind].items()}
    for entry in entry_points(group=f"mixmark.{kind}"):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an entry point"
        found[entry.name] = Plugin(kind, entry.name, entry.value, package)
    for spec in extra:
        name = name_of(spec)
        found[name] = Plugin(kind, name, spec, "command line")
    return found


def name_of(spec: str) -> str:
    """Returns the name of a spec: `acme` for `./acme.py:Acme`. Raises UsageError if the spec has no class or its file
    does not exist."""
    where, _, attribute = spec.rpartition(":")
    if not where or not attribute.isidentifier():
        raise UsageError(f"{spec!r} is not a plugin", hint="give it as ./file.py:Class or package.module:Class")
    if where.endswith(".py") and not Path(where).is_file():
        raise UsageError(f"there is no file {where}", hint="give the adapter as ./file.py:Class")
    return attribute.lower()


def is_spec(text: str) -> bool:
    """Tells a plugin's spec from a plugin's name, for a word of the command line."""
    return ":" in text


def suite(name: str, spec: str, tier: str, options: dict[str, str]) -> Any:
    """Loads a suite and builds it for a tier. Raises PluginError, or Unsupported if the suite lacks the tier."""
    return Plugin("suites", name, spec, "").load()(tier, options)


def _module_of_file(path: Path) -> Any:
    name = f"mixmark_plugin_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = cast(Any, module)
    found.loader.exec_module(module)
    return module
