"""What a forger may try with an entry. Each attack is rejected, or changes no class and no figure."""

from __future__ import annotations

import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import SCHEMA, Completions, Metering, Record, Result, Samples
from mixmark.harness.judge.judgement import judge
from mixmark.harness.record import store
from mixmark.submissions import bundle, check, form
from mixmark.submissions.conclude import contribution_of
from mixmark.submissions.entry import CLAIM, DECLARATION, MANIFEST, README, Claim
from tests.fakes.folders import rehash, write_hashes
from tests.submissions.made import DECLARED, ITEM, codes, concluded, declared, edited, rewritten, sealed, verdict

RESULT = "results/1/result.json"
SUMS = "results/1/SHA256SUMS"


def mixed_key(folder: Path) -> str:
    """The raw file of a record of the first mixed run."""
    return next(each.name for each in (folder / "results/1/raw").glob("mix1.dlrm.*[!s].npz"))


def test_one_changed_digit_in_any_file_is_found(folder: Path) -> None:
    names = [each.relative_to(folder).as_posix() for each in sorted(folder.rglob("*")) if each.is_file()]
    for name in names:
        path = folder / name
        content = path.read_bytes()
        at = next((at for at, byte in enumerate(content) if chr(byte).isdigit()), len(content) // 2)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert codes(folder), name
        path.write_bytes(content)
    assert not codes(folder)


def test_a_figure_that_is_better_in_the_claim_the_page_and_the_manifest_is_not_believed(folder: Path) -> None:
    claim = json.loads((folder / CLAIM).read_text())
    better = claim["mixes_per_kj"]["value"] * 1.001
    path = folder / README
    path.write_text(path.read_text().replace(f"MX: {claim['mixes_per_kj']['value']:.3g}", f"MX: {better:.3g}"))
    edited(folder, CLAIM, mixes_per_kj=claim["mixes_per_kj"] | {"value": better})
    assert "E-CLAIM" in codes(folder)


@pytest.mark.parametrize(
    ("claimed", "named"),
    [
        ({"division": "closed"}, "division"),
        ({"tuning": "base"}, "tuning"),
        ({"grade": "official"}, "grade"),
        ({"ranked": True}, "ranked"),
        ({"weight_class": 4}, "weight_class"),
        ({"boundary": "wall"}, "boundary"),
        ({"level": 3}, "level"),
        ({"runs": 5}, "runs"),
        ({"watts": 1.0}, "watts"),
        ({"price": {"amount": "1.00", "currency": "EUR"}}, "price"),
        ({"price": {"amount": "2599.00", "currency": "USD"}}, "price"),
        ({"results": ["0" * 64]}, "results"),
        ({"mix": "two", "tier": "edge"}, "tier"),
        ({"mixes_per_s": {"value": 1.0, "low": 0.9, "high": 1.1}}, "mixes_per_s"),
    ],
)
def test_no_class_and_no_figure_can_be_forged(folder: Path, claimed: dict[str, Any], named: str) -> None:
    edited(folder, CLAIM, **claimed)
    claim = form.read(Claim, (folder / CLAIM).read_bytes())
    folder = folder.rename(folder.with_name(claim.folder))  # the forger keeps the rule of the place
    assert any(each.code == "E-CLAIM" and each.message.startswith(named) for each in verdict(folder).problems)


def changed(result: Result, key: str, **columns: Callable[[Any], Any]) -> Result:
    """The result with other stamps of one record."""

    def one(record: Record) -> Record:
        done = record.completions
        if record.key != key or done is None:
            return record
        names = ("due_ns", "issued_ns", "ends", "yielded_ns", "units")
        values = {name: columns.get(name, lambda same: same)(getattr(done, name)) for name in names}
        return record.model_copy(update={"completions": Completions(**values)})

    return result.model_copy(update={"records": tuple(map(one, result.records))})


def test_samples_of_an_impossible_order_are_rejected(folder: Path) -> None:
    path = folder / "results/1/raw" / mixed_key(folder)
    with np.load(path) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    columns["yielded_ns"] = columns["yielded_ns"][::-1]
    np.savez(path, **columns)
    rehash(folder / "results/1", json.loads((folder / RESULT).read_text()))
    sealed(folder)
    assert codes(folder) == {"E-RESULT"}


def test_samples_of_an_impossible_rate_are_rejected(folder: Path) -> None:
    """Feeds that finish faster than they can: all within the first second of the window."""
    key = mixed_key(folder).removesuffix(".npz")

    def early(at: Any) -> Any:
        return at[0] + (at - at[0]) // 20

    def change(result: Result) -> Result:
        return changed(result, key, due_ns=early, issued_ns=early, yielded_ns=early)

    rewritten(folder, change)
    sealed(folder)
    assert codes(folder) == {"E-VALID", "E-SCORE"}


def test_units_that_were_never_done_are_rejected(folder: Path) -> None:
    key = mixed_key(folder).removesuffix(".npz")
    rewritten(folder, lambda result: changed(result, key, units=lambda units: units * 2))
    sealed(folder)
    assert codes(folder) == {"E-VALID", "E-SCORE"}


def without_run(result: Result, name: str) -> Result:
    """The result without a mixed phase and all that was measured of it."""
    return result.model_copy(
        update={
            "phases": tuple(each for each in result.phases if each.name != name),
            "records": tuple(each for each in result.records if each.phase != name),
            "meterings": tuple(each for each in result.meterings if each.phase != name),
        }
    )


def test_a_run_that_is_dropped_from_the_middle_is_missed(folder: Path) -> None:
    rewritten(folder, lambda result: without_run(result, "mix1"))
    sealed(folder)
    assert codes(folder) == {"E-RESULT"}


def test_a_run_that_is_dropped_at_the_end_costs_the_grade(folder: Path) -> None:
    before = verdict(folder).entry
    rewritten(folder, lambda result: without_run(result, "mix2"))
    sealed(folder)
    assert codes(folder) >= {"E-CLAIM"}
    concluded(folder)
    after = verdict(folder).entry
    assert before is not None and after is not None
    assert "1 of 5 runs" in after.reasons["grade"]
    assert (before.claim.runs, after.claim.runs) == (2, 1)


def test_a_suite_that_is_left_out_of_the_mix_is_missed(folder: Path) -> None:
    def change(result: Result) -> Result:
        records = tuple(
            each for each in result.records if not (each.scenario == "mixed" and each.route.suite == "resnet50")
        )
        return result.model_copy(update={"records": records})

    rewritten(folder, change)
    sealed(folder)
    assert codes(folder) & {"E-RESULT", "E-SCORE", "E-VALID"}


def test_the_energy_of_another_run_is_rejected(folder: Path) -> None:
    """The second mixed run is given the samples of the first, moved in time."""

    def noisy(metering: Metering, seed: int) -> Metering:
        rng = np.random.default_rng(seed)
        samples = {
            id: Samples(each.before_ns, each.after_ns, each.values + np.cumsum(rng.random(len(each.values))) * 0.01)
            for id, each in metering.samples.items()
        }
        return metering.model_copy(update={"samples": samples})

    def honest(result: Result) -> Result:
        meterings = tuple(noisy(each, seed) for seed, each in enumerate(result.meterings))
        return result.model_copy(update={"meterings": meterings})

    rewritten(folder, honest)
    concluded(folder)
    assert codes(folder) == set()
    fingerprints = contribution_of(1, judge(store.open(folder / "results/1")), "").fingerprints
    named = {name.rpartition(" ")[2] for _, name in fingerprints if name.startswith("the samples of")}
    assert named == {"mix1", "mix2"}  # the weight classes of one run have the other phases in common

    def forged(result: Result) -> Result:
        *others, first, second = result.meterings
        samples = {}
        for id, each in second.samples.items():
            count = min(len(each.values), len(first.samples[id].values))
            values = first.samples[id].values[:count]
            samples[id] = Samples(each.before_ns[:count], each.after_ns[:count], values - values[0] + each.values[0])
        second = second.model_copy(update={"samples": samples})
        return result.model_copy(update={"meterings": (*others, first, second)})

    rewritten(folder, forged)
    concluded(folder)
    assert "E-COPIED" in codes(folder)


def test_the_file_of_another_run_s_energy_is_rejected(folder: Path) -> None:
    raw = folder / "results/1/raw"
    shutil.copy(raw / "mix1.energy.npz", raw / "mix2.energy.npz")
    rehash(folder / "results/1", json.loads((folder / RESULT).read_text()))
    sealed(folder)
    assert codes(folder) == {"E-RESULT"}


def test_a_device_that_no_meter_covers_leaves_no_efficiency(folder: Path) -> None:
    """The energy of the GPU is left out of the boundary, everywhere alike."""

    def change(result: Result) -> Result:
        def less(metering: Metering) -> Metering:
            samples = {id: each for id, each in metering.samples.items() if id != "nvml/0"}
            return metering.model_copy(update={"samples": samples})

        domains = tuple(each for each in result.domains if each.id != "nvml/0")
        return result.model_copy(update={"domains": domains, "meterings": tuple(map(less, result.meterings))})

    rewritten(folder, change)
    sealed(folder)
    assert any(each.message.startswith("mixes_per_kj") for each in verdict(folder).problems)
    concluded(folder)
    found = verdict(folder).entry
    assert found is not None and found.claim.mixes_per_kj is None and found.claim.boundary is None
    assert "gpu:GPU-0 is not metered" in found.unmeasured


def test_a_device_that_is_left_out_of_the_list_is_missed(folder: Path) -> None:
    rewritten(folder, lambda result: result.model_copy(update={"devices": result.devices[:1]}))
    sealed(folder)
    assert codes(folder) == {"E-RESULT"}


def test_fewer_bits_than_the_records_say_are_rejected(folder: Path) -> None:
    def four(record: Record) -> Record:
        return record.model_copy(update={"route": record.route.model_copy(update={"precision": "int4"})})

    rewritten(folder, lambda result: result.model_copy(update={"records": tuple(map(four, result.records))}))
    sealed(folder)
    assert codes(folder) == {"E-RESULT"}


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({"currency": "USD"}, "E-CURRENCY"),
        ({"locale": "en-US"}, "E-CURRENCY"),
        ({"date": ITEM.date.replace(year=2024)}, "E-PRICE-DATE"),
        ({"date": ITEM.date.replace(year=2027)}, "E-PRICE-DATE"),
    ],
)
def test_a_price_of_another_currency_market_or_day_is_rejected(folder: Path, item: dict[str, Any], code: str) -> None:
    declared(folder, price=(ITEM, ITEM.model_copy(update=item)))
    assert codes(folder) == {code}


