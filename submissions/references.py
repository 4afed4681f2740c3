"""The scores of published entries that ship with Mixmark, so that a report can say how a machine compares.

    python -m mixmark.submissions.references    writes harness/judge/references.json from submissions/entries

It holds the ranked entries of the closed division that `mixmark check` accepts; a report names the nearest ones. A mix
without a ranked entry has its indicative ones instead: a report names the grade of each, and a rough scale is better
than none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from mixmark.harness.judge.references import ReferenceScore, rates
from mixmark.submissions import check
from mixmark.submissions.entry import Entry

ENTRIES = Path(__file__).parent / "entries"
SHIPPED = Path(__file__).parent.parent / "harness" / "judge" / "references.json"


def reference(entry: Entry) -> ReferenceScore:
    """The facts of an entry that a report shows."""
    return ReferenceScore(
        name=f"{entry.declaration.organisation} {entry.declaration.system}",
        entry=entry.path,
        mix=entry.mix,
        mixes_per_hour=entry.mixes_per_hour,
        mixes_per_kwh=entry.mixes_per_kwh,
        boundary=entry.boundary,
        weight_class=entry.weight_class,
        grade=entry.grade,
        created_utc=entry.ended_utc,
        retained=tuple(round(fraction, 4) for fraction in entry.retained),
        alone=rates(entry.solos),
    )


def written(entries: Iterable[Entry]) -> str:
    """The text of the file: one line for each reference."""
    closed = [entry for entry in entries if entry.division == "closed"]
    ranked = {entry.mix for entry in closed if entry.ranked}
    shown = [entry for entry in closed if entry.ranked or entry.mix not in ranked]
    shown.sort(key=lambda entry: entry.path)
    shown.sort(key=lambda entry: entry.ended_utc, reverse=True)
    shown.sort(key=lambda entry: entry.mix)
    lines = [json.dumps(reference(entry).model_dump(mode="json"), ensure_ascii=False) for entry in shown]
    return "[" + "".join(f"\n  {line}," for line in lines).rstrip(",") + ("\n" if lines else "") + "]\n"


def published(folder: Path = ENTRIES) -> list[Entry]:
    """The entries of a folder that obey all rules and were not replaced. Empty if the folder is empty or does not
    exist."""
    found = check.find(folder) if folder.is_dir() and any(path.is_dir() for path in folder.iterdir()) else []
    entries = [verdict.entry for verdict in check.check(found) if verdict.entry and not verdict.problems]
    return [entry for entry in entries if not entry.replaced]


if __name__ == "__main__":
    SHIPPED.write_text(written(published()), encoding="utf-8")
