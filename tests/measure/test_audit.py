"""Audits with the real reference adapter in a real worker; the null suite's reference is the suite itself."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts import seeds
from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Audit, Gate, Record
from mixmark.harness.measure import audit
from mixmark.harness.measure.audit import CPU, Auditor, clean_process, draw, handed_at, keep, kept_at, pending
from mixmark.harness.plugins import registry
from mixmark.harness.worker import handle, outputs
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.outputs import Commitments, digest
from tests.fakes.null import Null
from tests.fakes.workers import NULL
from tests.golden.sample import closed_loop, record

pytestmark = pytest.mark.slow

SEED = 7
GATE = Gate(metric="difference", at_most=0.5)


def handed(path: Path, outputs: Any, serials: Any = None, finished: Any = None, digests: Any = None) -> Path:
    serials = np.arange(len(outputs)) if serials is None else serials
    finished = serials if finished is None else finished
    commitments = b"".join(
        digest(int(serial), np.asarray(each).tobytes()) for serial, each in zip(serials, outputs, strict=False)
    )
    made = np.zeros((len(finished), 16), np.uint8)
    made[: len(commitments) // 16] = np.frombuffer(commitments, np.uint8).reshape(-1, 16)[: len(made)]
    digests = made if digests is None else digests
    np.savez(
        path / "outputs.npz",
        serials=serials,
        outputs=outputs,
        finished=finished,
        previous=finished * 0 - 1,
        digests=digests,
    )
    return path / "outputs.npz"


def stored(
    tmp_path: Path,
    outputs: Any,
    feeds: int = 3,
    gate: Gate = GATE,
    batch: int = 1,
    done: int | None = None,
    commitments: Commitments | None = None,
    **more: Any,
) -> Audit:
    """The audit of outputs that were handed over and not drawn yet."""
    handed_at(tmp_path, "a").parent.mkdir(exist_ok=True)
    done = len(outputs) if done is None else done
    return keep(
        handed(tmp_path, outputs, **more),
        gate,
        feeds,
        batch,
        done,
        commitments or Commitments(),
        handed_at(tmp_path, "a"),
    )


def drawn(tmp_path: Path, outputs: Any, **how: Any) -> Any:
    """The columns of the drawn outputs."""
    return draw(handed_at(tmp_path, "a"), stored(tmp_path, outputs, **how).sha256)


def test_some_outputs_are_drawn_by_chance_and_kept(tmp_path: Path) -> None:
    draws = [drawn(tmp_path, np.arange(100.0).reshape(100, 1)) for _ in range(10)]
    assert len({(*kept["serials"].tolist(),) for kept in draws}) > 1  # the system's randomness, not the run's seed
    for kept in draws:
        assert len(set(kept["serials"].tolist())) == 3
        assert kept["outputs"][:, 0].tolist() == kept["serials"].tolist()
        assert kept.keys() == {"serials", "outputs", "previous_digests"}


def test_as_many_feeds_as_hold_the_gates_samples(tmp_path: Path) -> None:
    many = Gate(metric="difference", at_most=0.5, samples=32)
    assert len(drawn(tmp_path, np.zeros((100, 8)), gate=many, batch=8)["serials"]) == 4
    assert len(drawn(tmp_path, np.zeros((2, 8)), gate=many, batch=8)["serials"]) == 2  # there are no more


TWO = np.zeros((2, 1))


@pytest.mark.parametrize(
    ("outputs", "more", "problem"),
    [
        (np.array([[1.0], [np.nan], [np.inf]]), {}, "outputs with values that are not finite: 2 of 3"),
        (TWO, {"serials": np.array([4, 4])}, "two outputs for one feed"),
        (np.zeros((0, 1)), {}, "no outputs"),
        (TWO, {"serials": np.array([0])}, "no outputs"),
        (np.array([object()]), {}, "cannot be used"),
        # else who hands over the right ones only would look good
        (TWO, {"finished": np.array([0, 1]), "done": 3}, "the digests of 2 outputs of 3 finished feeds"),
        (TWO, {"finished": np.array([0, 1, 2]), "done": 2}, "the digests of 3 outputs of 2 finished feeds"),
        (TWO, {"finished": np.array([0, 1, 2]), "done": 3}, "over 2 outputs of the 3 that it had to keep"),
        (TWO, {"finished": np.array([0, 3]), "done": 2}, "over 1 output of the 2 that it had to keep"),
        (TWO, {"finished": np.array([0, 0]), "done": 2}, "two outputs for one feed"),
        (TWO, {"digests": np.zeros((2, 16), np.uint8)}, "the outputs do not match the commitments"),
    ],
)
def test_what_cannot_be_compared_or_lacks_an_output_is_the_audits_problem(
    tmp_path: Path, outputs: Any, more: Any, problem: str
) -> None:
    found = stored(tmp_path, outputs, **more)
    assert problem in found.problem
    assert not found.passed


def test_outputs_that_outgrew_memory_are_fewer_and_those_that_were_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "capacity", lambda size: 4)
    outputs, finished = np.arange(9.0).reshape(9, 1), np.arange(9)
    commitments = Commitments()
    digests = np.array([[*digest(serial, outputs[serial].tobytes())] for serial in range(9)], np.uint8)
    for done in (5, 8):
        commitments.draw_key(done, hashlib.sha256(digests[:done].tobytes()).hexdigest())
    stay = np.sort(commitments.required(finished, 4))
    assert 2 < len(stay) < 5
    same: dict[str, Any] = {"done": 9, "commitments": commitments, "finished": finished, "digests": digests}
    assert stored(tmp_path, outputs[stay], serials=stay, **same).problem == ""
    for others in (stay[1:], np.setdiff1d(finished, stay), finished):
        found = stored(tmp_path, outputs[others], serials=others, **same)
        assert f"of the {len(stay)} that it had to keep" in found.problem


def test_a_missing_or_torn_file_is_the_audits_problem(tmp_path: Path) -> None:
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    for name in ("absent.npz", "torn.npz"):
        assert "cannot be used" in keep(tmp_path / name, GATE, 1, 1, 1, Commitments(), tmp_path / "into.npz").problem


def test_outputs_that_unpack_without_end_are_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", serials=np.zeros(1, np.int64), outputs=np.zeros((1, 1 << 20)))
    found = keep(tmp_path / "bomb.npz", GATE, 1, 1, 1, Commitments(), tmp_path / "into.npz")
    assert found.problem.endswith("bomb.npz unpacks to more than its size")


def output(serial: int) -> Any:
    """The null suite's output for a feed of two samples."""
    return Null("smoke", {}).feeds(2, 0)(seeds.nonce(SEED, serial))["x"]


