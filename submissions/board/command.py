"""The command leaderboard."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mixmark.harness.cli.options import JSON, Placed
from mixmark.harness.cli.printing import print_json
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.text import plain
from mixmark.submissions.commands import ORIGINALS, SIGNERS

if TYPE_CHECKING:
    from mixmark.submissions.board.row import Website
    from mixmark.submissions.entry import Entry, EntryVerdict


@click.command(cls=Placed, section="Publish")
@click.argument("entries", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default="site", show_default=True, help="Folder of the site; replaced."
)
@click.option("--url", default="", metavar="URL", help="Address where the site will stand, for citations and a feed.")
@click.option("--contact", default="", metavar="ADDRESS", help="E-mail address or page for questions and new entries.")
@click.option(
    "--about",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text of a page about the board; an empty line ends a paragraph.",
)
@click.option("--licence", default="", metavar="TEXT", help="Licence of the data of the board.")
@click.option("--title", default="Mixmark leaderboard", show_default=True, help="Title of the site.")
@click.option(
    "--date",
    "today",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Day from which ages are counted.  [default: today, in UTC]",
)
@SIGNERS
@ORIGINALS
@JSON
def leaderboard(
    entries: Path,
    out: Path,
    url: str,
    contact: str,
    about: Path | None,
    licence: str,
    title: str,
    today: datetime.datetime | None,
    allowed_signers: Path | None,
    originals: Path | None,
    as_json: bool,
) -> None:
    """Make a leaderboard of ENTRIES: a folder of static pages that needs no server and no network.

    Each entry is checked first, as `mixmark check` does. An entry that breaks a rule is listed on stderr with its
    reasons and is not on the board, or without a rank if another entry holds the same run and --originals does not say
    whose it is. The exit code then is 1, and the site holds the other entries.

    Example: mixmark leaderboard submissions/entries --out site
    """
    from mixmark.submissions import check as checking
    from mixmark.submissions.board.row import SCHEMES
    from mixmark.submissions.board.site import build

    if url and not url.startswith(SCHEMES):
        raise UsageError(f"{url} is no address of a site", "give one that begins with https:// to --url")
    if contact and not contact.startswith(SCHEMES) and not re.fullmatch(r"[^\s@:]+@[^\s@:]+", contact):
        raise UsageError(f"{contact} is no address", "give an e-mail address, or a page that begins with https://")
    day = (today or datetime.datetime.now(datetime.UTC)).date()
    told = {
        "contact": contact,
        "licence": licence,
        "about": about.read_text("utf-8", "replace").strip() if about else "",
    }
    site = _site(title, url and url.rstrip("/") + "/", day, told)
    folders = checking.find(entries) if any(path.is_dir() for path in entries.iterdir()) else []
    verdicts = checking.check(folders, allowed_signers, originals=originals)
    accepted = {
        verdict.entry.permanent: folder for verdict, folder in zip(verdicts, folders, strict=True) if verdict.entry
    }
    rejected = [verdict for verdict in verdicts if verdict.entry is None]
    for verdict in verdicts:
        _print_problems(verdict)
    boards = build(
        site,
        [verdict.entry for verdict in verdicts if verdict.entry is not None],
        out,
        lambda entry: _reports(accepted[entry.permanent], entry),
    )
    page = out / "index.html"
    if as_json:
        print_json(
            {
                "page": str(page),
                "entries": len(accepted),
                "boards": [board.key.id for board in boards],
                "rejected": [verdict.model_dump(mode="json") for verdict in rejected],
            }
        )
    else:
        click.echo(f"{counted(len(accepted), 'entry')} on {counted(len(boards), 'board')}: {page}")
    sys.exit(1 if any(verdict.problems for verdict in verdicts) else 0)


def _site(title: str, url: str, today: datetime.date, told: Mapping[str, str]) -> Website:
    from mixmark.harness.plugins import registry
    from mixmark.harness.worker.plugin_process import suite_of
    from mixmark.submissions.board.row import Website

    suites = {}
    for name, plugin in registry.find("suites").items():
        try:
            suites[name] = suite_of(plugin).describe()
        except MixmarkError as error:
            click.echo(
                f"mixmark: the suite {plain(name)} does not load, so no entry is stale because of it: {error}", err=True
            )
    return Website(
        title=plain(title) or "Mixmark leaderboard",
        url=plain(url),
        today=today,
        versions={name: suite.version for name, suite in suites.items()},
        unit_words={name: suite.unit_names.work for name, suite in suites.items()},
        **told,
    )


def _reports(folder: Path, entry: Entry) -> Mapping[str, str]:
    """The report page of each result of an entry, by its file name."""
    from mixmark.harness.judge import references
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.plugins import registry
    from mixmark.harness.record import store

    report = registry.find("reporters")["html"].load()
    found = {}
    for number, path in enumerate(store.results_of(folder), 1):
        others = tuple(known for known in references.published() if known.created_utc != entry.ended_utc)
        found[f"report-{number}.html"] = report(judge_stored(store.open(path), others))
    return found


def _print_problems(verdict: EntryVerdict) -> None:
    state = "is rejected" if verdict.entry is None else "has no rank"
    for problem in verdict.problems:
        where = f" {plain(problem.where)}:" if problem.where else ""
        click.echo(f"{plain(verdict.path)} {state}: {problem.code}:{where} {plain(problem.message)}", err=True)
