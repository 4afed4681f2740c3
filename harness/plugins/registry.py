"""Finds and loads plugins: those of the manifest `built_in.toml`, entry points, and `--adapter ./acme.py:Acme`.

Finding a plugin does not import it. Loading it turns each of its errors into a `PluginError` that names the plugin, the
cause and the missing member. The process that measures, draws and judges loads built-in plugins only, and no adapter:
all others are loaded in a process of their own (`worker.plugin_process`).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from mixmark.harness.contracts import schema
from mixmark.harness.contracts.errors import PluginError, UsageError, choose_by_name
from mixmark.harness.contracts.protocols import Suite
from mixmark.harness.contracts.schema import Absent, WeightClass
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.plugins.calls import error_with_line
from mixmark.harness.plugins.manifest import BUILT_IN as BUILT_IN
from mixmark.harness.plugins.manifest import KINDS, MODELS
from mixmark.harness.plugins.manifest import Kind as Kind

ELSEWHERE = "another interpreter"
"""The end of the origin of a plugin whose interpreter is not the command's: what runs there is that interpreter's
word."""
MEMBERS: dict[Kind, tuple[str, ...]] = {
    "adapters": ("name", "discover", "open"),
    "meters": ("name", "domains", "read"),
    "watchers": ("name", "disclose", "read", "checks", "close"),
    "suites": (
        *("name", "version", "unit", "unit_names", "scenarios", "weights", "graphs", "feeds", "units"),
        *("infer", "gate", "reference", "quality", "costs"),
    ),
    **dict.fromkeys(
        ("formats", "reporters", "contradictions", "figures", "pictures", "rules", "checks", "services"), ("__call__",)
    ),
    "mixes": ("items",),
    "experiments": ("of_run", "of_phase", "of_found"),
    "stages": ("name", "asked", "next"),
    "sections": ("lines", "table", "section"),
    "executors": ("find_devices", "open"),
    "commands": ("name", "callback"),
}


@dataclass(frozen=True)
class PluginKind:
    """A kind of plugin whose contract a capability has."""

    members: tuple[str, ...]
    """What each plugin of the kind has."""
    served: tuple[type, Callable[..., object]] | None = None
    """The calls that a worker with such a plugin takes, and the class that serves them. Its arguments: the setup of the
    worker, and the channel to its parent. None if a plugin of the kind is called by the command that shows it."""


def kind_of(kind: Kind) -> PluginKind:
    """The kind as a capability describes it. Raises KeyError if no capability has it."""
    found: PluginKind = resolve_name(KINDS[kind])
    return found


def members(kind: Kind) -> tuple[str, ...]:
    """What each plugin of a kind has."""
    return MEMBERS.get(kind) or kind_of(kind).members


@dataclass(frozen=True)
class Plugin:
    """A plugin that was found, and need not be loaded yet."""

    kind: Kind
    name: str
    spec: str
    """`module:Name` or `path/to/file.py:Name`; empty if its worker's interpreter looks it up."""
    origin: str
    """`built in`, its distribution and version, `command line`, `configuration` or `another interpreter`."""
    own_name: str = ""
    """The adapter's own name, if the configuration gives it another one; else empty."""

    @property
    def built_in(self) -> bool:
        """Whether it is Mixmark's own code."""
        return self.spec in (*BUILT_IN[self.kind].values(), *(MODELS.values() if self.kind == "suites" else ()))

    def load(self) -> Any:
        """Returns the class or function. Raises PluginError for every error of the plugin's own code."""
        file, _, attribute = self.spec.rpartition(":")
        try:
            loaded = getattr(_import_file(Path(file)), attribute) if file.endswith(".py") else resolve_name(self.spec)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{singular(self.kind)} {self.name} ({self.spec}) does not load: {error_with_line(error)}"
            ) from error
        missing = [member for member in members(self.kind) if not hasattr(loaded, member)]
        if missing:
            raise PluginError(
                f"{singular(self.kind)} {self.name} ({self.spec}) lacks {', '.join(missing)}",
                hint="docs/vendors/contract.md shows the shape that each kind of plugin has",
            )
        return loaded


def singular(kind: Kind) -> str:
    return f"{kind[:-3]}y" if kind.endswith("ies") else kind[:-1]


def find(kind: Kind, specs: Iterable[str] = ()) -> dict[str, Plugin]:
    """Returns all plugins of a kind by name: built-in ones, entry points, and plugins that the command line names.

    The names of built-in plugins are reserved. An entry point with such a name is left out; `refused_entry_points`
    reports it. specs: from the command line. Such a plugin is named as its class in lower case, and it
    replaces an entry point of that name. Raises UsageError if a built-in plugin has the name.
    """
    found = {name: Plugin(kind, name, spec, schema.BUILT_IN) for name, spec in BUILT_IN[kind].items()}
    for entry in entry_points(group=f"mixmark.{kind}"):
        if not name_problem(kind, entry.name):
            found[entry.name] = Plugin(kind, entry.name, entry.value, _distribution(entry))
    for spec in specs:
        name = name_of_spec(spec)
        if problem := name_problem(kind, name):
            raise UsageError(f"{spec}: {problem}", hint="give the class another name, and its `name` the same")
        found[name] = Plugin(kind, name, spec, "command line")
    return found


def refused_entry_points(kind: Kind) -> tuple[Absent, ...]:
    """The entry points that `find` leaves out because of their names, with the reason."""
    return tuple(
        Absent(
            kind=cast(Any, singular(kind)),
            name=f"{plain(entry.name, 40)} of {plain(_distribution(entry), 80)}",
            reason=problem,
        )
        for entry in entry_points(group=f"mixmark.{kind}")
        if (problem := name_problem(kind, entry.name))
    )


