from __future__ import annotations

from mixmark.harness.judge.assessment import judge
from tests.golden.sample import FOLDER, REPORTERS, sample

for name, report in REPORTERS.items():
    (FOLDER / name).write_text(report(judge(sample())), encoding="utf-8")
