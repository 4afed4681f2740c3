"""The cache of converted models: entries are written once and reused; killed writers, full disks, entries in use."""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import Unsupported, UsageError
from mixmark.harness.contracts.schema import WeightClass
from mixmark.harness.plugins import model_cache
from tests.fakes.null import Null
from tests.marks import linux

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(model_cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv(model_cache.LIMIT, raising=False)
    return tmp_path / "cache"


def writing(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model").write_text(text)

    return write


def make(name: str, size_bytes: int, age_s: float = 0) -> Path:
    with model_cache.folder(name, size_bytes, lambda folder: writing("x" * size_bytes)(folder)) as path:
        pass
    used_s = time.time() - age_s
    os.utime(path / model_cache.LOCK, (used_s, used_s))
    return path


def names() -> list[str]:
    return [entry.path.name for entry in model_cache.entries()]


def test_an_entry_is_made_once_and_found_again(root: Path) -> None:
    with model_cache.folder("a b/c", 3, writing("one")) as path:
        assert path == root / "a_b_c"
        assert (path / "model").read_text() == "one"
    with model_cache.folder("a b/c", 3, writing("two")) as path:
        assert (path / "model").read_text() == "one"


def test_the_name_holds_everything_that_the_content_depends_on(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.safetensors"
    checkpoint.write_text("weights")

    def name(
        precision: str = "int4",
        engine: str = "acme 1.2",
        options: Mapping[str, str] | None = None,
        bits: WeightClass = 4,
    ) -> str:
        suite = Null("smoke", options or {}, bits)
        with model_cache.converted(suite, precision, engine, 1, writing("")) as path:
            return path.name

    first = name()
    assert first.startswith("null-1-smoke-int4-acme_1.2-")
    assert name() == first
    with_checkpoint = {"weights": str(checkpoint)}
    different = [first, name("int8"), name(bits=8), name(engine="acme 1.3"), name(options=with_checkpoint)]
    assert name(options=with_checkpoint) == different[-1]
    checkpoint.write_text("other weights")
    different.append(name(options=with_checkpoint))
    assert len(set(different)) == len(different)


def test_a_model_that_other_code_would_write_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code may lie in a module beside the writer's, or in the package around it."""
    package = tmp_path / "acme_runtime" / "adapters" / "fast"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "convert.py").write_text("def write(folder): (folder / 'model').write_text('acme')")
    monkeypatch.syspath_prepend(str(tmp_path))
    write = importlib.import_module("acme_runtime.adapters.fast.convert").write

    def name() -> str:
        with model_cache.converted(Null("smoke", {}), "int4", "acme", 4, partial(write)) as path:
            return path.name

    found = [name()]
    for file in (package / "convert.py", package / "layers.py", package.parent / "rounding.py"):
        with file.open("a") as source:
            source.write("\n# changed")
        found.append(name())
    assert len(set(found)) == len(found), "another model for each change"
    (package.parent.parent / "unrelated.py").write_text("")
    assert name() == found[-1]


def test_a_writer_in_a_file_of_its_own_depends_on_that_file_only(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("x = 1")
    (tmp_path / "acme_alone.py").write_text("def write(folder): pass")
    spec = importlib.util.spec_from_file_location("acme_alone", tmp_path / "acme_alone.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert model_cache._sources(module.write) == b"def write(folder): pass"


def test_two_processes_do_not_make_the_same_entry_twice(tmp_path: Path) -> None:
    script = (
        "import sys, time; from mixmark.harness.plugins import model_cache as cache\n"
        "def write(folder):\n"
        "    print('made', flush=True); time.sleep(0.3); (folder / 'model').write_text('whole')\n"
        "sys.stdin.read(1)\n"
        "with cache.folder('shared', 5, write) as path: print((path / 'model').read_text())"
    )
    two = [subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, text=True, stdin=-1, stdout=-1) for _ in range(2)]
    for process in two:
        assert process.stdin is not None
        process.stdin.write("x")
        process.stdin.flush()
    printed = [process.communicate()[0].split() for process in two]
    assert sorted(printed) == [["made", "whole"], ["whole"]]


@pytest.mark.slow
def test_the_folder_of_a_killed_writer_is_never_taken_for_whole(root: Path) -> None:
    """A child makes and removes entries without end, and is killed at a random moment, again and again."""
    script = (
        "from mixmark.harness.plugins import model_cache as cache\n"
        "def write(folder):\n"
        "    for n in range(40): (folder / str(n)).write_text('x')\n"
        "print('goes', flush=True)\n"
        "while True:\n"
        "    for name in 'ab':\n"
        "        with cache.folder(name, 40, write): pass\n"
        "    for entry in cache.entries(): cache.remove(entry)\n"
    )
    draw, unfinished = random.Random(1), 0
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, text=True, stdout=-1)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(draw.uniform(0, 0.05))
        child.kill()
        child.communicate()
        found = model_cache.entries()
        unfinished += sum(entry.path.suffix == model_cache.PART for entry in found)
        for entry in found:
            assert entry.path.suffix == model_cache.PART or entry.size_bytes == 40
        with model_cache.folder("a", 40, writing("mine")) as path:
            assert (path / "model").exists() or len(list(path.iterdir())) == 41
        assert all(model_cache.remove(entry) for entry in model_cache.entries())
        assert not [each for each in root.iterdir() if any(each.iterdir())], "an empty folder is used again"
    assert unfinished, "no child was killed in the middle: this test has seen nothing"


def test_what_a_killed_process_left_of_its_engines_is_not_used(root: Path) -> None:
    script = (
        "import os\n"
        "from mixmark.harness.plugins.model_cache import engines\n"
        "from tests.fakes.null import Null\n"
        "with engines(Null('smoke', {}), 'fp16', 'acme', 10) as folder:\n"
        "    (folder / 'step').mkdir()\n"
        "    (folder / 'step/engine').write_text('half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert next(root.rglob("engine")).read_text() == "half"
    with model_cache.engines(Null("smoke", {}), "fp16", "acme", 10) as folder:
        assert folder is not None and not (folder / "step").exists()
        with model_cache.engines(Null("smoke", {}), "fp16", "acme", 10) as another:
            assert another is None, "one process writes to it at a time"


@linux
def test_a_disk_that_is_full_costs_the_engines_alone() -> None:
    def folder() -> Path | None:
        with model_cache.engines(Null("smoke", {}), "fp16", "acme", 10) as found:
            return found

    path = folder()
    assert path is not None
    (path / model_cache.IN_USE).unlink()
    (path / model_cache.IN_USE).symlink_to("/dev/full")
    assert folder() is None


def test_without_room_engines_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(model_cache.LIMIT, "0.1")
    with model_cache.engines(Null("smoke", {}), "fp16", "acme", 10**9) as folder:
        assert folder is None


def test_the_least_recently_used_entry_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(model_cache.LIMIT, "0.0001")
    for name, age_s in (("oldest", 300), ("old", 200), ("new", 100)):
        make(name, 30_000, age_s)
    with model_cache.folder("old", 30_000, writing("")):  # it is used now, and thus the youngest
        make("next", 40_000)
    assert set(names()) == {"old", "new", "next"}
    with model_cache.folder("old", 0, writing("")), model_cache.folder("next", 0, writing("")):
        make("last", 30_000)
        assert set(names()) == {"old", "next", "last"}
        with pytest.raises(Unsupported, match=r"takes 60 kB, and entries in use take 70 kB"):
            make("too much", 60_000)


def test_a_model_beyond_the_limit_is_refused_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported) as refused:
        make("large", 32_100_000_000)
    assert str(refused.value) == "the converted model takes 32.1 GB, and the cache is limited to 20 GB"
    assert refused.value.hint == "export MIXMARK_CACHE_GB=33"
    monkeypatch.setenv(model_cache.LIMIT, "much")
    with pytest.raises(UsageError, match="MIXMARK_CACHE_GB is 'much'"):
        model_cache.limit_bytes()


def test_a_small_disk_is_reported_before_anything_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "_free", lambda: 3_000_000_000)
    with pytest.raises(Unsupported) as refused:
        make("large", 2_500_000_000)
    assert str(refused.value) == (
        f"the disk of {root} has 3 GB free, and the converted model takes 2.5 GB beside 1.07 GB that stay free"
    )
    assert refused.value.hint.startswith("free some space")
    assert not list(root.iterdir())


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(errno.ENOSPC, "No space left"), Unsupported, "the disk of .* has"),
        (FileNotFoundError(2, "there is no checkpoint"), FileNotFoundError, "no checkpoint"),
    ],
)
def test_a_writer_that_fails_leaves_nothing(root: Path, error: OSError, raised: type[Exception], words: str) -> None:
    def write(folder: Path) -> None:
        (folder / "begun").write_text("some")
        raise error

    with pytest.raises(raised, match=words), model_cache.folder("x", 10, write):
        pass
    assert not list(root.iterdir())


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(model_cache.FOLDER, str(tmp_path / "file"))
    with pytest.raises(Unsupported, match=r"cannot write .*: Not a directory") as refused:
        make("x", 1)
    assert refused.value.hint == "check that the path exists; set MIXMARK_CACHE to a folder that can be written"


def test_an_entry_that_cannot_be_removed_stays_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    make("of-another-user", 3)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    (entry,) = model_cache.entries()
    assert not model_cache.remove(entry)
    assert names() == ["of-another-user"]
