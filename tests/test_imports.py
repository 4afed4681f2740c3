"""The architecture as a test: imports point one way, and what is heavy is imported where it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from harness import plugins

ROOT = Path(__file__).parent.parent
# Each layer may import itself and what stands before it.
LAYERS = (
    {"harness.errors", "harness.schema", "harness.silicon", "harness.text"},
    {"harness.contracts"},
    {  # pure: no file, process, device or clock; of mixes those that are shipped
        "harness.arrivals",
        "harness.bfloat16",
        "harness.clocks",
        "harness.credits",
        "harness.judge.coherent",
        "harness.judge.distributions",
        "harness.compare",
        "harness.dispatch",
        "harness.judge.honest",
        "harness.judge",
        "harness.judge.diagnosis",
        "harness.judge.disturbed",
        "harness.judge.energy",
        "harness.judge.energy.cover",
        "harness.judge.energy.reading",
        "harness.judge.energy.rules",
        "harness.judge.energy.total",
        "harness.judge.evidence",
        "harness.judge.figures",
        "harness.judge.hosts",
        "harness.judge.intervals",
        "harness.judge.judgement",
        "harness.judge.mix",
        "harness.judge.records",
        "harness.judge.roofline",
        "harness.judge.scaling",
        "harness.judge.stamps",
        "harness.mixes",
        "harness.pace",
        "harness.pick",
        "harness.place",
        "harness.seeds",
        "harness.side_by_side",
        "harness.plan",
        "harness.rates",
        "harness.judge.score",
        "harness.judge.steady",
        "harness.judge.trust",
        "harness.references",
    },
    {"harness.locks", "harness.cache"},  # on disk, and for plugins too
    {
        "harness.answers",
        "harness.arrays",
        "harness.audit",
        "harness.cell",
        "harness.config",
        "harness.conformance",
        "harness.conformance.adapter",
        "harness.conformance.meter",
        "harness.conformance.readings",
        "harness.conformance.report",
        "harness.conformance.trials",
        "harness.discover",
        "harness.doctor",
        "harness.drive",
        "harness.elsewhere",
        "harness.examine",
        "harness.expected",
        "harness.export",
        "harness.launchers",
        "harness.launchers.choose",
        "harness.launchers.listener",
        "harness.launchers.local",
        "harness.launchers.process",
        "harness.launchers.ray",
        "harness.launchers.slurm",
        "harness.launchers.ssh",
        "harness.link",
        "harness.metering",
        "harness.mix",
        "harness.noise",
        "harness.past",
        "harness.plugins",
        "harness.phase",
        "harness.repeat",
        "harness.run",
        "harness.slices",
        "harness.starter",
        "harness.store",
        "harness.idle",
        "harness.gaps",
        "harness.guarded",
        "harness.watch",
        "harness.watch.accelerators",
        "harness.watch.canary",
        "harness.watch.cgroups",
        "harness.watch.disclosure",
        "harness.watch.files",
        "harness.watch.machine",
        "harness.watch.memory",
        "harness.watch.processor",
        "harness.watch.sampling",
        "harness.setup",
        "harness.site",
        "harness.cluster",
        "harness.cluster.agent",
        "harness.cluster.gather",
        "harness.cluster.machine",
        "harness.cluster.messages",
        "harness.cluster.names",
        "harness.cluster.remotes",
        "harness.cluster.site",
        "harness.worker",
        "harness.serve",
        "harness.wire",
        "harness.failures",
        "harness.hosts",
        "harness.hosts.local",
        "harness.hosts.orphans",
        "harness.isolation",
    },
    {"harness.progress"},
    {
        "harness.cli",
        "harness.cli.adapters",
        "harness.cli.agent",
        "harness.cli.alone",
        "harness.cli.answer",
        "harness.cli.cache",
        "harness.cli.export",
        "harness.cli.conformance",
        "harness.cli.leaderboard",
        "harness.cli.hosts",
        "harness.cli.look",
        "harness.cli.meters",
        "harness.cli.options",
        "harness.cli.results",
        "harness.cli.run",
        "harness.cli.submissions",
        "harness.cli.tables",
        "harness.start",
    },
)
ENGINE = frozenset().union(*LAYERS)
FOR_PLUGINS = frozenset().union(*LAYERS[:4])
VENDORS = {"pynvml", "amdsmi"}
HEAVY = {"torch", "onnxruntime", "openvino", "llama_cpp", "onnx", "onnxscript", "onnx_ir", "transformers", "diffusers"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, those under `if TYPE_CHECKING` left out."""
    found: set[str] = set()
    stack: list[ast.AST] = [ast.parse(path.read_text())]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        stack.extend(ast.iter_child_nodes(node))
    return found


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def path_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def engine() -> list[Path]:
    """The files of the harness that are no plugins."""
    return [path for path in files("harness") if path not in BUILT_IN]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


BUILT_IN = {
    *files("harness/adapters", "harness/meters"),
    *(path_of(spec.partition(":")[0]) for spec in plugins.BUILT_IN["watchers"].values()),
}


def test_every_file_of_the_engine_has_a_layer() -> None:
    assert {name_of(path) for path in engine()} - {"harness"} == ENGINE


@pytest.mark.parametrize("level", range(len(LAYERS)))
def test_imports_point_one_way(level: int) -> None:
    allowed = frozenset().union(*LAYERS[: level + 1])
    for module in LAYERS[level]:
        path = path_of(module)
        assert {each for each in imports(path) if each in ENGINE} <= allowed, module


def test_plugins_see_only_contracts_pure_modules_and_the_cache() -> None:
    for path in (*BUILT_IN, *files("suites", "reporters")):
        assert {each for each in imports(path) if each in ENGINE} <= FOR_PLUGINS, path


def test_only_the_command_line_knows_of_submissions_and_they_know_nothing_of_it() -> None:
    measured = frozenset().union(*LAYERS[:5])
    for path in files("submissions"):
        assert {each for each in imports(path) if each in ENGINE} <= measured, path
    for path in files("harness", "suites", "reporters"):
        named = {each for each in imports(path) if each.split(".")[0] == "submissions"}
        assert not named or name_of(path).startswith("harness.cli."), path


def test_the_engine_names_no_plugin() -> None:
    for path in engine():
        named = {each for each in imports(path) if each.split(".")[0] in HEAVY | VENDORS | {"suites", "reporters"}}
        assert not named, path
        assert not imports(path) & {name_of(plugin) for plugin in BUILT_IN}, path


def test_a_plugin_loads_without_its_framework() -> None:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(HEAVY | VENDORS)!r}))"
    names = "import harness.plugins as p; [x.load() for kind in p.BUILT_IN for x in p.find(kind).values()]"
    done = subprocess.run([sys.executable, "-c", f"{blocked}; {names}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; import harness.cli; print([m for m in sys.modules if m in ('numpy', 'pydantic', 'rich', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_vendors_import_is_listed() -> None:
    import mixmark

    assert mixmark.__all__ == sorted(mixmark.__all__, key=lambda name: (not name.isupper(), name))
    public = {name for name in vars(mixmark) if not name.startswith("_")}
    assert public == set(mixmark.__all__)
