"""LoadGen's figures beside Mixmark's, in a table."""

from __future__ import annotations

from collections.abc import Sequence

from mixmark.harness.capabilities.loadgen.facts import Reported
from mixmark.harness.capabilities.loadgen.figures import Beside
from mixmark.harness.contracts.schema import Found
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters import figures
from mixmark.reporters.document import Table
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN

TITLE = "Timed by LoadGen: not MLPerf results"


class LoadGenSection(Section):
    def said(self, found: Found) -> str:
        return f"{Reported.model_validate(found.facts).phase}: LoadGen has its figures"

    def table(self, judged: Assessment, found: Sequence[Beside]) -> Table:
        header = ("suite", "device", "scenario", "figure", "LoadGen", "Mixmark", "difference", "alone", "LoadGen says")
        return Table(TITLE, header, [_row(each) for each in found], 4)


def _row(test: Beside) -> tuple[str, ...]:
    offline, told = test.scenario == "Offline", test.reported
    if offline:
        pair = [figures.prefixed(each, "/s") for each in test.rates]
    else:
        pair = [figures.duration(each.get("90")) for each in (test.told, test.percentiles_ns)]
    differs = UNKNOWN if test.difference is None else f"{100 * test.difference:+.2g} %"
    alone = figures.prefixed(test.alone_per_s, "/s")
    valid = "no result" if told is None else "valid" if told.valid else "invalid"
    return test.suite, test.device, test.scenario, "feeds" if offline else "p90", *pair, differs, alone, valid
