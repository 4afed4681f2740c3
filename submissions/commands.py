"""The commands that make and check entries: submit, check."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli.options import JSON, Check, Placed
from mixmark.harness.cli.printing import print_json, print_table
from mixmark.harness.cli.show import result_or_newest
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.numbers import counted, filesize
from mixmark.harness.contracts.text import plain
from mixmark.harness.contracts.toml import read_toml

if TYPE_CHECKING:
    from mixmark.submissions.bundle import Bundle
    from mixmark.submissions.entry import Declaration, EntryVerdict

ENTRIES = Path("submissions/entries")
NEEDED = ("organisation", "system", "availability", "form_factor", "origin")
"""The facts that a declaration must hold."""

SIGNERS = click.option(
    "--allowed-signers",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Verify signatures by this list, as ssh-keygen's manual describes it.",
)
ORIGINALS = click.option(
    "--originals",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="List of results that are originals, if other entries hold the same runs; "
    "docs/capabilities/submissions/submit.md shows one.",
)


def _unpublished(folder: Path) -> bool:
    """Whether a result lies in no entry."""
    from mixmark.submissions.entry import DECLARATION, MANIFEST

    above = folder.resolve().parents
    return len(above) < 2 or not all((above[1] / name).is_file() for name in (DECLARATION, MANIFEST))


@click.command(cls=Placed, section="Publish", publishes=_unpublished)
@click.argument("results", nargs=-1, metavar="[RESULTS]...", type=click.Path(exists=True, path_type=Path))
@click.option("--org", "organisation", metavar="NAME", help="Organisation that enters the system.")
@click.option("--system", metavar="NAME", help="Name of the system, as its maker calls it.")
@click.option("--availability", metavar="WORD", help="Whether the system is available, a preview or research.")
@click.option("--form-factor", metavar="WORD", help="Form factor: board, laptop, desktop, workstation, rack server, …")
@click.option("--origin", metavar="TEXT", help="Makers and countries of hardware and software, as declared.")
@click.option("--meter", metavar="TEXT", help="Make and model of the meter; a score at the wall needs it.")
@click.option("--licence", metavar="TEXT", help="Licences of the software that ran, as declared.")
@click.option("--provisioned-watts", type=int, metavar="W", help="Power for which the site of the system is equipped.")
@click.option(
    "--declaration",
    "declared",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with these facts and more, such as the price. Flags win.",
)
@click.option("--redact", multiple=True, metavar="WORD", help="Remove this word, too. Repeatable.")
@click.option("--sign", "key", metavar="KEY", type=click.Path(path_type=Path), help="Sign with this SSH key.")
@click.option(
    "--out",
    default=ENTRIES,
    show_default=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder of all entries.",
)
@click.option(
    "--replace", is_flag=True, help="Replace an entry of the same system and mix, which stays as its history."
)
@click.option("--dry-run", is_flag=True, help="Show the entry and write nothing.")
@SIGNERS
@ORIGINALS
def submit(
    results: tuple[Path, ...],
    declared: Path | None,
    redact: tuple[str, ...],
    key: Path | None,
    out: Path,
    replace: bool,
    dry_run: bool,
    allowed_signers: Path | None,
    originals: Path | None,
    **flags: Any,
) -> None:
    """Make an entry for a board of one or more results of one machine.

    Texts that look like names of hosts and users, paths, addresses and serial numbers are removed and listed; all other
    texts that are not Mixmark's own are shown, and a terminal asks before they are written. The entry holds the raw
    samples, from which a check computes every figure. It is checked before it is written, also against the other
    entries in --out. Facts that no measurement shows are read from flags and a TOML file, or asked on a terminal.
    Without RESULTS it is the newest in ./results.

    \b
    Example: mixmark submit results/X --org Acme --system "Acme One" --dry-run
    """
    from mixmark.submissions.bundle import bundle
    from mixmark.submissions.redact import own_names

    results = results or (result_or_newest(None),)
    declaration = _declaration(declared, flags)
    words = [*own_names(), *((word, "word") for word in redact)]

    def shown(made: Bundle) -> None:
        _show(made)
        if made.verdict.entry is not None and not dry_run and asks():
            click.confirm("Publish these texts as they stand?", abort=True)

    made = bundle(results, declaration, out, words, key, dry_run, replace, allowed_signers, originals, shown)
    _end(made, dry_run)
    sys.exit(1 if made.verdict.problems else 0)


@click.command(cls=Check, recognises=os.path.isdir)
@click.argument("paths", nargs=-1, required=True, metavar="PATHS...", type=click.Path(path_type=Path))
@click.option("--markdown", is_flag=True, help="Print the verdict as Markdown, for a pull request.")
@click.option(
    "--reaudit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Repeat the audits of N entries, chosen at random. Takes minutes.",
)
@SIGNERS
@ORIGINALS
@JSON
def check(
    paths: tuple[Path, ...],
    markdown: bool,
    reaudit: int | None,
    allowed_signers: Path | None,
    originals: Path | None,
    as_json: bool,
) -> None:
    """Check entries of a board: compute every figure from raw samples, and reject an entry that breaks a rule.

    A PATH is the folder of one entry, or one that holds entries. The exit code is 1 if any entry breaks a rule.
    docs/capabilities/submissions/rules.md lists the rules and their codes.

    Example: mixmark check submissions/entries --markdown
    """
    from mixmark.submissions import check as checking

    if as_json and markdown:
        raise UsageError("--json and --markdown ask for different forms", "leave one of them away")
    folders = list(dict.fromkeys(entry for path in paths for entry in checking.find(path)))
    verdicts = checking.check(folders, allowed_signers, originals=originals)
    if reaudit is not None:
        verdicts = checking.reaudit(verdicts, folders, reaudit)
    broken = sum(bool(verdict.problems) for verdict in verdicts)
    if as_json:
        rejected = sum(verdict.entry is None for verdict in verdicts)
        entries = [{"valid": not verdict.problems, **verdict.model_dump(mode="json")} for verdict in verdicts]
        print_json({"entries": entries, "rejected": rejected})
    else:
        for verdict in verdicts:
            _print_verdict(verdict, markdown)
        click.echo(f"Entries that obey all rules: {len(verdicts) - broken} of {len(verdicts)}.")
    sys.exit(1 if broken else 0)


def _declaration(path: Path | None, flags: dict[str, Any]) -> Declaration:
    """The declaration of a file and of flags; missing facts are asked on a terminal."""
    from pydantic import ValidationError

    from mixmark.harness.plan.mixes import words_of
    from mixmark.submissions.entry import Declaration

    declared: dict[str, Any] = {}
    if path is not None:
        declared = read_toml(path, "the declaration", "docs/capabilities/submissions/submit.md shows such a file")
    declared |= {name: value for name, value in flags.items() if value is not None}
    options = {option.name: option for option in submit.params if isinstance(option, click.Option)}
    missing = [options[name] for name in NEEDED if name not in declared]
    if missing and not asks():
        named = ", ".join(option.opts[0] for option in missing)
        raise UsageError(f"an entry needs {named}", "give them as flags, or in a file by --declaration")
    for option in missing:
        declared[str(option.name)] = click.prompt(str(option.help).rstrip("."))
    try:
        return Declaration.model_validate(declared)
    except ValidationError as error:
        hint = "docs/capabilities/submissions/submit.md lists what a declaration holds"
        raise UsageError(words_of(error), hint) from error


def asks() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()


def _show(made: Bundle) -> None:
    _print_verdict(made.verdict, False)
    rows = [(removed.what, plain(removed.old, 60), removed.new, str(removed.times)) for removed in made.removed]
    print_table(("removed", "was", "is", "times"), rows, "Nothing private was found in the results.")
    for word in made.kept:
        click.echo(f"{plain(word)} is the name of this host or user and also a word of the results, so it stays.")
    click.echo()
    files = made.manifest.files
    print_table(("file", "bytes"), [(file.path, str(file.size_bytes)) for file in files], "")
    click.echo()
    texts = [(name, "; ".join(map(plain, each))) for name, each in made.left.items()]
    print_table(("field", "texts of plugins, of the system and of you, which stay"), texts, "")
    click.echo()


def _end(made: Bundle, dry_run: bool) -> None:
    files = made.manifest.files
    size = f"{counted(len(files), 'file')}, {filesize(sum(file.size_bytes for file in files))}"
    if made.verdict.entry is None:
        click.echo("Nothing was written.")
    elif dry_run:
        click.echo(f"A dry run: {made.folder} would have {size}.")
    else:
        click.echo(f"{made.folder} has {size}. Next: mixmark check {made.folder}")
    if made.former:
        click.echo(f"The entry that it replaces is its history: {made.former}. Remove it if nobody may read it.")


def _print_verdict(verdict: EntryVerdict, markdown: bool) -> None:
    from mixmark.reporters import document
    from mixmark.submissions import verdict as shown

    click.echo((document.markdown if markdown else document.console)(shown.document(verdict)))
