"""What surrounds a phase, of one share and of several: real workers of a fake adapter, and drives that do little."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Limits, Phase, Record, Route, ScenarioName, Share, Task
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.machine.sampling import Watch
from mixmark.harness.machine.setup import Equipment
from mixmark.harness.measure import phase as measured_phase
from mixmark.harness.measure import solo
from mixmark.harness.measure.audit import handed_at, pending
from mixmark.harness.measure.phase import Part, attend
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import calls
from mixmark.harness.worker.failures import WorkerFailed
from mixmark.harness.worker.handle import Worker
from tests.fakes.acme import DEVICE
from tests.fakes.workers import ACME, FAKES

pytestmark = pytest.mark.slow

LIMITS = Limits(warmup_ns=0, search_ns=10**8, min_ns=0, max_ns=10**9, min_feeds=3, audits=1)
SUITE = Plugin("suites", "null", f"{FAKES / 'null.py'}:Null", "test")


def equipment(python: str = sys.executable, **options: str) -> Equipment:
    return Equipment(
        adapters={"acme": ACME},
        suites={"null": SUITE},
        suite_options={},
        units={"null": "sample"},
        devices={(DEVICE.id, "acme"): DEVICE},
        config=Config(adapters={"acme": AdapterConfig(python, options)}),
        seed=7,
        timeout_s=20,
    )


def share(key: str, scenario: ScenarioName = "single-stream", batch: int | None = 1, device: str = DEVICE.id) -> Share:
    route = Route(suite="null", tier="smoke", suite_version="1", device=device, adapter="acme", precision="fp32")
    return Share(key=key, route=route, scenario=scenario, batch=batch, limits=LIMITS)


@pytest.mark.parametrize(("precision", "bits"), [("fp32", 16), ("bf16", 16), ("fp8", 8), ("int8", 8), ("int4", 4)])
def test_a_suite_has_the_weights_of_the_precision_s_class(precision: str, bits: int) -> None:
    """The auditor's reference in fp32 is built from the same choice."""
    route = share("one").route.model_copy(update={"precision": precision})
    choice = equipment().choice(route)
    assert choice.weight_class == bits
    built = registry.build_suite(**dict(choice))
    assert (built.weight_class, built.reference().weight_class) == (bits, bits)


