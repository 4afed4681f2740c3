"""The core imports no capability and names none. That capabilities import only those that they need, test_imports
shows."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import ROOT, imports

FOLDER = ROOT / "harness/capabilities"
PACKAGE = "mixmark.harness.capabilities"
CAPABILITIES = sorted(path.parent for path in FOLDER.glob("*/__init__.py"))
MANIFEST = (ROOT / "harness/plugins/built_in.toml").read_text("utf-8")
ANYWHERE = "*"
HOMONYMS = {
    "hosts": (
        "whose devices, systems and domains a result holds; one is this machine",
        "result assessment evidence reading coverage total consistency setup executor local_executor placement hosts "
        "report scores summary",
    ),
    "paths": ("of files", "counters data"),
    "plan": ("of a mix, and the room that makes it", ANYWHERE),
    "Planned": ("an event of a run: phases were planned", "progress benchmark"),
    "audit": ("of a record's outputs", ANYWHERE),
    "compare": ("outputs with a reference", "audit"),
    "meters": ("energy sources, and the room of those that are built in", ANYWHERE),
    "new": ("what was not there before", "outputs"),
    "external": ("of a meter, and of tensors in a file of their own", "onnx_weights convert result coverage total"),
    "host": ("the machine that a record, a device or a domain is of", ANYWHERE),
    "export": ("of a graph by torch", "onnx_graphs"),
    "Decode": ("of diffusion's images", "network"),
}
"""What the core names in another sense, and the modules that do, if it is no ordinary word."""
FIELDS = {
    "Clock.offset_ns": "a fact of a result: hosts translates times by it",
    "Clock.pings": "a fact of a result: hosts shows it",
    "Device.local_id": "an id is taken apart in one place",
    "Device.local_pool": "the same; Device.in_host_memory has it, too",
    "Estimate.is_vague": "an estimate's own arithmetic",
}
"""The members of contracts that the core does not use, with the reason why they stand there."""


@cache
def named(path: Path) -> set[str]:
    """All identifiers of a file, and all its strings; of a TOML file all words outside of comments."""
    if path.suffix == ".toml":
        return set(re.findall(r"[\w-]+", re.sub(r"#.*", "", path.read_text("utf-8"))))
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                found.add(name)
    return found


@cache
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
    imports_of = imports(path) if path.suffix == ".py" else ()
    imported = {name for name in imports_of if f"{name}.".startswith(f"{package}.")}
    meant = {name for name, (_, modules) in HOMONYMS.items() if module(path) in modules.split() or modules == ANYWHERE}
    return imported | (named(path) & registered(capability, manifest) - meant)


def module(path: Path) -> str:
    return path.parent.name if path.stem == "__init__" else path.stem


@cache
def core() -> tuple[Path, ...]:
    """The files of the core, but the manifest."""
    found = [path for folder in ("harness", "suites", "reporters") for path in (ROOT / folder).rglob("*")]
    return tuple(
        path
        for path in sorted(found)
        if path.suffix in (".py", ".toml") and FOLDER not in path.parents and path.name != "built_in.toml"
    )


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda path: path.name)
def test_no_file_of_the_core_imports_or_names_a_capability(capability: Path) -> None:
    assert {path: found for path in core() if (found := violations(path, capability))} == {}


def test_each_homonym_is_used_where_it_is_listed() -> None:
    listed = {(name, each) for name, (_, modules) in HOMONYMS.items() for each in modules.split()}
    used = {(name, each) for path in core() for name in named(path) for each in (module(path), ANYWHERE)}
    assert listed <= used


def test_the_core_uses_what_its_contracts_hold() -> None:
    """A member that only a capability reads is the capability's, or FIELDS says why not."""
    contracts = [path for path in core() if "contracts" in path.parts]
    used = set[str]().union(*(named(path) for path in core() if path not in contracts))
    members = {
        f"{each.name}.{name}": name
        for path in contracts
        for each in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(each, ast.ClassDef)
        for member in each.body
        if (name := ast.unparse(member.target) if isinstance(member, ast.AnnAssign) else getattr(member, "name", "_"))
        and not name.startswith("_")
    }
    assert {member for member, name in members.items() if name not in used} == FIELDS.keys()


def test_an_import_and_each_kind_of_name_are_found(tmp_path: Path) -> None:
    capability, core, other = (tmp_path / name for name in ("acme", "core.py", "other.py"))
    capability.mkdir()
    (capability / "__init__.py").write_text("@rule(1, note('heavy'))\ndef too_heavy(): ...\n")
    manifest = f"[meters]\nscales = '{PACKAGE}.acme:Scales'\n[formats]\nzinc = '{PACKAGE}.acme.zinc:prepare'\n"
    core.write_text(f"from {PACKAGE}.acme import thing\n{{'acme': Scales, 'scales': too_heavy, zinc: prepare}}\n")
    imported = {f"{PACKAGE}.acme", f"{PACKAGE}.acme.thing"}
    assert violations(core, capability, manifest) == {*imported, "acme", "Scales", "scales", "too_heavy", "zinc"}
    (mixes := tmp_path / "mixes.toml").write_text("[units]\nscales = 1 # of zinc\n")
    assert violations(mixes, capability, manifest) == {"scales"}
    other.write_text(f"from {PACKAGE}.acmes import thing\n{{'acmes': 'The scales of acme.'}}\n")
    assert violations(other, capability, manifest) == set()


def test_a_capability_is_deleted_with_those_that_need_it() -> None:
    gone_with = runpy.run_path(str(ROOT / "scripts/without"))["gone_with"]
    needs = {"b": ["a"], "c": ["b", "x"], "d": ["x"]}
    assert [gone_with(name, needs) for name in "acdx"] == [{*"abc"}, {"c"}, {"d"}, {*"cdx"}]
