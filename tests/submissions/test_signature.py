"""A signature by OpenSSH: it fits, it does not, or its key is not known."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.submissions import files
from mixmark.submissions.entry import SIGNATURE
from tests.submissions.made import edited, verdict

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="no ssh-keygen: apt-get install openssh-client"
)
ORGANISATION = "acme-sohne"


def key_of(folder: Path, name: str) -> Path:
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        key_of(folder, name)
    return folder


def allowed(keys: Path, *lines: tuple[str, str]) -> Path:
    """A list of allowed signers: (principal, name of the key)."""
    path = keys / "allowed"
    path.write_text("".join(f"{who} {(keys / f'{name}.pub').read_text()}" for who, name in lines))
    return path


@pytest.mark.parametrize(
    ("signed", "signers", "state", "signer"),
    [
        (True, ((ORGANISATION, "ours"), ("borealis", "theirs")), "good", ORGANISATION),
        (True, ((f"jane@{ORGANISATION}", "ours"),), "good", f"jane@{ORGANISATION}"),
        (True, None, "not verified", ""),
        (False, ((ORGANISATION, "ours"),), "none", ""),
    ],
)
def test_a_signature_is_optional_and_names_its_signer(
    folder: Path, keys: Path, signed: bool, signers: tuple[tuple[str, str], ...] | None, state: str, signer: str
) -> None:
    if signed:
        files.sign(folder, keys / "ours")
    found = verdict(folder, allowed=allowed(keys, *signers) if signers else None).entry
    assert found is not None and (found.signed.state, found.signed.signer) == (state, signer)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([(ORGANISATION, "theirs")], "a key that is not in the list"),
        ([("borealis", "ours")], "it is signed by borealis, who does not sign for acme-sohne"),
        ([("not-acme-sohne", "ours")], "who does not sign for acme-sohne"),
    ],
)
def test_a_signature_of_another_party_is_rejected(
    folder: Path, keys: Path, lines: list[tuple[str, str]], message: str
) -> None:
    files.sign(folder, keys / "ours")
    (problem,) = verdict(folder, allowed=allowed(keys, *lines)).problems
    assert problem.code == "E-SIGNED" and message in problem.message


def test_a_manifest_that_was_changed_after_it_was_signed_is_rejected(folder: Path, keys: Path) -> None:
    files.sign(folder, keys / "ours")
    edited(folder, notes="better")
    (problem,) = verdict(folder, allowed=allowed(keys, (ORGANISATION, "ours"))).problems
    assert (problem.code, problem.message) == ("E-SIGNED", "its signature does not fit its manifest")


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN SSH SIGNATURE-----\n\n-----END SSH SIGNATURE-----\n"])
def test_a_signature_that_is_none_is_rejected(folder: Path, keys: Path, content: bytes) -> None:
    (folder / SIGNATURE).write_bytes(content)
    found = verdict(folder, allowed=allowed(keys, (ORGANISATION, "ours")))
    assert [problem.code for problem in found.problems] == ["E-SIGNED"]


def test_a_file_that_is_no_key_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MixmarkError, match="is not a file"):
        files.sign(folder, tmp_path / "nothing")
    (tmp_path / "key").write_text("x")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(MixmarkError, match="ssh-keygen cannot sign"):
        files.sign(folder, tmp_path / "key")
