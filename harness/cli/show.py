"""The report of a result at the end of a command, with the scores of other machines beside its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.contracts.errors import MixmarkError, UsageError

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Mix
    from mixmark.harness.judge.judgement import Judgement
    from mixmark.harness.judge.references import ReferenceScore

AGAINST = click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RESULT",
    help="Result folder whose score is shown beside this one's. Repeatable.  [default: the published entries]",
)
VERBOSE = click.option("--verbose", is_flag=True, help="Print all figures, findings and notes before the score.")
PAGE = "report.html"
"""The page that a run writes into its folder."""


def references(against: Sequence[Path], mix: Mix | None) -> tuple[ReferenceScore, ...]:
    """The scores of the results at these paths; without a path, the published scores.

    mix: the mix of the result that the scores are shown beside. None: that result has no mix. Raises UsageError if a
    result has no score, or a score of another mix.
    """
    from mixmark.harness.judge import references as known
    from mixmark.harness.plugins.suite_claims import judge_stored
    from mixmark.harness.record import store

    found = []
    for path in against:
        result = store.open(path)
        judgement = judge_stored(result)
        name = f"{result.system.cpu_model or 'the machine'} in {path.resolve().name}"
        reference = known.reference(result, judgement.score, name)
        if reference is None:
            raise UsageError(
                f"the result in {path} has no score", "--against takes a result whose mixed run has a score"
            )
        if judgement.result.mix != mix:
            own = (
                "no mix"
                if mix is None
                else f"the mix {mix.name}"
                if mix.name != reference.mix
                else "another mix of that name"
            )
            raise UsageError(
                f"the result in {path} has a score of the mix {reference.mix}, and this result has {own}",
                "only scores of one mix are comparable; mixmark compare sets any results side by side",
            )
        found.append(reference)
    return tuple(found) or known.published()


def write_page(judgement: Judgement, folder: Path) -> Path | None:
    """Writes the page into the result folder and returns its path. None: it could not be written, as a line on stderr
    says. Nothing is lost then: `mixmark report` makes the page again."""
    from mixmark.harness.plugins import registry

    page = folder / PAGE
    try:
        page.write_text(registry.find("reporters")["html"].load()(judgement), encoding="utf-8")
    except (OSError, MixmarkError) as error:
        click.echo(f"The page could not be written to {page}: {error}", err=True)
        return None
    return page