NEXT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.fakes.null import Null
class Next(Null):
    name = "next"
    continues = "null"
    def given(self, output):
        return {{"x": output}}
"""


class Run:
    """A run of the null suite with the outputs of its feeds, or with something else."""

    def __init__(self, folder: Path, wrong: dict[int, Any] | None = None, spec: Any = NULL, **more: Any) -> None:
        (folder / "logs").mkdir(exist_ok=True)
        self.folder, self.spec = folder, spec
        self.kept: list[Record] = []
        self.announced: list[Record] = []
        made = [output(serial) for serial in range(4)]
        for serial, other in (wrong or {}).items():
            made[serial] = other
        self.record = record("a", "null", "sample", closed_loop([[100]] * 4), batch=2).model_copy(
            update={"audit": stored(folder, np.array(made), feeds=4, **more), "seed": SEED, "unaudited": ""}
        )

    def audited(self) -> Record:
        Auditor(self.folder, lambda record: self.spec, CPU, 60).run(
            [self.record], self.kept.append, self.announced.append
        )
        return self.kept[-1]


def test_right_outputs_pass_and_one_wrong_one_fails(tmp_path: Path) -> None:
    run = Run(tmp_path)
    right = run.audited().audit
    assert right is not None and run.announced == [run.record]
    assert (right.feeds, right.values, right.passed) == ((0, 1, 2, 3), (0.0, 0.0, 0.0, 0.0), True)
    assert right.elapsed_ns > 0
    wrong = Run(tmp_path, {2: np.array([9, 1000])}).audited().audit
    assert wrong is not None
    assert not wrong.passed
    assert wrong.values[:2] == (0.0, 0.0)
    assert max(wrong.values) > 900


def test_no_file_shows_a_draw_before_its_result(tmp_path: Path) -> None:
    """While outputs are compared, no file but the one of all outputs was written. The drawn ones are there with the
    result, and can be compared again."""
    run, seen = Run(tmp_path), []

    def looking(record: Record) -> None:
        seen.append(sorted(path.name for path in (tmp_path / "raw").iterdir()))

    Auditor(tmp_path, lambda record: NULL, CPU, 60).run([run.record], run.kept.append, looking)
    (found,) = run.kept
    assert seen == [["a.handed.npz"]]
    assert kept_at(tmp_path, "a").is_file()
    assert found.audit is not None and found.audit.passed
    assert found.audit.sha256 == hashlib.sha256(kept_at(tmp_path, "a").read_bytes()).hexdigest()
    again = found.model_copy(update={"audit": found.audit.model_copy(update={"values": ()})})
    Auditor(tmp_path, lambda record: NULL, CPU, 60).run([again], run.kept.append)
    assert run.kept[-1].audit is not None and run.kept[-1].audit.passed


def test_outputs_that_were_changed_before_the_draw_fail(tmp_path: Path) -> None:
    run = Run(tmp_path)
    handed_at(tmp_path, "a").write_bytes(b"others")
    found = run.audited().audit
    assert found is not None and not found.passed and not kept_at(tmp_path, "a").exists()
    assert found.problem == "the outputs were changed after the worker had handed them over"


@pytest.mark.parametrize("right", [True, False])
def test_a_stage_is_audited_on_what_it_was_given(tmp_path: Path, right: bool) -> None:
    """The suite yields what it is given. The bytes that it continued must be those that were delivered to it."""
    spec = NULL.model_copy(update={"name": "next", "spec": f"{tmp_path / 'next.py'}:Next"})
    (tmp_path / "next.py").write_text(NEXT)
    delivered = [np.array([9 + serial, 3], np.int64) for serial in range(4)]
    commitments = Commitments()
    for serial, each in enumerate(delivered):
        np.save(tmp_path / f"{serial}.npy", each if right or serial != 2 else each + 1)
        commitments.followed[serial] = digest(serial + 50, each.tobytes())
        commitments.keep_taken(serial, serial + 50, tmp_path / f"{serial}.npy")
    found = Run(tmp_path, dict(enumerate(delivered)), spec=spec, commitments=commitments).audited().audit
    assert found is not None
    assert (found.passed, found.values) == ((True, (0.0,) * 4) if right else (False, (0.0, 0.0)))
    assert ("feed 2" in found.problem) != right


def test_a_fair_sample_of_what_was_given_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "TAKEN_BYTES", 4000)
    kept = []
    for _ in range(100):
        commitments = Commitments()
        for serial in range(30):
            np.save(tmp_path / f"{serial}.npy", np.zeros(2))
            commitments.keep_taken(serial, serial, tmp_path / f"{serial}.npy")
        assert len(commitments.taken) == 4000 // (128 + 16 + outputs.AROUND_BYTES)
        assert {each.file for each in commitments.taken.values()} == set(tmp_path.glob("*.npy"))
        kept += list(commitments.taken)
    assert 12 < np.mean(kept) < 17  # 14.5, with a standard error of 0.27


def test_what_was_given_and_cannot_be_read_is_the_audits_problem(tmp_path: Path) -> None:
    (tmp_path / "0.npy").write_bytes(b"no array")
    os.mkfifo(tmp_path / "1.npy")
    (tmp_path / "2.npy").symlink_to(tmp_path / "0.npy")
    for number in range(3):
        commitments = Commitments()
        commitments.keep_taken(0, 0, tmp_path / f"{number}.npy")
        assert "handed over" in stored(tmp_path, np.zeros((1, 2), np.int64), commitments=commitments).problem


def test_a_reference_that_cannot_run_leaves_the_record_unaudited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, spec=NULL.model_copy(update={"options": {"gib": "1000000"}}))
    big = run.audited()
    assert run.announced == [run.record], "before it is loaded, which takes longer than the comparison"
    assert "needs 1000000.5 GiB" in big.unaudited
    assert big.audit is not None
    assert not big.audit.passed
    assert not pending(big)
    monkeypatch.setattr(audit, "REFERENCE", "absent")
    monkeypatch.setitem(registry.BUILT_IN["adapters"], "absent", "no.such.module:Thing")
    assert "No module named" in Run(tmp_path).audited().unaudited


def test_a_full_disk_leaves_the_outputs_for_a_run_that_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = Run(tmp_path)
    for owner, name in ((handle, "ChildProcess"), (Path, "unlink")):
        with monkeypatch.context() as patched, pytest.raises(ResultError, match=os.strerror(errno.ENOSPC)):
            patched.setattr(owner, name, full)
            run.audited()
    assert not run.kept and run.audited().audited


def test_a_reference_that_overflows_blames_the_weights_and_not_the_adapter(tmp_path: Path) -> None:
    found = Run(tmp_path, spec=NULL.model_copy(update={"options": {"overflow": "1"}})).audited()
    assert found.audit is not None and not found.audit.passed and not found.audit.problem
    assert "the reference's own output of feed 0 is not finite" in found.unaudited


class TestTheCleanProcess:
    """It audits the suites of Mixmark, here the null suite in their place."""

    @pytest.fixture(autouse=True)
    def own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(registry.BUILT_IN["suites"], "null", NULL.spec)

    def audited(self, folder: Path, clean: Worker) -> list[Record]:
        found: list[Record] = []
        auditor = Auditor(folder, lambda record: NULL, CPU, 60, clean=clean)
        for _ in range(2):  # of what was measured alone, and of a mix
            auditor.run([Run(folder).record], found.append)
        return found

    def test_audits_suites_one_after_the_other(self, tmp_path: Path) -> None:
        with clean_process() as clean:
            found = self.audited(tmp_path, clean)
        assert [each.audit and each.audit.passed for each in found] == [True, True]
        assert (tmp_path / "logs" / "audit.log").exists(), "as a failure names it"

    def test_is_not_replaced_once_it_has_ended(self, tmp_path: Path) -> None:
        """A new one would read torch's files again, which a plugin may have changed by then."""
        with clean_process() as clean:
            os.kill(clean.pid, signal.SIGKILL)
            found = self.audited(tmp_path, clean)
        assert [each.audit and each.audit.passed for each in found] == [False, False]
        assert all("killed by SIGKILL" in each.unaudited for each in found)


def test_a_reference_elsewhere_is_repeated_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = CPU.model_copy(update={"kind": "gpu"})  # the adapter sees the CPU, the auditor an accelerator
    run = Run(tmp_path)
    Auditor(tmp_path, lambda record: NULL, elsewhere, 60).run([run.record], run.kept.append)
    found = run.kept[-1].audit
    assert found is not None
    assert found.disagreement == 0.0
    assert found.passed
