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
    """Returns the scores of the results at these paths or, without a path, the published ones.

    mix: the one of the result beside which they are shown; None: it has no score. Raises UsageError if a
    result has no score, or one of another mix.
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
                f"the result in {path} has no score", "give one whose mixed run has a score with --against"
            )
        if judgement.result.mix != mix:
            own = f"this one of {'another mix of that name' if mix.name == reference.mix else mix.name}" if mix else ""
            raise UsageError(
                f"the result in {path} has a score of the mix {reference.mix}, {own or 'and this one has no mix'}",
                "only scores of one mix are comparable; mixmark compare sets any results side by side",
            )
        found.append(reference)
    return tuple(found) or known.published()


def write_page(judgement: Judgement, folder: Path) -> Path | None:
    """Writes the page into the result folder. A page that cannot be written loses nothing: it can be made again from
    the folder, so only a line on stderr says so."""
    from mixmark.harness.plugins import registry

    page = folder / PAGE
    try:
        page.write_text(registry.find("reporters")["html"].load()(judgement), encoding="utf-8")
    except (OSError, MixmarkError) as error:
        click.echo(f"The page could not be written to {page}: {error}", err=True)
        return None
    return page
