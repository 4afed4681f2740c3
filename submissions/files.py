"""An entry's own files: JSON in one form, the manifest that lists all files with their hashes, and its signature.

OpenSSH's `ssh-keygen` signs and verifies, offline: a list of allowed signers says who may sign.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Fact
from mixmark.harness.contracts.text import plain
from mixmark.harness.plan.mixes import words_of
from mixmark.harness.record.files import sha256_of
from mixmark.harness.resources.files import regular
from mixmark.submissions.entry import MANIFEST, SIGNATURE, File, Manifest, Signed

AFact = TypeVar("AFact", bound=Fact)
NAMESPACE = "mixmark-entry"
TIMEOUT_S = 120.0  # a person may have to type a passphrase or touch a key
MAX_DOCUMENT_BYTES = 8 << 20  # of a declaration or a manifest
MAX_SIGNATURE_BYTES = 16_384


def written(fact: Fact) -> bytes:
    """The bytes of a declaration or a manifest."""
    return (json.dumps(fact.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(kind: type[AFact], content: bytes) -> AFact:
    """The facts that a file holds. Raises ValueError if they are not valid, or if the bytes differ from what `written`
    makes: a repeated name could show a reader another value than a check."""
    try:
        fact = kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise ValueError(words_of(error)) from error
    if written(fact) != content:
        raise ValueError("its layout, the order of its names or a number is not as Mixmark writes it")
    return fact


def listed(folder: Path, name: str) -> File:
    """A file as a manifest lists it."""
    path = folder / name
    return File(path=name, size_bytes=path.stat().st_size, sha256=sha256_of(path))


def write_manifest(folder: Path) -> Manifest:
    """Writes the manifest of the files in an entry's folder, and returns it."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    manifest = Manifest(files=tuple(listed(folder, name) for name in names if name not in (MANIFEST, SIGNATURE)))
    (folder / MANIFEST).write_bytes(written(manifest))
    return manifest


def hashes(path: Path) -> frozenset[tuple[str, str]]:
    """(SHA-256, path of the file) of each line that `sha256sum` wrote. Raises UsageError if a line is another one."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", "docs/capabilities/submissions/submit.md shows such a file"
        ) from error
    found = [re.fullmatch(r"([0-9a-f]{64}) [ *](.+)", line) for line in lines]
    if None in found:
        number = found.index(None) + 1
        raise UsageError(
            f"{path}: line {number} is none of sha256sum", "docs/capabilities/submissions/submit.md shows such a file"
        )
    return frozenset((match[1], match[2]) for match in found if match)


def sign(entry: Path, key: Path) -> None:
    """Writes the signature of an entry's manifest. Raises MixmarkError."""
    if not key.is_file():
        raise UsageError(f"{key} is not a file", "give the path of an SSH key, for example ~/.ssh/id_ed25519")
    done = _ssh("-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(entry / MANIFEST), interactive=True)
    if done.returncode or not (entry / SIGNATURE).is_file():
        raise MixmarkError(f"ssh-keygen cannot sign with {key}: {plain(done.stderr, 200)}", "try another --sign KEY")


def verified(entry: Path, organisation: str, allowed: Path | None) -> Signed:
    """The state of an entry's signature. Raises ValueError if it is bad, or if its signer does not belong to the
    organisation: the signer is the name of the organisation's folder, or ends in @ and this name.

    allowed: a file as ssh-keygen's manual describes it under ALLOWED SIGNERS. If None, nothing is verified.
    """
    if not (entry / SIGNATURE).exists():
        return Signed(state="none")
    if allowed is None:
        return Signed(state="not verified")
    common = ("-n", NAMESPACE, "-s", str(entry / SIGNATURE), "-f", str(allowed))
    found = _ssh("-Y", "find-principals", *common[2:])
    signers = [signer for signer in found.stdout.splitlines() if signer]
    if found.returncode or not signers:
        raise ValueError("it is signed by a key that is not in the list of allowed signers")
    ours = [signer for signer in signers if signer == organisation or signer.endswith(f"@{organisation}")]
    if not ours:
        raise ValueError(f"it is signed by {plain(signers[0], 80)}, who does not sign for {organisation}")
    done = _ssh("-Y", "verify", *common, "-I", ours[0], content=regular(entry / MANIFEST, MAX_DOCUMENT_BYTES))
    if done.returncode:
        raise ValueError("its signature does not fit its manifest")
    return Signed(state="good", signer=plain(ours[0], 80))


def _ssh(*words: str, content: bytes = b"", interactive: bool = False) -> subprocess.CompletedProcess[str]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise MixmarkError("ssh-keygen is not installed", "install OpenSSH 8.0 or later, or do without signatures")
    try:
        done = subprocess.run(
            [program, *words], input=None if interactive else content, capture_output=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MixmarkError(f"ssh-keygen does not answer: {error}") from error
    texts = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)
