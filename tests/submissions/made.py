"""A small valid entry, and the forger's tools: what a manifest and a claim would say after a change."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.judgement import judge
from mixmark.harness.measure.conformance import report
from mixmark.harness.record import store
from mixmark.submissions import check, form, page
from mixmark.submissions.bundle import bundle
from mixmark.submissions.conclude import contribution_of, entry
from mixmark.submissions.entry import (
    CLAIM,
    DECLARATION,
    MANIFEST,
    README,
    RESULTS,
    Declaration,
    EntryVerdict,
    Manifest,
    PriceItem,
    Signed,
)
from tests.fakes.folders import SOURCE, rehash

NOW = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)
RAN = datetime.date(2026, 1, 2)  # tests.fakes.folders says so
ITEM = PriceItem(
    what="Acme One, complete",
    quantity=2,
    unit_price="1299.50",
    currency="EUR",
    date=RAN,
    source="https://example.org/shop/one",
    locale="de-DE",
)
DECLARED = Declaration(
    organisation="Acme & Söhne",
    system="Acme One",
    availability="available",
    available_on=RAN,
    cooling="air",
    form_factor="desktop",
    origin="Acme, Germany",
    licence="Apache-2.0",
    notes="Fans at their lowest speed.",
    price=(ITEM,),
    provisioned_watts=450,
)


def made(out: Path, *results: Path, declaration: Declaration = DECLARED) -> Path:
    """The folder of an entry made of results, which obeys all rules."""
    done = bundle(results, declaration, out)
    assert done.verdict.entry is not None, done.verdict.problems
    return done.folder


def kit_report(**changes: Any) -> report.Report:
    """What the conformance kit says of the adapter of the results."""
    facts = {
        "kind": "adapter",
        "name": "torch",
        "origin": "built in",
        "source": "torch.py",
        "sha256": SOURCE,
        "mixmark": VERSION,
        "created_utc": "2026-01-02T03:04:05+00:00",
        "devices": (),
        "verdicts": (report.Verdict(check="claims_run", state="passed", message="8 routes ran", docs="docs"),),
    }
    return report.Report.model_validate(facts | changes)


def verdict(*folders: Path, allowed: Path | None = None) -> EntryVerdict:
    """What a check says of the last of these folders."""
    return check.check(folders, allowed, NOW)[-1]


def codes(*folders: Path) -> set[str]:
    """The codes of the rules that the last of these folders breaks."""
    return {problem.code for problem in verdict(*folders).problems}


def sealed(folder: Path) -> None:
    """Writes the manifest anew, as a forger would."""
    names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())
    files = tuple(form.listed(folder, name) for name in names if name not in (MANIFEST, f"{MANIFEST}.sig"))
    (folder / MANIFEST).write_bytes(form.written(Manifest(files=files)))


def edited(folder: Path, name: str, **changes: Any) -> None:
    """Changes facts of a declaration or a claim, and seals the folder."""
    path = folder / name
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    sealed(folder)


def declared(folder: Path, **changes: Any) -> None:
    """Changes the declaration, and everything else of the entry that follows from it."""
    told = form.read(Declaration, (folder / DECLARATION).read_bytes())
    concluded(folder, told.model_validate(told.model_dump() | changes))


def concluded(folder: Path, told: Declaration | None = None) -> None:
    """Writes the declaration, the claim, the page and the manifest that follow from the results that are there."""
    told = told or form.read(Declaration, (folder / DECLARATION).read_bytes())
    homes = sorted((folder / RESULTS).iterdir(), key=lambda each: int(each.name))
    seen = [
        contribution_of(int(each.name), judge(store.open(each)), form.sha256_of(each / store.SUMS)) for each in homes
    ]
    found = entry(told, seen, Signed(state="none"))
    (folder / DECLARATION).write_bytes(form.written(told))
    (folder / CLAIM).write_bytes(form.written(found.claim))
    (folder / README).write_bytes(page.page(found))
    sealed(folder)


def rewritten(folder: Path, change: Callable[[Result], Result], number: int = 1) -> None:
    """Changes the facts of a result and writes it as the store does, with all that follows from it: nothing in the
    entry contradicts it, as far as a forger can see to it."""
    home = folder / RESULTS / str(number)
    before = store.open(home)
    outputs = {each.name: each.read_bytes() for each in (home / "raw").glob("*.outputs.npz")}
    for each in [*(home / "raw").iterdir(), home / store.SUMMARY, home / store.SUMS]:
        each.unlink()
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
