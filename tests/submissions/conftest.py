"""One entry of each kind, made once; a test alters a copy of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mixmark.harness.contracts.schema import Result
from tests.fakes.folders import Maker, write
from tests.submissions.made import made

TWO_RUNS = Maker(1).result(runs=2)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two result folders of one machine."""
    folder = tmp_path_factory.mktemp("results")
    later: Result = Maker(2).result().model_copy(update={"created_utc": "2026-01-02T05:04:05+00:00"})
    write(folder / "one", TWO_RUNS)
    write(folder / "two", later)
    return folder / "one", folder / "two"


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, results: tuple[Path, Path]) -> Path:
    return made(tmp_path_factory.mktemp("entries"), results[0])


@pytest.fixture(scope="session")
def original_of_two(tmp_path_factory: pytest.TempPathFactory, results: tuple[Path, Path]) -> Path:
    return made(tmp_path_factory.mktemp("entries"), *results)


def _copy(original: Path, to: Path) -> Path:
    return Path(shutil.copytree(original, to.joinpath("entries", *original.parts[-3:])))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of an entry with one result of two mixed runs."""
    return _copy(original, tmp_path)


@pytest.fixture
def folder_of_two(original_of_two: Path, tmp_path: Path) -> Path:
    """A copy of an entry with two results."""
    return _copy(original_of_two, tmp_path / "two")