def phase(*shares: Share) -> Phase:
    return Phase(name="one", purpose="solo", tasks=(Task(device=DEVICE.id, shares=shares),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    return tmp_path


def attended(folder: Path, with_what: Equipment, scenario: ScenarioName = "single-stream") -> Record:
    batch = None if scenario == "offline" else 1
    (record,) = attend(phase(share("one", scenario, batch)), with_what, folder, solo.drive)
    return record


def test_a_share_alone_has_a_canary_on_either_side_and_its_outputs_are_kept(folder: Path) -> None:
    stages: list[tuple[str, str]] = []
    (record,) = attend(
        phase(share("one", "offline", None)),
        equipment(),
        folder,
        solo.drive,
        lambda it, stage: stages.append((it.key, stage)),
    )
    done, parent_window_ns = record.completions, record.parent_window_ns
    assert done is not None and parent_window_ns is not None
    before, *blocks, after = record.conditions
    assert before.canary_ns and after.canary_ns and blocks and not any(each.canary_ns for each in blocks)
    assert before.end_ns <= blocks[0].begin_ns <= done.issued_ns[0]
    assert done.yielded_ns[-1] <= parent_window_ns[1] <= blocks[-1].end_ns <= after.begin_ns
    assert record.feed_units == record.batch
    assert record.search_ended_by is not None
    assert record.batch in {trial.batch for trial in record.trials}  # how many there are depends on the machine's load
    assert record.facts == {"engine": "acme 1"}
    assert record.audit is not None and not record.audit.feeds and pending(record)
    assert handed_at(folder, "one").is_file()
    assert not (folder / "scratch").exists()
    assert {key for key, _ in stages} == {"one"}
    assert [stage for _, stage in stages][-2:] == ["warming up", "measuring"]


def test_a_process_of_the_system_is_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the kernel's threads, whose parent is 0."""
    system = SimpleNamespace(parents=list, ppid=lambda: 0)
    monkeypatch.setattr(psutil, "Process", lambda *pid: system)
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)
    with pytest.raises(WorkerFailed, match="as a helper, but it is of the system"):
        measured_phase._check_helpers((2,))


def test_shares_of_one_way_have_one_worker_and_a_record_each(folder: Path) -> None:
    seen: list[int] = []

    def drive(parts: Sequence[Part]) -> None:
        seen.extend(part.worker.pid for part in parts)
        solo.drive(parts)

    first, second = attend(phase(share("a"), share("b", batch=2)), equipment(), folder, drive)
    assert seen[0] == seen[1]
    assert (first.key, second.key, second.feed_units) == ("a", "b", 2)
    assert first.conditions == second.conditions
    assert [each.name for each in (folder / "logs").iterdir()] == ["000.npu-acme0.acme.log"]
    attend(phase(share("c")), equipment(), folder, solo.drive)
    assert (folder / "logs" / "001.npu-acme0.acme.log").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("scenario", ["single-stream", "mixed"])
def test_a_worker_cannot_read_which_phase_it_is_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scenario: ScenarioName
) -> None:
    """Else it could be slow in the phase alone that its gain is compared with."""
    sent: list[str] = []
    write_call = calls.write_call

    def written(method: Any, **arguments: Any) -> bytes:
        sent.append(repr(arguments))
        return write_call(method, **arguments)

    def seen(part: Part) -> str:
        process = psutil.Process(part.worker.pid)
        files = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
        return repr((process.cmdline(), process.environ(), process.cwd(), files))

    def drive(parts: Sequence[Part]) -> None:
        sent.extend(map(seen, parts))
        solo.drive(parts)
        sent.extend(each.name for each in (folder / "scratch").iterdir())

    monkeypatch.setattr(calls, "write_call", written)
    limits = LIMITS.model_copy(update={"max_ns": 1_234_567_890})
    shares = (share(key, scenario).model_copy(update={"limits": limits}) for key in ("secret.a", "secret.b"))
    named = phase(*shares).model_copy(update={"name": "secret"})
    records = attend(named, equipment(), folder, drive)
    assert [each.key for each in records if each.completions is not None] == ["secret.a", "secret.b"]
    assert len(sent) > 8 and not any("secret" in each for each in sent)
    lengths = [each.count(str(limits.max_ns)) for each in sent if "'scenario'" in each and "'limits'" in each]
    assert lengths == [1, 1] if scenario == "single-stream" else [0, 0]


def several(count: int, at: Path, pool: str = "", waits_s: int = 20, **more: str) -> tuple[Phase, Equipment]:
    """A phase of a share on each of several devices. Each device waits in `open` until all are being opened. pool:
    the memory that they share. more: options of the adapter; with `in_a_feed` a device waits there instead."""
    devices = [
        DEVICE.model_copy(update={"id": (id := f"npu:acme{n}"), "memory_pool": pool or id}) for n in range(count)
    ]
    shares = [share(f"share{number}", device=device.id) for number, device in enumerate(devices)]
    tasks = tuple(Task(device=each.route.device, shares=(each,)) for each in shares)
    options = {"meets": str(count), "waits_s": str(waits_s), "at": str(at), **more}
    with_what = replace(
        equipment(),
        devices={(device.id, "acme"): device for device in devices},
        config=Config(adapters={"acme": AdapterConfig(sys.executable, options)}),
    )
    return Phase(name="one", purpose="solo", tasks=tasks), with_what


@pytest.fixture
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meeting")


def test_accelerators_load_at_the_same_time(folder: Path, meeting: Path, inline: None) -> None:
    records = attend(*several(3, meeting), folder, solo.drive)
    assert [record.key for record in records] == ["share0", "share1", "share2"]
    assert all(record.completions is not None for record in records)


def test_devices_in_the_hosts_memory_load_one_after_the_other(folder: Path, meeting: Path, inline: None) -> None:
    alone, _ = attend(*several(2, meeting, pool="host", waits_s=1), folder, solo.drive)
    assert alone.error is not None and "no other device is being opened" in alone.error.message


def test_a_device_warms_up_while_another_one_of_its_memory_loads(folder: Path, meeting: Path, inline: None) -> None:
    records = attend(*several(2, meeting, pool="host", in_a_feed="yes"), folder, solo.drive)
    assert [record.error for record in records] == [None, None]