@pytest.mark.parametrize("unit_price", ["1e3", "-1", "1,5", "NaN", "Infinity", "01", " 1", "1.00000", "9" * 13])
def test_an_amount_that_is_no_decimal_number_is_rejected(folder: Path, unit_price: str) -> None:
    told = json.loads((folder / DECLARATION).read_text())
    told["price"][0]["unit_price"] = unit_price
    edited(folder, DECLARATION, **told)
    assert codes(folder) == {"E-SCHEMA"}


# Files that are hard to read


def test_a_bundle_of_many_files_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_FILES", 100)
    for number in range(200):
        (folder / f"results/1/raw/{number}.npz").touch()
    assert "E-LIMITS" in codes(folder)


def test_a_result_of_more_devices_than_a_machine_has_is_not_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MAX_PARTS", 1)
    (problem,) = verdict(folder).problems
    assert problem.message == "it has more than 1 devices or energy sources"


def test_folders_that_are_nested_deeply_are_not_followed(folder: Path) -> None:
    deep = folder.joinpath(*["x"] * 300)
    deep.mkdir(parents=True)
    assert "E-LIMITS" in codes(folder)


@pytest.mark.parametrize("name", [DECLARATION, CLAIM, MANIFEST, README])
def test_a_huge_small_file_is_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(1 << 40)
    assert "E-LIMITS" in codes(folder)


