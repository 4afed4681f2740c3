"""Makes an entry of result folders: removes private texts, adds the declaration, the manifest and a signature."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mixmark.harness.contracts.errors import MixmarkError, ResultError, UsageError, explained
from mixmark.harness.contracts.schema import Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.machine.suite_claims import judge_stored
from mixmark.harness.plan import mixes
from mixmark.harness.record import store
from mixmark.harness.record.files import sha256_of
from mixmark.harness.resources.files import foreign
from mixmark.submissions import check, files, redact
from mixmark.submissions.conclude import Contribution, contribution_of, entry
from mixmark.submissions.entry import (
    DECLARATION,
    MANIFEST,
    RESULTS,
    Declaration,
    EntryVerdict,
    Manifest,
    Signed,
    identity,
    is_slug,
)
from mixmark.submissions.redact import Redactor, Removed


@dataclass(frozen=True)
class Bundle:
    """An entry that was made, or would be."""

    folder: Path
    """The folder of the entry, whether it was written or not."""
    verdict: EntryVerdict
    """The outcome of the check. A rejected entry was not written."""
    manifest: Manifest
    removed: tuple[Removed, ...]
    left: Mapping[str, Collection[str]]
    """The texts of plugins, of the system and of the user that stay, by the name of their field."""
    kept: tuple[str, ...]
    """The names of hosts and users that were not removed, because they are also words of the results."""
    former: Path | None
    """Where the entry that this one replaced lies now. None if there was none, or if it had the same results."""


def bundle(
    results: Sequence[Path],
    declaration: Declaration,
    out: Path,
    words: Iterable[tuple[str, str]] = (),
    key: Path | None = None,
    dry_run: bool = False,
    replace: bool = False,
    allowed: Path | None = None,
    originals: Path | None = None,
    before: Callable[[Bundle], object] = lambda made: None,
) -> Bundle:
    """Makes an entry below `out` and checks it, beside the entries that share a file with it; writes nothing if the
    check rejects it, or in a dry run.

    words: (text, its kind) of texts to remove beside those that look private. key: the SSH key to sign with.
    replace: whether an existing entry is replaced, which stays as its history. allowed, originals: as `check.check`
    takes them. before: is called before anything is written, and may raise. Raises MixmarkError.
    """
    found = _opened(results)
    redactor, kept = _redactor([result for result, _ in found], words)
    redactor.leave(declaration)
    if not dry_run:
        with explained(f"cannot make the folder {out}", "give another --out"):
            out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mixmark-", dir=None if dry_run else out) as scratch:
        home = Path(scratch).resolve() / "made"
        contributions = [
            _added(home / RESULTS / str(number), result, path, redactor)
            for number, (result, path) in enumerate(found, 1)
        ]
        path = entry(declaration, contributions, Signed(state="none")).path
        folder, target = home.parent / path, out / path
        if target.exists() and not (replace or dry_run):
            raise UsageError(f"{target} exists", "give --replace, or another --system")
        folder.parent.mkdir(parents=True)
        home.rename(folder)
        (folder / DECLARATION).write_bytes(files.written(declaration))
        manifest = files.write_manifest(folder)
        if key is not None:
            files.sign(folder, key)
        verdict, *_ = check.check([folder, *_sharing(out, target, manifest)], allowed, originals=originals)
        made = Bundle(target, verdict, manifest, redactor.removed, redactor.left, kept, None)
        before(made)
        if verdict.entry is not None and not dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                made = dataclasses.replace(
                    made, former=_set_aside(target, out / verdict.entry.permanent, Path(scratch))
                )
            folder.rename(target)
    return made


def _sharing(out: Path, target: Path, manifest: Manifest) -> list[Path]:
    """The other entries below `out` that hold a file of this one: they may hold the same run. Manifests alone are read,
    since to check a whole board takes an hour. An entry whose manifest cannot be read is none."""
    own, sharing = {file.sha256 for file in manifest.files}, []
    for path in sorted(out.glob(f"[!.]*/*/*/{MANIFEST}")):
        with suppress(OSError), foreign(out, path.relative_to(out).as_posix(), files.MAX_DOCUMENT_BYTES) as file:
            if path.parent != target and own.intersection(
                re.findall("[0-9a-f]{64}", file.read().decode(errors="replace"))
            ):
                sharing.append(path.parent)
    return sharing


def _set_aside(target: Path, same: Path, scratch: Path) -> Path | None:
    """Moves the entry in a folder to its permanent one, and returns that; removes it if it holds no result, or the same
    results as the new entry, whose permanent folder is `same`."""
    sums = [home / store.SUMS for home in store.results_of(target) if (home / store.SUMS).is_file()]
    permanent = target.with_name(f"{target.name}-{identity(map(sha256_of, sums))}")
    if not sums or permanent == same or permanent.exists():
        target.rename(scratch / "replaced")
        return None
    return target.rename(permanent)


def _opened(paths: Sequence[Path]) -> list[tuple[Result, Path]]:
    """The results that can be entered, the oldest first. Raises ResultError."""
    found = sorted(((store.open(path), path) for path in paths), key=lambda pair: pair[0].created_utc)
    for result, path in found:
        if result.mix is not None and not is_slug(result.mix.name):
            raise ResultError(f"{path} has a mix that cannot name a folder: {result.mix.name[:100]}", "rename the mix")
        if not result.finished:
            raise ResultError(f"{path} was interrupted", f"mixmark run --resume {path} finishes it")
        if result.mix is None:
            mix, lacking = mixes.lacking(result.tier, {record.route.suite for record in result.records})
            also = f"{mix} also needs {', '.join(lacking)}" if lacking else f"run it without --mix none, for {mix}"
            raise ResultError(
                f"{path} has no score: its run had no mix: {also}",
                "measure all suites of the mix; --adapter torch adds an adapter that runs them",
            )
    return found


def _redactor(results: Sequence[Result], words: Iterable[tuple[str, str]]) -> tuple[Redactor, tuple[str, ...]]:
    """The redactor of the words and of the hosts' names, and the words that it leaves: those that are also words of the
    results."""
    known = frozenset[str]().union(*map(redact.words_of, results))
    names = (word for result in results for word in redact.host_names(result))
    asked = list(dict.fromkeys((text, kind) for text, kind in (*words, *names) if text))
    kept = tuple(dict.fromkeys(text for text, _ in asked if text.lower() in known))
    return Redactor([word for word in asked if word[0] not in kept]), kept


def _added(folder: Path, result: Result, source: Path, redactor: Redactor) -> Contribution:
    """Writes a result without its private texts, and judges the written one."""
    before = judge_stored(result)
    if before.contradiction:
        raise ResultError(f"{source} contradicts itself: {before.contradiction}")
    if before.score is None or before.score.problems:
        raise ResultError(f"{source} has no score", before.score.headline if before.score else "it has no mixed run")
    clean = redactor.result(result)
    _write(folder, clean, result, source.parent if source.name == "result.json" else source)
    after = judge_stored(store.open(folder))
    if _figures(after) != _figures(before):
        message = f"{source} has other figures without the names of hosts and users"
        raise MixmarkError(message, "this is a mistake of Mixmark: report it")
    return contribution_of(int(folder.name), after, sha256_of(folder / store.SUMS))


def _write(folder: Path, clean: Result, result: Result, source: Path) -> None:
    """Writes a result as a run does, with the audited outputs of the original."""
    header = clean.model_copy(update={"records": (), "meterings": (), "finished": False, "resumed": ()})
    keeper = store.create(folder, header)
    for new, old in zip(clean.records, result.records, strict=True):
        outputs = source / "raw" / f"{old.key}.outputs.npz"
        if new.audit is not None and new.audit.feeds:
            shutil.copyfile(outputs, folder / "raw" / f"{new.key}.outputs.npz")
        keeper.append(new)
    for metering in clean.meterings:
        keeper.meter(metering)
    keeper.finish(clean)


def _figures(assessment: Assessment) -> object:
    found = assessment.score
    return found and (found.mixes_per_hour, found.mixes_per_kwh, found.grade, found.weight_class, found.boundary)