def test_an_interrupt_while_several_load_leaves_no_worker(
    folder: Path, meeting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Worker] = []
    real = Equipment.worker

    def worker(*given: Any) -> Worker:
        started.append(real(*given))
        return started[-1]

    monkeypatch.setattr(Equipment, "worker", worker)
    stages: list[str] = []

    def interrupt(share: Share, stage: str) -> None:
        stages.append(stage)
        if len(stages) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    phase, with_what = several(3, meeting)
    with pytest.raises(KeyboardInterrupt):
        attend(phase.model_copy(update={"tasks": phase.tasks[:2]}), with_what, folder, solo.drive, interrupt)
    assert len(started) == 2 and not any(psutil.pid_exists(worker.pid) for worker in started)


@pytest.mark.parametrize(
    ("options", "kind"), [({"mode": "unsupported"}, "unsupported"), ({"python": "/opt/acme/python"}, "crashed")]
)
def test_what_goes_wrong_before_the_drive_is_the_records_error(
    folder: Path, options: dict[str, str], kind: str
) -> None:
    python = options.get("python", sys.executable)
    record = attended(folder, equipment(python, mode=options.get("mode", "fine")))
    assert record.error is not None and record.error.kind == kind, record.error
    assert len(record.conditions) == 2  # the canaries


def test_what_a_drive_raises_is_the_error_of_every_part_that_finished_nothing(folder: Path) -> None:
    def drive(parts: Sequence[Part]) -> None:
        solo.drive(parts[:1])
        raise RuntimeError("the plan is lost")

    first, second = attend(phase(share("a"), share("b")), equipment(), folder, drive)
    assert first.completions is not None and first.cut_short is not None
    assert "the plan is lost" in first.cut_short.message
    assert "gone before it handed over" in first.unaudited
    assert second.error == first.cut_short


def test_outputs_that_are_not_handed_over_leave_no_number(folder: Path) -> None:
    def drive(parts: Sequence[Part]) -> None:
        solo.drive(parts)
        parts[0].worker.kill()

    (record,) = attend(phase(share("a")), equipment(), folder, drive)
    assert record.completions is None
    assert record.error is not None and record.error.kind == "crashed"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_ends_the_run_and_is_no_fault_of_the_adapter(folder: Path, number: int) -> None:
    def drive(parts: Sequence[Part]) -> None:
        solo.drive(parts[:1])
        raise OSError(number, os.strerror(number))

    with pytest.raises(ResultError, match=os.strerror(number)):
        attend(phase(share("a"), share("b")), equipment(), folder, drive)
    (folder / "logs").rename(folder / "scratch")
    (folder / "logs").touch()
    with pytest.raises(ResultError, match="cannot write to"):
        attended(folder, equipment())


def test_an_interrupt_passes_and_leaves_no_worker(folder: Path) -> None:
    pids: list[int] = []

    def drive(parts: Sequence[Part]) -> None:
        pids.append(parts[0].worker.pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attend(phase(share("a")), equipment(), folder, drive)
    assert not Path(f"/proc/{pids[0]}").exists()
    assert not (folder / "scratch").exists()


@pytest.mark.parametrize("named", [True, False])
def test_the_processes_that_a_runner_names_count_as_ours(
    folder: Path, inline: None, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    watched: list[int] = []

    def watch(pids: Sequence[int], **more: Any) -> Watch:
        watched.extend(pids)
        return Watch(pids, **more)

    monkeypatch.setattr(measured_phase, "Watch", watch)
    with subprocess.Popen(["sleep", "600"]) as server:
        attended(folder, equipment(helper=str(server.pid)) if named else equipment())
        server.kill()
    assert (server.pid in watched) == named


@pytest.mark.parametrize(
    ("scenario", "use"), [("single-stream", "single-stream, 1 in flight"), ("offline", "offline, all slots")]
)
def test_an_adapter_is_told_what_it_is_opened_for(folder: Path, inline: None, scenario: ScenarioName, use: str) -> None:
    assert attended(folder, equipment(mode="two slots", shows_use="true"), scenario).facts["use"] == use
