from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import SCHEMA, Audit, Failure, Gate, Metering, Record, Result, Samples
from mixmark.harness.record import files, raw_files, store
from tests.fakes.folders import forge, with_outputs, write_hashes
from tests.golden.sample import DOMAINS, apart, but, closed_loop, phase, record, result, sample

BEFORES = np.zeros((2, 16), np.uint8)
"""The digests of the outputs before two feeds."""


def header(whole: Result) -> Result:
    return whole.model_copy(update={"records": (), "meterings": (), "finished": False})


def written(path: Path, whole: Result) -> store.Store:
    keeper = store.create(path, header(whole))
    for each in whole.records:
        if each.audit:  # of two feeds of a probe of two kernels
            outputs = np.zeros((2, 2, 1), np.float32)
            each = with_outputs(path, each, serials=np.array((0, 2)), previous_digests=BEFORES, outputs=outputs)
        keeper.append(each)
    for metering in whole.meterings:
        keeper.meter(metering)
    return keeper


def same(one: Result, other: Result) -> bool:
    return one.model_dump() == other.model_dump() and raw(one) == raw(other)


def raw(whole: Result) -> list[object]:
    samples = [
        {id: [getattr(each, name).tolist() for name in raw_files.SAMPLES] for id, each in metering.samples.items()}
        for metering in whole.meterings
    ]
    return [[each.completions and list(each.completions) for each in whole.records], samples]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished result of one record that ran, one that failed, and the energy of a phase."""
    whole = small()
    written(tmp_path / "run", whole).finish(whole)
    return tmp_path / "run"


def unaudited(of: Record) -> Record:
    """The same of a plan that asks for no audit, so that it has no outputs."""
    return of.model_copy(update={"audit": None, "exempt": "not asked for" if of.audit else None})


def small() -> Result:
    failure = Failure(kind="hung", message="no unit for 60 s")
    done = unaudited(record("a", "llm", "token", closed_loop([[5, 6]])))
    whole = result(done, record("b", "llm", "token", error=failure))
    plug = DOMAINS[0].model_copy(update={"id": "plug"})
    return apart(whole.model_copy(update={"domains": (DOMAINS[0], plug), "meterings": (metering("a"),)}))


def at(hour: int, *records: Record) -> Record:
    """A record of the version that `apart` gives to its route."""
    whole = apart(result(*[record(f"x{each}", "llm", "token", closed_loop([[5]])) for each in range(hour)], *records))
    return unaudited(whole.records[-1])


def metering(phase: str, joules: float = 7.5) -> Metering:
    stamps = np.array([10, 2000], np.int64)
    read = {
        "rapl/intel-rapl:0": Samples(stamps, stamps + 1, np.array([5.0, joules])),
        "plug": Samples(stamps[:0], stamps[:0], np.zeros(0)),
    }
    return Metering(phase=phase, begin_ns=5, end_ns=2500, cpu_ns=3, samples=read, lost={"plug": "its peer closed it"})


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    whole = apart(sample())
    records = tuple(each if each.scenario == "probe" else unaudited(each) for each in whole.records)
    whole = whole.model_copy(update={"records": records})
    written(tmp_path / "run", whole).finish(whole)
    assert same(store.open(tmp_path / "run"), whole)
    assert same(store.open(tmp_path / "run" / "result.json"), whole)


def test_a_resumed_run_goes_on_behind_the_torn_line(tmp_path: Path) -> None:
    whole = small()
    written(tmp_path, whole)
    with (tmp_path / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"key": "torn')
    again = at(1, record("b", "llm", "token", closed_loop([[7]])))
    keeper = store.resume(tmp_path)
    keeper.append(again)
    assert [each.error for each in store.open(tmp_path).records] == [None, None]  # the retry replaced the failure
    keeper.finish(store.open(tmp_path).model_copy(update={"finished": True}))
    assert store.open(tmp_path).finished
    with pytest.raises(ResultError, match="is finished"):
        store.resume(tmp_path)


def test_what_was_begun_is_replayed_and_kept_in_the_end(tmp_path: Path) -> None:
    whole = small().model_copy(update={"begun": ("a",)})  # a run that begins with the records of another one
    keeper = written(tmp_path, whole)
    for _ in range(2):
        keeper.add("begun", whole.phases[0].name)
    again = store.open(tmp_path)
    assert again.begun == ("a", whole.phases[0].name, whole.phases[0].name)
    keeper.finish(again.model_copy(update={"finished": True}))
    assert store.open(tmp_path).begun == again.begun


def test_a_phase_that_is_planned_late_and_its_energy_are_replayed(tmp_path: Path) -> None:
    whole = small()
    keeper = written(tmp_path, whole)
    later = but(phase(at(1, record("confirmation", "llm", "token", closed_loop([[5]])))), purpose="confirmation")
    keeper.add("phases", later)
    store.resume(tmp_path).meter(metering("confirmation", joules=8))
    store.resume(tmp_path).meter(metering("confirmation", joules=9))
    again = store.open(tmp_path)
    assert again.phases == (*whole.phases, later)
    assert again.resumed == (2, 2)
    assert [each.phase for each in again.meterings] == ["a", "confirmation"]
    assert again.meterings[1].samples["rapl/intel-rapl:0"].values.tolist() == [5, 9], "the last one counts"


def test_a_folder_in_use_is_left_alone(folder: Path) -> None:
    with pytest.raises(ResultError, match="not an empty folder"):
        store.create(folder, header(small()))


def test_a_disk_too_small_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="GB free, but the run needs"):
        store.create(tmp_path, header(small()), needs_bytes=1 << 60)
    assert list(tmp_path.iterdir()) == []


FULL = """
import sys
import zipfile
from pathlib import Path
import resource
from mixmark.harness.record import raw_files, store
from mixmark.harness.contracts.errors import ResultError
from tests.golden.sample import DOMAINS, closed_loop, record
keeper = store.resume(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    feeds = closed_loop([[5]]), closed_loop([[5] * int(sys.argv[3])])
    both = (record(key, "llm", "token", done) for key, done in zip("cd", feeds, strict=True))
    keeper.append(*(each.model_copy(update={"audit": None}) for each in both))
except ResultError as error:
    print(error)
"""


# The limit stands for a full disk, which only root can make; Windows has none.
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no file size limit on this system")
@pytest.mark.parametrize("full", ["raw", "journal"])
def test_a_disk_that_fills_up_loses_nothing_that_was_written(tmp_path: Path, full: str) -> None:
    third, fourth = (record(key, "llm", "token", closed_loop([[5]])) for key in "cd")
    third = at(2, third)
    whole = small()
    planned = (*whole.phases, phase(third), phase(fourth))
    written(tmp_path, whole.model_copy(update={"phases": planned}))
    journal = (tmp_path / "journal.jsonl").read_bytes()
    limit, marks = (4096, 10_000) if full == "raw" else (len(journal) + 120, 1)
    command = [sys.executable, "-c", FULL, str(tmp_path), str(limit), str(marks)]
    said = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert "cannot write record c, d to " in said.stdout
    assert [each.key for each in store.open(tmp_path).records] == ["a", "b"]  # none of what belongs together
    assert (tmp_path / "journal.jsonl").read_bytes() == journal + b'{"resumed": [2]}\n'
    assert not list((tmp_path / "raw").glob(".*"))
    store.resume(tmp_path).append(third)
    assert [each.key for each in store.open(tmp_path).records] == ["a", "b", "c"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="is not a folder"):
        store.open(tmp_path / "absent")
    with pytest.raises(ResultError, match="no Mixmark result"):
        store.open(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema_version": SCHEMA + 1}, "written by a newer version of Mixmark"),
        ({"schema_version": SCHEMA - 1}, "written by an older version of Mixmark"),
        ({"schema_version": None}, "no schema_version"),
        ({"records": 5}, "no list of records"),
        ({"records": [5]}, "breaks the schema"),
        ({"records": [{"key": "../../etc/passwd"}]}, "breaks the schema"),
        ({"meterings": None}, "no list of records"),
        ({"meterings": [5]}, "breaks the schema"),
        ({"meterings": [{"phase": "../a", "begin_ns": 0, "end_ns": 1, "cpu_ns": 0}]}, "breaks the schema"),
        ({"seed": -1}, "seed"),
        ({"surprise": 1}, "surprise"),
        ({"seed": float("nan")}, "NaN is not a number"),
        ({"seed": 1 << 63}, "is larger than any number of a run"),
        ({"noise_floor": {"fraction": 1e100, "tier": "edge", "created_utc": ""}}, "is larger or smaller than any"),
        ({"noise_floor": {"fraction": 1e-300, "tier": "edge", "created_utc": ""}}, "is larger or smaller than any"),
    ],
)
def test_a_result_that_was_edited_is_refused(folder: Path, changes: dict[str, object], said: str) -> None:
    forge(folder, lambda content: content.update(changes))
    with pytest.raises(ResultError, match=said):
        store.open(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"tier": "edge"', b'"tier": "smoke", "tier": "edge"', "a name is repeated"),
        (b'"quick"', b'"\\ud800"', "is not valid JSON"),
        (b'"quick"', b'"\xed\xa0\x80"', "is not valid JSON"),  # half a character, too
        *((b"", new, r"result\.json") for new in (b"", b"[]", b'{"finished": true', b"\xff\xfe", b"[" * 100_000)),
    ],
    ids=["twice", "escaped", "encoded", *("empty", "a list", "torn", "no text", "deep")],
)
def test_a_file_that_is_no_result_is_refused(folder: Path, old: bytes, new: bytes, said: str) -> None:
    content = (folder / "result.json").read_bytes()
    (folder / "result.json").write_bytes(content.replace(old, new) if old else new)
    write_hashes(folder)
    with pytest.raises(ResultError, match=said):
        store.open(folder)


def test_line_endings_that_were_changed_are_named(folder: Path) -> None:
    summary = folder / "result.json"
    whole = summary.read_bytes()
    summary.write_bytes(whole.replace(b"\n", b"\r\n"))
    with pytest.raises(ResultError, match="the line endings of") as refused:
        store.open(folder)
    assert "autocrlf" in refused.value.hint
    summary.write_bytes(whole.replace(b"\n", b"\r\n").replace(b"llm", b"lln", 1))
    with pytest.raises(ResultError, match="is damaged"):
        store.open(folder)


@pytest.mark.parametrize(
    "line",
    ["{]", "{}", '{"key": "a"}', '{"records": 5}', '{"records": [5]}', '{"records": [], "phases": []}', '{"x": []}'],
)
def test_a_damaged_line_inside_the_journal_is_named(tmp_path: Path, line: str) -> None:
    written(tmp_path, small())
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], line.encode() + b"\n", lines[2]]))
    with pytest.raises(ResultError, match="line 2 of"):
        store.open(tmp_path)


def spoilt(path: Path, how: str) -> None:
    """Without its last bytes, with a bit flipped, gone, or a link to a device that never ends."""
    content = path.read_bytes()
    path.unlink()
    if how == "truncated":
        path.write_bytes(content[:-40])
    elif how == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :])
    elif how == "device":
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("file", ["a", "a.energy"])
@pytest.mark.parametrize("how", ["missing", "truncated", "flipped", "device"])
def test_a_raw_file_that_cannot_be_read_is_refused(folder: Path, file: str, how: str) -> None:
    spoilt(folder / "raw" / f"{file}.npz", how)
    if how != "device":
        write_hashes(folder)
    with pytest.raises(ResultError, match=rf"{file}\.npz is (missing|damaged)"):
        store.open(folder)


STAMPS = {"key": "a", "due_ns": [0], "issued_ns": [0], "ends": [1], "yielded_ns": [5], "units": [1]}
SHUFFLED = {"due_ns": [90, 0], "issued_ns": [90, 0], "ends": [1, 2], "yielded_ns": [95, 5], "units": [1, 1]}
READINGS = {"key": "a", "domains": ["d"], "before_ns_0": [0], "after_ns_0": [1], "values_0": [5.0]}


@pytest.mark.parametrize(
    ("file", "plain", "changed"),
    [
        ("a", STAMPS, {"key": "z"}),
        ("a", STAMPS, {"units": None}),
        ("a", STAMPS, {"units": np.array([{}], dtype=object)}),
        ("a", STAMPS, {"yielded_ns": [np.nan]}),
        ("a", STAMPS, {"yielded_ns": [-5]}),
        ("a", STAMPS, SHUFFLED),  # only the last feed's time would count as in flight
        ("a", STAMPS, {"yielded_ns": [1 << 60]}),
        ("a", STAMPS, {"ends": [3], "yielded_ns": [5, 6, 7], "units": [1 << 59] * 3}),
        ("a.energy", READINGS, {"key": "z"}),
        ("a.energy", READINGS, {"values_0": None}),
        ("a.energy", READINGS, {"after_ns_0": [-1]}),
        ("a.energy", READINGS, {"after_ns_0": [1 << 60]}),
        ("a.energy", READINGS, {"values_0": [np.nan]}),
        ("a.energy", READINGS, {"values_0": [5]}),
        ("a.energy", READINGS, {"before_ns_0": 0, "after_ns_0": 1, "values_0": 5.0}),
    ],
    ids=str,
)
def test_arrays_that_are_not_those_of_the_result_are_refused(
    folder: Path, file: str, plain: dict[str, Any], changed: dict[str, Any]
) -> None:
    def replaced(columns: dict[str, Any]) -> None:
        arrays = {name: np.array(column) for name, column in columns.items() if column is not None}
        np.savez(folder / "raw" / f"{file}.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub takes every name for allow_pickle
        write_hashes(folder)

    replaced(plain)
    store.open(folder)
    replaced(plain | changed)
    with pytest.raises(ResultError, match=rf"{file}\.npz is damaged"):
        store.open(folder)


GATE = Gate(metric="m", at_most=0.1)


def audited(
    path: Path,
    serials: Sequence[int] = (0, 2),
    shape: tuple[int, ...] = (2, 1, 3),
    fill: float = 0.5,
    previous_digests: int = 2,
    **taken: Any,
) -> Path:
    """A record of three feeds of a unit each, and outputs that were kept. Feeds 0 and 2 were audited."""
    audit = Audit(gate=GATE, finished=3, feeds=(0, 2), values=(0.0, 0.0))
    done = record("a", "llm", "token", closed_loop([[5]] * 3)).model_copy(update={"audit": audit, "feed_units": 1})
    whole = apart(result(done))
    written(path, whole).finish(whole)
    outputs = np.full(shape, fill, np.float32)
    np.savez(
        path / "raw" / "a.outputs.npz",
        serials=np.array(serials),
        previous_digests=BEFORES[:previous_digests],
        outputs=outputs,
        **taken,
    )
    write_hashes(path)
    return path


TAKEN: dict[str, Any] = {"taken": np.zeros((2, 4), np.float32), "taken_serials": np.array([7, 9])}


@pytest.mark.parametrize("taken", [{}, TAKEN])
def test_outputs_that_were_audited_lie_beside_the_stamps(tmp_path: Path, taken: dict[str, Any]) -> None:
    """taken: what a stage continued."""
    assert store.open(audited(tmp_path, **taken)).records[0].audit is not None


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"serials": (0, 1)}, "does not hold the outputs for the audited feeds 0, 2"),
        ({"serials": (0,)}, "does not hold the outputs for the audited feeds 0, 2"),
        ({"previous_digests": 1}, "a digest of 16 bytes for each output"),
        ({"shape": (1, 1, 3)}, "does not hold the outputs for the audited feeds 0, 2"),
        ({"shape": (2, 2, 3)}, "units of an output: 2, of a feed: 1"),
        ({"shape": (2,)}, "units of an output: none, of a feed: 1"),
        ({"fill": float("nan")}, "an output is not finite"),
        ({"taken": TAKEN["taken"]}, "it must hold serials, previous_digests and outputs"),
        ({**TAKEN, "taken_serials": np.array([7])}, "the number of its feed"),
        ({**TAKEN, "taken": np.zeros((1, 4), np.float32)}, "the number of its feed"),
        ({**TAKEN, "taken": np.zeros((2, 4))}, "finite values of float32"),
        ({**TAKEN, "taken": np.full((2, 4), np.inf, np.float32)}, "finite values of float32"),
    ],
    ids=str,
)
def test_outputs_that_cannot_be_those_that_were_audited_are_refused(
    tmp_path: Path, outputs: dict[str, Any], said: str
) -> None:
    with pytest.raises(ResultError, match=said):
        store.open(audited(tmp_path, **outputs))


def test_outputs_that_were_audited_may_not_be_left_out(tmp_path: Path) -> None:
    (audited(tmp_path) / "raw" / "a.outputs.npz").unlink()
    with pytest.raises(ResultError, match=r"a\.outputs\.npz is missing"):
        store.open(tmp_path)


@pytest.mark.parametrize(
    ("room", "limit", "most", "said"),
    [
        (raw_files, "MAX_RAW_BYTES", 100, "bytes of arrays, and the folder may hold 100 more"),
        (files, "MAX_JSON_OBJECTS", 10, "holds more than 10 objects"),
    ],
)
def test_what_is_larger_than_any_run_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, room: object, limit: str, most: int, said: str
) -> None:
    monkeypatch.setattr(room, limit, most)
    with pytest.raises(ResultError, match=said):
        store.open(folder)


def packed(header: bytes, values: bytes, pack: int = zipfile.ZIP_STORED) -> bytes:
    """A raw file whose outputs have this header."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", pack) as archive:
        for name, column in (("serials", np.array([0, 2])), ("previous_digests", BEFORES)):
            saved = io.BytesIO()
            np.save(saved, column)
            archive.writestr(f"{name}.npy", saved.getvalue())
        begin = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr("outputs.npy", begin + header + values)
    return buffer.getvalue()


