"""Reads mixmark.toml: the options of adapters, suites and meters, and the interpreters that adapters and meters run in.

[adapter.torch]
threads = 8

[adapter.acme]
python = "/opt/acme/venv/bin/python"
mode = "fast"

[adapter.acme-old]
plugin = "acme"
python = "/opt/acme/venv-of-last-year/bin/python"

[suite.dlrm]
rows = "full"

[meter.acme]
folder = "/sys/class/acme"
supply_watts = 850

[meter.acme.right]
folder = "/sys/class/acme1"
where = {outlet = "2"}

[meter.acme-power]
python = "/opt/acme/venv/bin/python"
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.toml import flat, is_reckonable, read_toml

DEFAULT = Path("mixmark.toml")
TABLE = "where"  # the only option of a meter that is a table: which of several devices it reads
SUPPLY = "supply_watts"


@dataclass(frozen=True)
class AdapterConfig:
    """The section of one adapter."""

    python: str = sys.executable
    """The interpreter that the adapter's workers run in."""
    options: Mapping[str, str] = field(default_factory=dict)
    plugin: str = ""
    """The adapter that the section configures, by its name or as `file.py:Class`. If empty, it is the section's name.
    So one adapter can have several sections, with other options or in other interpreters."""

    @property
    def own_interpreter(self) -> bool:
        """Whether the adapter runs in another interpreter than this process."""
        return self.python != sys.executable


@dataclass(frozen=True)
class Config:
    """The whole file: its sections by the name of the plugin that they configure. Several sections of one meter have
    names such as `acme.right`."""

    adapters: Mapping[str, AdapterConfig] = field(default_factory=dict)
    suites: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    meters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    meter_pythons: Mapping[str, str] = field(default_factory=dict)
    """The interpreter of each meter that is read in another one than this process."""
    supplies_watts: Mapping[str, float] = field(default_factory=dict)
    """What the supply behind each meter can take, as far as it is declared."""

    def adapter(self, name: str) -> AdapterConfig:
        """The section of an adapter, or the defaults if it has none."""
        return self.adapters.get(name, AdapterConfig())


def load(path: Path | None) -> Config:
    """Reads the file at `path`, or mixmark.toml of the current folder if there is one. Raises UsageError."""
    if path is None:
        if not DEFAULT.is_file():
            return Config()
        path = DEFAULT
    content = read_toml(path, "the configuration", SECTIONS)
    if unknown := set(content) - {"adapter", "suite", "meter"}:
        raise UsageError(f"{path} has {', '.join(sorted(unknown))}, which Mixmark does not know", hint=SECTIONS)
    adapters = {}
    for name, options in _sections(path, content, "adapter").items():
        python, plugin = options.pop("python", sys.executable), options.pop("plugin", "")
        adapters[name] = AdapterConfig(python, options, plugin)
    suites = _sections(path, content, "suite")
    if given := [name for name, options in suites.items() if "weights" in options]:
        raise UsageError(f"{path}: [suite.{given[0]}] weights", hint=f"give --weights {given[0]}=PATH")
    meters = _sections(path, _several(content), "meter")
    pythons = {name: options.pop("python") for name, options in meters.items() if "python" in options}
    others = {name: python for name, python in pythons.items() if python != sys.executable}
    supplies_watts = {name: _supply(path, name, options) for name, options in meters.items() if SUPPLY in options}
    return Config(adapters, suites, meters, others, supplies_watts)


SECTIONS = (
    "it takes sections [adapter.NAME] (python = …, plugin = … and options), [suite.NAME] (options) and [meter.NAME] "
    "(python = …, supply_watts = … and options)"
)


def _supply(path: Path, name: str, options: dict[str, str]) -> float:
    """Takes the watts of a meter's supply out of its options, since they are for every meter alike."""
    given = options.pop(SUPPLY)
    try:
        watts = float(given)
    except ValueError:
        watts = 0.0
    if not (watts > 0 and is_reckonable(watts)):
        raise UsageError(f"{path}: [meter.{name}] {SUPPLY} = {given} is no power", "give the watts of its nameplate")
    return watts


def _several(content: Mapping[str, object]) -> Mapping[str, object]:
    """The file with each section [meter.acme.right] beside [meter.acme], and its last name as an option. The
    option `where = {index = "0"}` becomes the option `where.index`."""
    sections = content.get("meter")
    if not isinstance(sections, dict) or not all(isinstance(each, dict) for each in sections.values()):
        return content
    meters: dict[str, object] = {}
    for name, section in sections.items():
        inner = {key: value for key, value in section.items() if isinstance(value, dict) and key != TABLE}
        if len(inner) < len(section) or not inner:
            meters[name] = flat({key: value for key, value in section.items() if key not in inner})
        meters |= {f"{name}.{key}": {"name": key, **flat(value)} for key, value in inner.items()}
    return {**content, "meter": meters}


def _sections(path: Path, content: Mapping[str, object], kind: str) -> dict[str, dict[str, str]]:
    sections = content.get(kind, {})
    if not isinstance(sections, dict) or not all(isinstance(each, dict) for each in sections.values()):
        raise UsageError(f"{path}: {kind} is not a table of sections", hint=SECTIONS)
    found: dict[str, dict[str, str]] = {name: {} for name in sections}
    for name, section in sections.items():
        for key, value in flat(section).items():
            if not isinstance(value, str | int | float | bool):
                raise UsageError(f"{path}: [{kind}.{name}] {key} must be a string, a number or a boolean")
            found[name][key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
