"""The report of a result at the end of a command."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import click

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.plugins.manifest import BUILT_IN
from mixmark.harness.plugins.options import of_machines
from mixmark.harness.plugins.options import options as of_plugins

if TYPE_CHECKING:
    from mixmark.harness.judge.assessment import Assessment

VERBOSE = click.option("--verbose", is_flag=True, help="Print all figures, findings and notes too.")
PAGE = "report.html"
"""The page that a run writes into its folder."""


def form_of(format_: str | None, verbose: bool, as_json: bool) -> str:
    """The form that --format, --verbose and --json choose. Raises UsageError if they contradict each other."""
    asked = {"--json": "json"} if as_json else {}
    asked |= {"--verbose": "full"} if verbose else {}
    asked |= {f"--format {format_}": format_} if format_ else {}
    if len({*asked.values()}) > 1:
        raise UsageError(f"{' and '.join(asked)} ask for different forms", "leave all but one of them away")
    return next(iter(asked.values()), "console")


def result_or_newest(result: Path | None) -> Path:
    """The given result folder, or the newest one here, which is named on stderr. Raises UsageError if there is none."""
    from mixmark.harness.record import store

    if result is None:
        result = store.newest(store.RESULTS)
        if result is None:
            raise UsageError("there is no result in ./results", "name a result folder, or make one: mixmark run")
        click.echo(f"newest result: {result}", err=True)
    return result


def write_page(assessment: Assessment, folder: Path) -> None:
    """Writes the page into the result folder, or says on stderr why it could not be written. Nothing is lost then:
    `mixmark report` makes the page again."""
    from mixmark.harness.plugins import registry
    from mixmark.harness.record.files import replaced

    page = folder / PAGE
    try:
        with replaced(page) as file:
            file.write(registry.find("reporters")["html"].load()(assessment).encode())
    except (OSError, MixmarkError) as error:
        click.echo(f"The page could not be written to {page}: {error}", err=True)


REDACTED = "<([a-z]+)>"
"""A path or an address of a command, which a result does not hold."""


def print_end(assessment: Assessment, folder: Path, err: bool = False) -> None:
    """Prints where the page or else the result lies, and the command to go on with. err: on stderr."""
    page = folder / PAGE
    click.echo(f"page    {page}" if page.is_file() else f"result  {folder}", err=err)
    if assessment.next:
        click.echo(f"next    {assessment.next}", err=err)


def with_next(assessment: Assessment, folder: Path, words: Sequence[str] = ()) -> Assessment:
    """The assessment with the command that follows. words: the command that made the result, whose record has no
    paths."""
    return assessment if assessment.result.live else replace(assessment, next=next_command(assessment, folder, words))


def next_command(assessment: Assessment, folder: Path, words: Sequence[str] = ()) -> str:
    """The command that makes the most of a result that is over. words: see `with_next`."""
    from mixmark.harness.judge.findings import is_much

    result, verdict, score = assessment.result, assessment.verdict.word, assessment.score
    words = words or result.command or ("run",)
    in_full = following = ["report", str(folder), "--verbose"]
    if verdict == "unfinished":
        models = [name for own in of_plugins("models").values() for option in own for name in option.opts]
        following = ["run", "--resume", str(folder), *of_devices(words, "--mix", *models)]
    elif verdict == "invalid":
        following = in_full
    elif verdict == "partial":
        following = _again(words, "--mix", "none")
    elif verdict == "disturbed":
        one_run = result.preset == "quick" and result.tier != "smoke" and score is not None
        following = _again(words, *(("--preset", "ranked") if one_run else ()), "--wait-idle", "60")
    elif result.tier == "smoke":
        following = _again(words, "--tier", "edge")
    elif result.mix is None and not result.experiments:
        following = ["run", *of_devices(words)]
    elif score and score.grade == "indicative" and all(map(is_much, score.unranked)):
        following = _again(words, "--preset", "ranked")
    elif score and score.grade != "indicative":
        asked = {name: getattr(resolve_name(spec), "publishes", None) for name, spec in BUILT_IN["commands"].items()}
        publishing = (name for name, publishes in asked.items() if publishes and publishes(folder))
        following = next(([name, str(folder)] for name in publishing), in_full)
    named = (re.sub(REDACTED, lambda name: name[1].upper(), word) for word in following)
    left_out = " and ".join(sorted({name.upper() for name in re.findall(REDACTED, " ".join(following))}))
    return shlex.join([_program(), *named]) + (f"  # {left_out}: as you typed, a result has none" if left_out else "")


def _program() -> str:
    """`mixmark`, or the path by which it was called if no shell finds it by that name."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "mixmark" and not shutil.which("mixmark") else "mixmark"


def of_devices(command: Sequence[str], *more: str) -> Iterator[str]:
    """The options that decide which devices a run finds, and more: a resumed run needs them again."""
    names = {"--adapter", "--config", "--split-cpu", *(name for option in of_machines() for name in option.opts), *more}
    for at, word in enumerate(command):
        name, has_value, _ = word.partition("=")
        if name in names:
            yield from command[at : at + 1 + (not has_value)]


def _again(command: Sequence[str], *options: str) -> list[str]:
    """The command of a run with other values of some options, and a new folder. options: names and values in turn."""
    words = list(command)
    for name in (*options[::2], "--out", "--resume"):
        while name in words[:-1]:
            at = words.index(name)
            del words[at : at + 2]
        words = [word for word in words if not word.startswith(f"{name}=")]
    return [*words, *options]