@pytest.mark.parametrize("name", [DECLARATION, CLAIM, MANIFEST])
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 100_000,
        b"\xff\xfe",
        b"",
        b"null",
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
    ],
    ids=["lists", "objects", "digits", "bytes", "empty", "null", "surrogate", "mark"],
)
def test_json_that_is_none_is_rejected(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    if name != MANIFEST:
        sealed(folder)
    assert codes(folder) == {"E-SCHEMA"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"runs": 2', '"runs": 2.0'),
        ('"runs": 2', '"runs": "2"'),
        ('"runs": 2', '"runs": true'),
        ('"runs": 2', '"runs": 9007199254740993'),
        ('"runs": 2', '"runs": NaN'),
        ('"runs": 2', '"runs": 2, "more": 1'),
        ('"runs": 2', '"runs": 5, "runs": 2'),
        ('"runs": 2', '"runs":  2'),
        ('  "runs": 2,\n', ""),
    ],
)
def test_a_claim_in_another_form_is_rejected(folder: Path, old: str, new: str) -> None:
    path = folder / CLAIM
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    sealed(folder)
    assert codes(folder) & {"E-SCHEMA", "E-WRITTEN", "E-CLAIM"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e999])
def test_a_figure_that_is_no_number_is_rejected(folder: Path, value: float) -> None:
    edited(folder, CLAIM, mixes_per_s={"value": value, "low": None, "high": None})
    assert codes(folder) == {"E-SCHEMA"}