def with_directory(size_bytes: int) -> bytes:
    """A zip with a directory of this many bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for left_bytes in range(size_bytes, 0, -(1 << 15)):
            member = zipfile.ZipInfo(f"{left_bytes:08}")
            member.comment = bytes(min(left_bytes, 1 << 15) - 46 - len(member.filename))  # 46: the entry itself
            archive.writestr(member, b"")
    return buffer.getvalue()


PLAIN = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3), }  \n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed(PLAIN.replace(b"(2, 1, 3)", b"()"), bytes(4)), "does not hold the outputs"),
        (packed(b"{'descr': " + b"(" * 500 + b"\n", b""), "is no plain array"),
        (packed(PLAIN.replace(b"'<f4'", b"'|O'"), bytes(24)), "Object arrays cannot be loaded"),
        (packed(PLAIN.replace(b"'<f4'", b"'<c8'"), bytes(48)), "these are complex64"),
        (packed(PLAIN.replace(b"'<f4'", b"'<U1'"), bytes(24)), "damaged"),
        (packed(PLAIN.replace(b"(2, ", b"(2000000000, "), bytes(24)), "is damaged"),
        (packed(PLAIN, bytes(48)), "has another size than its header says"),
        (packed(PLAIN.replace(b"'<f4'", b"'<U0'").replace(b"(2, ", b"(2000000000, "), b""), "has another size"),
        (packed(PLAIN + b" " * 20_000, bytes(24)), "is damaged"),
        (packed(PLAIN, bytes(24), zipfile.ZIP_LZMA), "neither stored nor deflated"),
        (packed(PLAIN, bytes(24)) + b"x", "does not end as a raw file does"),
        (packed(PLAIN, bytes(24))[:-2] + b"\1\0", "its directory is longer than any"),  # a comment of one byte
        (with_directory((1 << 20) + 1000), "its directory is longer than any raw file's"),
        (with_directory(1 << 20), "it must hold serials"),
        (b"", "does not end as a raw file does"),
        (packed(PLAIN, bytes(24)), None),
    ],
)
def test_an_array_is_looked_at_before_it_is_read(tmp_path: Path, content: bytes, said: str | None) -> None:
    (audited(tmp_path) / "raw" / "a.outputs.npz").write_bytes(content)
    write_hashes(tmp_path)
    with pytest.raises(ResultError, match=said) if said else nullcontext():
        store.open(tmp_path)
