"""The architecture as a test: rooms import one way, and what is heavy is imported where it is used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from mixmark.harness.plugins.manifest import NEEDS

ROOT = Path(__file__).parent.parent
ROOMS = (
    "contracts",
    "resources",
    "plugins",
    "plan",
    "judge",
    "adapters",
    "meters",
    "record",
    "worker",
    "machine",
    "measure",
    "cli",
)
"""The folders of `harness/`. Each may import itself and those before it."""
LINKED = sorted(path.name for path in (ROOT / "mixmark").iterdir() if path.is_symlink())
"""The folders that the package `mixmark` has links to."""
PURE = ("contracts", "plan", "judge")
"""They read no file, clock or device; of files only those that are shipped beside them."""
EFFECTS = {"os", "time", "subprocess", "threading", "socket", "tempfile", "shutil", "psutil", "platform", "signal"}
FOR_PLUGINS = ("plugins.install", "plugins.experiments", "plugins.model_cache", "resources.")
"""What adapters, meters, suites and reporters may import of the harness beside the pure rooms."""
PLUGINS = ("harness/adapters", "harness/meters", "suites", "reporters")
VENDORS = {"pynvml", "amdsmi"}
HEAVY = {
    "torch",
    "onnxruntime",
    "openvino",
    "llama_cpp",
    "jax",
    "onnx",
    "onnxscript",
    "onnx_ir",
    "transformers",
    "diffusers",
    "httpx2",
}


@cache
def imports(path: Path, types: bool = False) -> set[str]:
    """The modules that a file imports. types: also those under `if TYPE_CHECKING`."""
    found: set[str] = set()
    stack: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
            continue
        stack.extend(ast.iter_child_nodes(node))
    return found


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def of_the_harness(path: Path) -> set[str]:
    """What a file imports of the harness, also for its types alone, as `judge.score.mx`."""
    prefix = "mixmark.harness."
    return {name.removeprefix(prefix) for name in imports(path, True) if name.startswith(prefix)} - {"VERSION", *ROOMS}


def test_the_harness_is_its_rooms() -> None:
    entries = {path.name for path in (ROOT / "harness").iterdir()} - {"__pycache__"}
    assert entries == {*ROOMS, "capabilities", "__init__.py"}


def test_the_sentence_on_top_of_the_architecture_names_the_rooms_in_their_order() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert tuple(re.findall(r"\*\*(\w+)\*\*", page.split("\n\n")[1])) == (*ROOMS, "capabilities")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_itself_and_those_before_it(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in files(f"harness/{room}"):
        assert {name for name in of_the_harness(path) if name.split(".")[0] not in allowed} == set(), path


@pytest.mark.parametrize("room", PURE)
def test_a_pure_room_touches_no_file_clock_or_device(room: str) -> None:
    for path in files(f"harness/{room}"):
        assert not {name.split(".")[0] for name in imports(path)} & EFFECTS, path


@pytest.mark.parametrize("folder", PLUGINS)
def test_plugins_see_only_the_pure_rooms_the_resources_and_two_modules(folder: str) -> None:
    own = folder.removeprefix("harness/")
    for path in files(folder):
        seen = {name for name in of_the_harness(path) if name.split(".")[0] not in {*PURE, own}}
        assert all(name.startswith(FOR_PLUGINS) for name in seen), (path, seen)


def test_nothing_names_an_adapter_or_meter_but_the_table_of_plugins() -> None:
    for room in ROOMS:
        for path in files(f"harness/{room}"):
            named = {name.split(".")[0] for name in of_the_harness(path)} & {"adapters", "meters"}
            assert named <= {room}, path


def test_the_engine_imports_no_vendor_suite_or_reporter() -> None:
    for room in set(ROOMS) - {"adapters", "meters"}:
        for path in files(f"harness/{room}"):
            if path.name == "nvidia.py":  # the watcher of NVIDIA's cards is a plugin
                continue
            named = {name.removeprefix("mixmark.").split(".")[0] for name in imports(path)}
            barred = {"suites"} if room == "cli" else {"suites", "reporters"}  # the command line shows documents
            assert not named & (HEAVY | VENDORS | barred), path


def capability(path: Path) -> str:
    """The capability that a file is of; empty: it is of the core."""
    folder, *below = path.relative_to(ROOT).parts
    return folder if folder == "submissions" else below[1] if below[0] == "capabilities" and len(below) > 2 else ""


def test_only_a_capability_and_those_that_need_it_know_it() -> None:
    """So that each can be deleted: the core and the others know it by the manifest alone."""
    for path in [each for folder in LINKED for each in files(folder)]:
        may = {"", capability(path), *NEEDS.get(capability(path), ())}
        for name in imports(path, types=True):
            found = re.match(r"mixmark\.(?:harness\.capabilities\.(\w+)|(submissions)\b)", name)
            assert not found or {each or "" for each in found.groups()} <= may, (path, name)


def test_submissions_know_their_board_by_the_manifest_alone() -> None:
    for path in files("submissions"):
        named = {name for name in imports(path) if name.startswith("mixmark.submissions.board")}
        assert not named or path.parent.name == "board", path


def test_everything_is_imported_below_mixmark() -> None:
    for folder in ("harness", "suites", "reporters", "submissions", "tests", "bench"):
        for path in files(folder):
            named = {name.split(".")[0] for name in imports(path)}
            assert not named & {"harness", "suites", "reporters", "submissions"}, path


def test_a_plugin_loads_without_its_framework() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(HEAVY | VENDORS)!r}))"
    names = (
        "from mixmark.harness.plugins.registry import *; [x.load() for kind in BUILT_IN for x in find(kind).values()]"
    )
    done = subprocess.run([sys.executable, "-c", f"{blocked}; {names}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_imports_nothing_heavy() -> None:
    heavy = ("httpx2", "numpy", "pydantic", "rich", "torch")
    script = f"import sys; import mixmark.harness.cli; print([m for m in sys.modules if m in {heavy!r}])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plugin_imports_the_names_of_the_api_from_the_package() -> None:
    import mixmark
    from mixmark import api

    assert mixmark.Device is api.Device and "Path" not in vars(api)
    with pytest.raises(AttributeError, match="has no attribute 'Devise'"):
        _ = mixmark.Devise


@pytest.mark.parametrize("room", LINKED)
def test_a_folder_has_one_import_name(room: str) -> None:
    """Under a second name every class would exist twice, and no instance of one would be an instance of the other."""
    done = subprocess.run([sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"ImportError: import mixmark.{room}" in done.stderr


def test_a_checkout_without_links_says_how_to_get_them(tmp_path: Path) -> None:
    package = tmp_path / "mixmark"
    package.mkdir()
    (package / "__init__.py").write_bytes((ROOT / "mixmark" / "__init__.py").read_bytes())
    (package / "harness").write_text("../harness")  # git writes this where the system has no links
    done = subprocess.run([sys.executable, "-S", "-c", "import mixmark"], cwd=tmp_path, capture_output=True, text=True)
    assert "git config core.symlinks true && git checkout -- mixmark" in done.stderr
