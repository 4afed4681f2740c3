from __future__ import annotations

from mixmark.harness.judge.assessment import judge
from mixmark.reporters import report
from tests.golden.reports import reports
from tests.golden.sample import FOLDER, REPORTERS, sample
from tests.reporters import test_document

for name, form in REPORTERS.items():
    (FOLDER / name).write_text(form(judge(sample())), encoding="utf-8")
for file, assessment in reports():
    file.write_text(report.full(assessment), encoding="utf-8")
for name, render in test_document.FORMS.items():
    (FOLDER / name).write_text(render(test_document.EVERY), encoding="utf-8")
