"""A small valid entry, and the forger's tools: what a manifest would hold after a change."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixmark.harness.contracts.schema import Result
from mixmark.harness.record import store
from mixmark.submissions import check, files
from mixmark.submissions.bundle import bundle
from mixmark.submissions.entry import DECLARATION, RESULTS, Declaration, EntryVerdict, Price
from tests.fakes.folders import rehash

NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
PRICE = Price(amount="2599.00", currency="EUR", date=datetime.date(2026, 1, 2), source="https://example.org/shop/one")
DECLARED = Declaration(
    organisation="Acme & Söhne",
    system="Acme One",
    availability="available",
    form_factor="desktop",
    origin="Acme, Germany",
    meter="Acme Wattmeter 3",
    licence="Apache-2.0",
    notes="Fans at their lowest speed.",
    price=PRICE,
    provisioned_watts=450,
)


def made(out: Path, *results: Path, declaration: Declaration = DECLARED) -> Path:
    """The folder of an entry made of results, which obeys all rules."""
    done = bundle(results, declaration, out)
    assert done.verdict.entry is not None, done.verdict.problems
    return done.folder


def verdict(*folders: Path, allowed: Path | None = None, originals: Path | None = None) -> EntryVerdict:
    """The verdict on the last of these folders."""
    return check.check(folders, allowed, NOW, originals)[-1]


def codes(*folders: Path) -> set[str]:
    """The codes of the rules that the last of these folders breaks."""
    return {problem.code for problem in verdict(*folders).problems}


def edited(folder: Path, name: str = DECLARATION, **changes: Any) -> None:
    """Changes facts of a file, whether they are valid or not, and writes the manifest anew, as a forger would."""
    path = folder / name
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    files.write_manifest(folder)


def rewritten(folder: Path, change: Callable[[Result], Result], number: int = 1) -> None:
    """Changes the facts of a result, and writes the result as the store does, and the manifest."""
    home = folder / RESULTS / str(number)
    before = store.open(home)
    outputs = {path.name: path.read_bytes() for path in (home / "raw").glob("*.outputs.npz")}
    for path in [*(home / "raw").iterdir(), home / store.SUMMARY, home / store.SUMS]:
        path.unlink()
    (home / "raw").rmdir()
    after = change(before)
    keeper = store.create(
        home, after.model_copy(update={"records": (), "meterings": (), "finished": False, "resumed": ()})
    )
    for record in after.records:
        if (name := f"{record.key}.outputs.npz") in outputs:
            (home / "raw" / name).write_bytes(outputs[name])
        keeper.append(record)
    for metering in after.meterings:
        keeper.meter(metering)
    keeper.finish(after.model_copy(update={"finished": True}))
    if not after.finished:
        rehash(home, after.model_dump(mode="json"))
    files.write_manifest(folder)
