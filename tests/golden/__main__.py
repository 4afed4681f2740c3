from __future__ import annotations

from tests.golden.sample import FOLDER, REPORTERS, sample

for name, report in REPORTERS.items():
    (FOLDER / name).write_text(report(sample()), encoding="utf-8")
