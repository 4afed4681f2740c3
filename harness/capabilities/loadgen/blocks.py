"""LoadGen's figures beside Mixmark's, in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mixmark.harness.capabilities.loadgen.figures import PLACE, Beside, Reported
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

    def lines(self, judged: Assessment, found: Sequence[Beside]) -> Iterator[tuple[str, str]]:
        yield "LoadGen", PLACE

    def table(self, judged: Assessment, found: Sequence[Beside]) -> Table:
        header = ("suite", "device", "scenario", "figure", "LoadGen", "Mixmark", "difference", "alone", "LoadGen says")
        return Table(TITLE, header, [_row(each) for each in found], 4)


def _row(of: Beside) -> tuple[str, ...]:
    pair = [figures.prefixed(x, "/s") if of.name == "rate" else figures.duration(x) for x in (of.loadgen, of.mixmark)]
    differs = UNKNOWN if of.difference is None else f"{100 * of.difference:+.2g} %"
    says = {None: of.reason or "no result", True: "valid", False: "invalid"}[of.valid]
    return of.suite, of.device, of.scenario, of.name, *pair, differs, figures.prefixed(of.alone_per_s, "/s"), says
