"""An experiment in the reports and in the progress of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mixmark.harness.contracts.schema import Found
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.plugins.experiments import parts
from mixmark.reporters.document import Block, Chart, Table


class Section:
    """What is shown of an experiment. All methods but `said` are called only if it has figures, and get them."""

    def said(self, found: Found) -> str:
        """A line of the progress about a fact that it found."""
        raise NotImplementedError

    def lines(self, judged: Assessment, figures: Any) -> Iterable[tuple[str, str]]:
        """Names and short texts, for the brief report."""
        return ()

    def table(self, judged: Assessment, figures: Any) -> Table | None:
        """A table of the brief report."""
        return None

    def standing(self, judged: Assessment, figures: Any) -> Iterable[tuple[float, str, str]]:
        """Rows of the table that says where the machine stands: mixes per hour, a name, and what the figure is."""
        return ()

    def section(self, judged: Assessment, figures: Any) -> Iterable[Block]:
        """Its section of the full report."""
        return ()


def section_of(experiment: str) -> Section:
    """A section that shows nothing if the experiment has none."""
    found: Section = parts("sections").get(experiment, Section())
    return found


def shown(judged: Assessment) -> Iterator[tuple[Section, object]]:
    """The sections of the experiments that have figures, with the figures."""
    yield from ((section_of(name), found) for name, found in judged.experiments.items())


def pictures(place: str, judged: Assessment) -> Iterable[Chart]:
    """The pictures for a place of the page. None without the capability that draws them."""
    draw = parts("pictures").get(place)
    return draw(judged) if draw else ()
