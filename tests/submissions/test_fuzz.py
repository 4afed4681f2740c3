"""Entries that were altered at random: a check rejects each, or returns the facts of the original."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mixmark.submissions import check, files
from mixmark.submissions.entry import DECLARATION, MANIFEST, RESULTS, Entry, Manifest
from tests.fakes.mutations import alter_array, alter_bytes, alter_files, alter_json

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy and zipfile warn of what the changes do
ONCE_FOR_ALL = (HealthCheck.function_scoped_fixture,)  # the fixture is only read


def write_manifest(folder: Path) -> None:
    """Writes the manifest of those files that a manifest can list, as a forger would."""
    listed = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        try:
            listed += [files.listed(folder, name)] if name != MANIFEST else []
        except (ValueError, OSError):  # a manifest lists no such file
            continue
    path = folder / MANIFEST
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)  # a link would be followed out of the entry
        path.write_bytes(files.written(Manifest(files=tuple(listed))))


def shown(entry: Entry) -> object:
    """The classes, the figures and the declaration: what a board ranks by and prints."""
    fields = {"mix", "tier", "division", "tuning", "grade", "ranked", "weight_class", "boundary", "watts"}
    fields |= {"mixes_per_hour", "mixes_per_kwh", "mixmark", "declaration"}
    return entry.model_dump(mode="json", include=fields), len(entry.runs)


@pytest.mark.slow
@settings(suppress_health_check=ONCE_FOR_ALL)
@given(data=st.data(), sealed=st.booleans())
def test_a_mutant_is_rejected_or_shows_the_same(original: Path, data: st.DataObject, sealed: bool) -> None:
    """sealed: whether the manifest agrees with the change."""
    (before,) = check.check([original])
    assert before.entry is not None
    with tempfile.TemporaryDirectory(prefix="mixmark-fuzz-") as scratch:
        mutant = Path(scratch).resolve().joinpath(*original.parts[-3:])
        shutil.copytree(original, mutant)
        how = data.draw(st.sampled_from(("document", "result", "bytes", "array", "files")))
        if how == "document":
            alter_json(data, mutant / data.draw(st.sampled_from((DECLARATION, MANIFEST))))
        elif how == "result":
            alter_json(data, mutant / RESULTS / "1/result.json")
        elif how == "bytes":
            alter_bytes(data, data.draw(st.sampled_from(sorted(p for p in mutant.rglob("*") if p.is_file()))))
        elif how == "array":
            alter_array(data, data.draw(st.sampled_from(sorted((mutant / RESULTS / "1/raw").iterdir()))))
        else:
            alter_files(data, mutant)
        if sealed:
            write_manifest(mutant)
        (after,) = check.check([mutant])
    json.dumps(after.model_dump(mode="json"), ensure_ascii=False).encode()  # it can be printed
    assert after.entry is None or shown(after.entry) == shown(before.entry)