@pytest.mark.parametrize(
    "text",
    [
        '"concurrency": NaN',
        '"concurrency": 1e400',
        '"concurrency": 9223372036854775808',
        '"concurrency": 1, "concurrency": 1',
        '"concurrency": 1, "extra": 1',
        '"concurrency": 1.0',
        '"concurrency": true',
        '"concurrency": "1"',
    ],
)
def test_a_result_in_another_form_is_rejected(folder: Path, text: str) -> None:
    path = folder / RESULT
    assert '"concurrency": 1' in path.read_text()
    path.write_text(path.read_text().replace('"concurrency": 1', text))
    write_hashes(folder / "results/1")
    edited(folder, CLAIM, results=[form.sha256_of(folder / SUMS)])
    assert codes(folder) & {"E-RESULT", "E-WHOLE-RESULT"}


def test_hashes_in_another_form_are_rejected(folder: Path) -> None:
    path = folder / SUMS
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    edited(folder, CLAIM, results=[form.sha256_of(path)])
    assert codes(folder) == {"E-WHOLE-RESULT"}


def test_an_older_schema_is_rejected(folder: Path) -> None:
    path = folder / RESULT
    path.write_text(path.read_text().replace(f'"schema_version": {SCHEMA}', f'"schema_version": {SCHEMA - 1}', 1))
    write_hashes(folder / "results/1")
    sealed(folder)
    problem = verdict(folder).problems[0]
    assert problem.code == "E-RESULT" and "was written by an older version" in problem.message


def header_of(shape: str) -> bytes:
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head = head.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(4294967296, 4294967296)", "(-1,)"])
def test_an_array_that_promises_more_than_the_file_holds_is_rejected(folder: Path, shape: str) -> None:
    path = folder / "results/1/raw" / mixed_key(folder)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, header_of(shape) + content[128:] if name == "yielded_ns.npy" else content)
    rehash(folder / "results/1", json.loads((folder / RESULT).read_text()))
    sealed(folder)
    assert codes(folder) == {"E-RESULT"}


def test_a_zip_bomb_is_not_unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_RAW_BYTES", 4 << 20)
    path = folder / "results/1/raw" / mixed_key(folder)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("key", "due_ns", "issued_ns", "ends", "yielded_ns", "units"):
            archive.writestr(f"{name}.npy", header_of("(131072,)") + bytes(1 << 20))
    assert path.stat().st_size < 1 << 14
    rehash(folder / "results/1", json.loads((folder / RESULT).read_text()))
    sealed(folder)
    (problem,) = verdict(folder).problems
    assert problem.code == "E-RESULT" and "the folder may hold" in problem.message


# Names and links


@pytest.mark.parametrize("name", ["a" * 81, "two-", "two--two"])
def test_a_mix_whose_name_is_no_folder_s_is_rejected(folder: Path, tmp_path: Path, name: str) -> None:
    def renamed(result: Result) -> Result:
        assert result.mix is not None
        return result.model_copy(update={"mix": result.mix.model_copy(update={"name": name})})

    rewritten(folder, renamed)
    sealed(folder)
    assert codes(folder) == {"E-ONE-MIX"}
    with pytest.raises(ResultError, match="cannot name a folder"):
        bundle.bundle([folder / "results/1"], DECLARED, tmp_path / "out")


def test_the_largest_price_of_all_is_summed(folder: Path) -> None:
    most = ITEM.model_copy(update={"quantity": 1_000_000, "unit_price": "999999999999.9999"})
    declared(folder, price=(most,) * 200)
    found = verdict(folder).entry
    assert found is not None and found.claim.price is not None
    assert found.claim.price.amount == "199999999999999980000.0000"


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "results/1/../../x", "a\\b", "", ".", "results//1"]
)
def test_a_path_that_leaves_the_entry_is_no_path_of_a_manifest(folder: Path, name: str) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    told["files"][0]["path"] = name
    (folder / MANIFEST).write_text(json.dumps(told, indent=2) + "\n")
    assert codes(folder) == {"E-SCHEMA"}


