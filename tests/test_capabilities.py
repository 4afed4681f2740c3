"""The core imports no capability and names none. That capabilities import only those that they need, test_imports
shows."""

from __future__ import annotations

import ast
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import ROOT, files, imports

FOLDER = ROOT / "harness/capabilities"
PACKAGE = "mixmark.harness.capabilities"
CAPABILITIES = sorted(path.parent for path in FOLDER.glob("*/__init__.py"))
MANIFEST = (ROOT / "harness/plugins/built_in.toml").read_text("utf-8")
HOMONYMS = {
    "hosts": "facts of a result over several hosts, which the core judges",
    "paths": "of files",
    "plan": "of a mix, and the room that makes it",
    "Planned": "an event of a run: phases were planned",
    "audit": "of a record's outputs",
    "compare": "outputs with a reference",
    "meters": "energy sources, and the room of those that are built in",
    "new": "what was not there before",
    "external": "a meter outside the machine",
    "host": "the machine, or one of several",
    "export": "of a graph by torch",
    "Decode": "of diffusion's images",
}
"""What the core names in another sense."""
NAMELESS = {"with_section", "needs", "pictures"}
"""Tables of the manifest whose keys are no plugins; those of `pictures` are places of the core's page."""


@cache
def named(path: Path) -> set[str]:
    """All identifiers of a file, and all its strings."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                found.add(name)
    return found


def registered(capability: Path, manifest: str = MANIFEST) -> set[str]:
    """The names of a capability: its own, those of its entries in the manifest and of their classes, and the codes of
    its rules. A name that an entry of the core has, too, is the core's."""
    found, of_core = {capability.name}, set[str]()
    tables = (
        each for kind, each in tomllib.loads(manifest).items() if kind not in ("with_section", "needs", "pictures")
    )
    for table in tables:
        for name, spec in table.items():
            module, _, attribute = spec.partition(":")
            if f"{module}.".startswith(f"{PACKAGE}.{capability.name}."):
                found |= {name, attribute} if attribute[0].isupper() and not attribute.isupper() else {name}
            elif not module.startswith((PACKAGE, "mixmark.submissions")):
                of_core.add(name)
    for path in capability.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.FunctionDef(name=code, decorator_list=[ast.Call(func=ast.Name("rule" | "record_rule"))]):
                    found.add(code)
    return found - of_core


def violations(path: Path, capability: Path, manifest: str = MANIFEST) -> set[str]:
    """What a file of the core imports or names of a capability."""
    package = f"{PACKAGE}.{capability.name}"
    imported = {name for name in imports(path) if f"{name}.".startswith(f"{package}.")}
    return imported | (named(path) & registered(capability, manifest) - HOMONYMS.keys())


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda path: path.name)
def test_no_file_of_the_core_imports_or_names_a_capability(capability: Path) -> None:
    core = [
        path for folder in ("harness", "suites", "reporters") for path in files(folder) if FOLDER not in path.parents
    ]
    assert {path: found for path in core if (found := violations(path, capability))} == {}


def test_an_import_and_each_kind_of_name_are_found(tmp_path: Path) -> None:
    capability, core, other = (tmp_path / name for name in ("acme", "core.py", "other.py"))
    capability.mkdir()
    (capability / "__init__.py").write_text("@rule(1, note('heavy'))\ndef too_heavy(): ...\n")
    manifest = f"[meters]\nscales = '{PACKAGE}.acme:Scales'\n[formats]\nzinc = '{PACKAGE}.acme.zinc:prepare'\n"
    core.write_text(f"from {PACKAGE}.acme import thing\n{{'acme': Scales, 'scales': too_heavy, zinc: prepare}}\n")
    imported = {f"{PACKAGE}.acme", f"{PACKAGE}.acme.thing"}
    assert violations(core, capability, manifest) == {*imported, "acme", "Scales", "scales", "too_heavy", "zinc"}
    other.write_text(f"from {PACKAGE}.acmes import thing\n{{'acmes': 'The scales of acme.'}}\n")
    assert violations(other, capability, manifest) == set()


def test_a_capability_is_deleted_with_those_that_need_it() -> None:
    gone_with = runpy.run_path(str(ROOT / "scripts/without"))["gone_with"]
    needs = {"b": ["a"], "c": ["b", "x"], "d": ["x"]}
    assert [gone_with(name, needs) for name in "acdx"] == [{*"abc"}, {"c"}, {"d"}, {*"cdx"}]