@dataclass(frozen=True)
class Identity:
    """The origin and the hash of a plugin's code, as this process finds them before any of that code runs."""

    origin: str
    """As `Plugin.origin`. It ends with `another interpreter` unless the interpreter is the command's own."""
    spec: str
    """Empty: not found."""
    source: str
    """The file or package whose code was hashed; empty: not found."""
    sha256: str
    """The SHA-256 of that code; empty: not found."""


def identity(plugin: Plugin, python: str = sys.executable) -> Identity:
    """The code that an interpreter would import for a plugin. The interpreter is not asked: another one than this
    process's is searched only if it is a virtual environment, and is never trusted to run the code that is found."""
    if python == sys.executable:
        return Identity(plugin.origin, plugin.spec, *source_hash(plugin))
    folders = [str(each) for each in Path(python).parent.parent.glob("lib/python*/site-packages")]
    name = plugin.own_name or plugin.name
    entry = next((each for each in _entries(plugin.kind, folders) if each.name == name), None)
    found = replace(plugin, spec=plugin.spec or BUILT_IN[plugin.kind].get(name) or (entry.value if entry else ""))
    origin = ELSEWHERE
    if found.built_in:
        origin = f"Mixmark of {ELSEWHERE}"
    elif entry and not plugin.spec:
        origin = f"{_distribution(entry)} of {ELSEWHERE}"
    return Identity(origin, found.spec, *source_hash(found, folders))


def source_hash(plugin: Plugin, folders: Sequence[str] | None = None) -> tuple[str, str]:
    """The name and the SHA-256 of the file that identifies a plugin's code; two empty texts if none is found.

    It is the RECORD of the plugin's distribution, which lists the hash of each of its files, or else the file of the
    plugin's module. Nothing is hashed of Mixmark's own plugins, which consist of many files. No code of the plugin is
    run. folders: where packages are searched; None: as this process imports them.
    """
    if plugin.built_in:
        return "", ""
    for entry in _entries(plugin.kind, folders):
        if entry.value == plugin.spec and entry.dist and (record := entry.dist.read_text("RECORD")):
            return f"RECORD of {_distribution(entry)}", hashlib.sha256(record.encode()).hexdigest()
    if file := _file_of(plugin.spec.rpartition(":")[0], folders):
        with contextlib.suppress(OSError):
            name = f"{file.parent.name}/{file.name}" if file.name == "__init__.py" else file.name
            return name, hashlib.sha256(file.read_bytes()).hexdigest()
    return "", ""


def _entries(kind: Kind, folders: Sequence[str] | None) -> Iterator[EntryPoint]:
    """The entry points of a kind. folders: as in `source_hash`."""
    if folders is None:
        yield from entry_points(group=f"mixmark.{kind}")
    else:
        found = distributions(path=list(folders))
        yield from (entry for each in found for entry in each.entry_points if entry.group == f"mixmark.{kind}")


def name_problem(kind: Kind, name: str) -> Reason | None:
    """Why a plugin that is not built in may not have this name."""
    if name.casefold() in BUILT_IN[kind]:
        return f"{name} is the name of a built-in {singular(kind)}, and reserved for it"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        return f"{name!a} is no name: give one of ASCII letters, digits, dots, dashes and underscores"
    return None


def _distribution(entry: EntryPoint) -> str:
    named = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return "an entry point" if named in ("", schema.BUILT_IN) else named


def _file_of(module_name: str, folders: Sequence[str] | None) -> Path | None:
    """The file of a module, found without importing anything but the search path of its top-level package."""
    if module_name.endswith(".py"):
        return Path(module_name)
    top, *rest = module_name.split(".")
    if not top:
        return None
    package = importlib.util.find_spec(top) if folders is None else PathFinder.find_spec(top, folders)
    if package is None:
        return None
    if not rest:
        return Path(package.origin) if package.origin else None
    module = Path(next(iter(package.submodule_search_locations or [""]))).joinpath(*rest)
    return next((file for file in (module.with_suffix(".py"), module / "__init__.py") if file.is_file()), None)


def name_of_spec(spec: str) -> str:
    """The name of a spec: `acme` for `./acme.py:Acme`. Raises UsageError if it has no class or its file is missing."""
    module_name, _, attribute = spec.rpartition(":")
    if not module_name or not attribute.isidentifier():
        raise UsageError(f"{spec!r} is not a plugin", hint="give it as ./file.py:Class or package.module:Class")
    if module_name.endswith(".py") and not Path(module_name).is_file():
        raise UsageError(f"there is no file {module_name}", hint="give the adapter as ./file.py:Class")
    return attribute.lower()


def is_spec(text: str) -> bool:
    """Whether a word of the command line is a plugin's spec, and not its name."""
    return ":" in text


def build_suite(name: str, spec: str, tier: str, options: dict[str, str], weight_class: WeightClass = 16) -> Any:
    """Loads a suite and builds it for a tier. Raises PluginError, or Unsupported if the suite lacks the tier. `plugin`,
    the name of the suite that a section configures, is no option of the suite."""
    options = {key: value for key, value in options.items() if key != "plugin"}
    return Plugin("suites", name, spec, "").load()(tier, options, weight_class)


def load_suite(name: str, tier: str, options: Mapping[str, str] | None = None, weight_class: WeightClass = 16) -> Suite:
    """Builds a suite by its name, to try an adapter by hand.

    Raises UsageError for an unknown name, and Unsupported if the suite lacks the tier.
    """
    found = find("suites")
    (chosen,) = choose_by_name("suite", [name], found)
    built: Suite = found[chosen].load()(tier, dict(options or {}), weight_class)
    return built


def _import_file(path: Path) -> Any:
    name = f"mixmark_plugin_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = cast(Any, module)
    module_spec.loader.exec_module(module)
    return module
