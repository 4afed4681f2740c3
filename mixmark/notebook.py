"""A result in a notebook: `mixmark.load("results/x")`. docs/notebook.md shows it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo, best, by_suite
from mixmark.harness.judge.verdict import Verdict


class Run:
    """A result with its figures, as reports show them."""

    def __init__(self, assessment: Assessment) -> None:
        self.assessment = assessment
        """Everything that is concluded from the result."""

    @property
    def verdict(self) -> Verdict:
        """Whether the figures can be relied on: `word` and `reason`."""
        return self.assessment.verdict

    @property
    def score(self) -> Score | None:
        """The score. None if no mix was asked for, or none was run yet."""
        return self.assessment.score

    @property
    def suites(self) -> Mapping[str, Solo]:
        """The fastest valid measurement of each suite alone, by the name of the suite."""
        return best(self.assessment.solos, by_suite)

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each measurement and each run of the mix, with the columns of `--format jsonl`."""
        from mixmark.reporters.data import lines

        return lines(self.assessment)

    def timestamps(self, suite: str) -> list[dict[str, Any]]:
        """A dict for each finished feed of a suite, alone and in the mix: the key of its record and its times in ns, on
        the clock of the run. Raises KeyError if the suite has no timestamps."""
        of_suite = [each for each in self.assessment.evidence.measured if each.record.route.suite == suite]
        if not of_suite:
            raise KeyError(suite)
        return [
            {
                "key": each.key,
                "scenario": each.record.scenario,
                "due_ns": feed.due_ns,
                "issued_ns": feed.issued_ns,
                "first_ns": feed.yields[0][0],
                "done_ns": feed.done_ns,
            }
            for each in of_suite
            for feed in each.completions
        ]

    def __repr__(self) -> str:
        score = self.score.headline if self.score else "no score"
        return f"<Run {self.assessment.result.created_utc}: {score}; {self.verdict.word}>"

    def _repr_html_(self) -> str:
        """The summary of the page, in a frame of its own, so that its styles stay there."""
        from mixmark.reporters.report import summary_page

        return f'<iframe srcdoc="{html.escape(summary_page(self.assessment))}" width="100%" height="700"></iframe>'


def load(folder: str | Path) -> Run:
    """The result in a folder, with all figures computed again. Raises ResultError if the folder holds none."""
    from mixmark.harness.judge import references
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.record import store

    return Run(judge_stored(store.open(Path(folder)), references.published()))