@pytest.mark.parametrize("name", ["²", "01", "0", "x", "1.0", "99999"])
def test_a_result_has_a_plain_number(folder: Path, name: str) -> None:
    (folder / "results/1").rename(folder / "results" / name)
    assert "E-LAYOUT" in codes(folder)


@pytest.mark.parametrize("of", ["", "results", "results/1", "results/1/raw", RESULT, DECLARATION])
def test_no_part_of_an_entry_is_a_link(folder: Path, tmp_path: Path, of: str) -> None:
    path = folder / of
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    (found,) = check.find(folder.parents[2])
    assert codes(found) & {"E-LINKS", "E-PLACE"}


@pytest.mark.parametrize("level", [0, 1])
def test_no_folder_around_an_entry_is_a_link(folder: Path, tmp_path: Path, level: int) -> None:
    path = folder.parents[level]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    (found,) = check.find(folder.parents[2])
    assert "E-LINKS" in codes(found)


def test_a_pipe_does_not_block_and_a_socket_is_not_read(folder: Path) -> None:
    os.mkfifo(folder / "results/1/raw/pipe.npz")
    assert codes(folder) == {"E-LINKS"}
    os.remove(folder / "results/1/raw/pipe.npz")
    here = os.getcwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
    finally:
        os.chdir(here)
    assert "E-LINKS" in codes(folder)


@pytest.mark.parametrize(
    "name",
    [
        "Асme",  # the first two letters are Cyrillic
        "Acme\u200b",
        "\u202eemcA",
        "Ａcme",
        "Acmė",
        "Acme\u0301",
        "ACME\n",
        "-",
        "",
        "Ac" * 40,
    ],
)
@pytest.mark.parametrize("field", ["organisation", "system"])
def test_a_name_with_letters_that_look_like_others_is_rejected(folder: Path, field: str, name: str) -> None:
    edited(folder, DECLARATION, **{field: name})
    assert codes(folder) == {"E-SCHEMA"}


HOSTILE = "<script>alert(1)</script> ![x](javascript:alert(1)) | `x` [x](https://example.org)"


def test_html_and_markup_in_declared_texts_are_text(folder: Path) -> None:
    declared(folder, origin=HOSTILE, licence=HOSTILE, notes=HOSTILE, price=(ITEM.model_copy(update={"what": HOSTILE}),))
    found = verdict(folder)
    assert found.entry is not None
    text = (folder / README).read_text()
    assert "<script" not in text.replace("\\<script", "")
    assert "](https" not in text and "![" not in text.replace("\\!", "")
    assert "| `x`" not in text


@pytest.mark.parametrize(
    "link", ["javascript:alert(1)", 'https://x/"onclick="y', "https://x/<b>", "//x", "data:text/html,x"]
)
def test_a_link_that_is_no_web_address_is_rejected(folder: Path, link: str) -> None:
    told = json.loads((folder / DECLARATION).read_text())
    told["price"][0]["source"] = link
    edited(folder, DECLARATION, **told)
    assert codes(folder) == {"E-SCHEMA"}


def test_control_characters_in_a_message_do_not_reach_the_terminal(folder: Path) -> None:
    (folder / "\x1b[31mred").write_text("x")
    (problem,) = verdict(folder).problems
    assert "\x1b" not in problem.where


def test_a_hidden_folder_beside_entries_is_found(folder: Path) -> None:
    hidden = folder.parents[1] / ".hidden"
    hidden.mkdir()
    (hidden / "notes.txt").write_text("x")
    assert check.find(folder.parents[2]) == [hidden, folder]
    (folder.parents[2] / ".git").mkdir()
    assert check.find(folder.parents[2]) == [hidden, folder]


def test_a_stray_file_beside_entries_is_found(folder: Path) -> None:
    (folder.parents[1] / "notes.txt").write_text("x")
    (found,) = check.find(folder.parents[2])
    assert found == folder.parents[1]
    assert "E-LAYOUT" in codes(found)
