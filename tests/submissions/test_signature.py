"""A signature by OpenSSH: it fits, it does not, or nobody knows the key."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import MixmarkError
from mixmark.submissions import signature
from mixmark.submissions.entry import README, SIGNATURE
from tests.submissions.made import sealed, verdict

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
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


@pytest.mark.parametrize("signer", [ORGANISATION, f"jane@{ORGANISATION}"])
def test_a_good_signature_names_its_signer(folder: Path, keys: Path, signer: str) -> None:
    signature.sign(folder, keys / "ours")
    found = verdict(folder, allowed=allowed(keys, ("borealis", "theirs"), (signer, "ours")))
    assert found.entry is not None and (found.entry.signed.state, found.entry.signed.signer) == ("good", signer)


def test_without_a_list_of_signers_nothing_is_verified(folder: Path, keys: Path) -> None:
    signature.sign(folder, keys / "ours")
    found = verdict(folder)
    assert found.entry is not None and found.entry.signed.state == "not verified"


def test_an_entry_needs_no_signature(folder: Path, keys: Path) -> None:
    found = verdict(folder, allowed=allowed(keys, (ORGANISATION, "ours")))
    assert found.entry is not None and found.entry.signed.state == "none"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([(ORGANISATION, "theirs")], "a key that is not in the list"),
        ([("borealis", "ours")], "it is signed by borealis, who does not sign for acme-sohne"),
        ([("not-acme-sohne", "ours")], "who does not sign for acme-sohne"),
    ],
)
def test_a_signature_of_somebody_else_is_rejected(
    folder: Path, keys: Path, lines: list[tuple[str, str]], said: str
) -> None:
    signature.sign(folder, keys / "ours")
    (problem,) = verdict(folder, allowed=allowed(keys, *lines)).problems
    assert problem.code == "E-SIGNED" and said in problem.message


def test_a_manifest_that_was_changed_after_it_was_signed_is_rejected(folder: Path, keys: Path) -> None:
    signature.sign(folder, keys / "ours")
    (folder / README).write_bytes((folder / README).read_bytes() + b"\n")
    sealed(folder)
    (problem,) = verdict(folder, allowed=allowed(keys, (ORGANISATION, "ours"))).problems
    assert (problem.code, problem.message) == ("E-SIGNED", "its signature does not fit its manifest")


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN SSH SIGNATURE-----\n\n-----END SSH SIGNATURE-----\n"])
def test_a_signature_that_is_none_is_rejected(folder: Path, keys: Path, content: bytes) -> None:
    (folder / SIGNATURE).write_bytes(content)
    found = verdict(folder, allowed=allowed(keys, (ORGANISATION, "ours")))
    assert [each.code for each in found.problems] == ["E-SIGNED"]


def test_a_key_that_is_none_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MixmarkError, match="is not a file"):
        signature.sign(folder, tmp_path / "nothing")
    (tmp_path / "key").write_text("x")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(MixmarkError, match="ssh-keygen cannot sign"):
        signature.sign(folder, tmp_path / "key")
