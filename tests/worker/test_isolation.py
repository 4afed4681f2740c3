"""Nothing of a worker lives on, and nothing that is installed beside Mixmark reaches the auditor: real processes."""

from __future__ import annotations

import errno
import hashlib
import os
import py_compile
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Phase, Record, Share, Task
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.rules import integrity
from mixmark.harness.measure import audit, solo
from mixmark.harness.measure.audit import CPU, Auditor
from mixmark.harness.measure.phase import attend
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker import handle, isolation, sealed
from mixmark.harness.worker.handle import Worker
from mixmark.harness.worker.process.child_process import ChildProcess
from tests.fakes.cheats import DEVICE
from tests.fakes.escapes import NAP
from tests.fakes.workers import NULL
from tests.golden.sample import result
from tests.judge.found import Said, facts
from tests.marks import linux
from tests.measure import test_cheats
from tests.measure.test_audit import Run
from tests.measure.test_cheats import LIMITS, ROUTE, equipment

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("importable")]


measured = partial(test_cheats.measured, adapter="escapes")


def told(record: Record) -> list[Said]:
    return [facts(each) for each in integrity.no_orphans(gather(result(record)))]


def naps() -> list[psutil.Process]:
    """The processes of the fakes that live now."""
    return [
        each
        for each in psutil.process_iter(["cmdline", "status"])
        if NAP[-1] in (each.info["cmdline"] or ()) and each.info["status"] != psutil.STATUS_ZOMBIE
    ]


@linux
@pytest.mark.parametrize("what", ["daemon", "session"])
def test_what_left_the_workers_group_is_killed_and_told(tmp_path: Path, what: str) -> None:
    record = measured(tmp_path, what)
    assert record.completions is not None
    [(code, _, values)] = told(record)
    assert (code, values["processes"]) == ("no_orphans.survived", 1)
    assert values["names"][0].startswith("python")
    assert naps() == []


@pytest.mark.parametrize("what", ["server", "child"])
def test_an_adapter_that_ends_what_it_started_is_not_accused(tmp_path: Path, what: str) -> None:
    record = measured(tmp_path, what)
    assert record.completions is not None
    assert told(record) == []
    assert naps() == []


@pytest.mark.parametrize("leaves", [False, True])
def test_a_helper_that_was_there_before_is_told_and_lives_on(tmp_path: Path, leaves: bool) -> None:
    """Also if it leaves as soon as nothing is timed any more."""
    start = f"{shlex.join(NAP)} >/dev/null 2>&1 & echo $!"  # its parent ends, so it is no child of this process
    helper = int(subprocess.run(["sh", "-c", start], check=True, capture_output=True).stdout)
    try:
        record = measured(tmp_path, "helper", helper=str(helper), leaves="yes" if leaves else "")
        assert [each.pid for each in naps()] == ([] if leaves else [helper])
    finally:
        with suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)
    [(code, _, values)] = told(record)
    assert (code, values["processes"]) == ("no_orphans.helped", 1)


def test_a_helper_that_was_born_in_the_run_ends_with_its_worker(tmp_path: Path) -> None:
    assert told(measured(tmp_path, "young-helper")) == []
    assert naps() == []


@pytest.mark.parametrize(
    ("find", "reason"),
    [
        (lambda: 1, "it is the harness or started it, so its load cannot be told from the harness's own"),
        (os.getpid, "it is the harness or started it, so its load cannot be told from the harness's own"),
        (os.getppid, "it is the harness or started it, so its load cannot be told from the harness's own"),
        (lambda: 2**22 + 1, "there is no such process"),  # beyond Linux's largest process id
    ],
    ids=["the first process", "the harness", "its parent", "none"],
)
def test_a_helper_that_cannot_be_one_is_refused(tmp_path: Path, find: Callable[[], int], reason: str) -> None:
    error = measured(tmp_path, "helper", helper=str(find())).error
    assert error is not None and error.message == f"the runner names process {find()} as a helper, but {reason}"


def test_a_process_that_this_one_started_itself_is_none_of_a_worker(tmp_path: Path) -> None:
    with subprocess.Popen(NAP) as own, subprocess.Popen(NAP, start_new_session=True) as before:
        assert told(measured(tmp_path, "child")) == []
        assert (own.poll(), before.poll()) == (None, None)
        own.kill()
        before.kill()


@linux
def test_the_channel_is_a_socket_that_no_file_name_opens(tmp_path: Path) -> None:
    code = "import os, sys, time; os.write(int(sys.argv[1]), b'here'); time.sleep(1000)"
    process = ChildProcess(sys.executable, code, [], {}, tmp_path / "log")
    try:
        assert process.receive(30) == b"here"
        for pid in (process.pid, os.getpid()):
            for link in [*Path(f"/proc/{pid}/fd").iterdir()]:
                if os.path.lexists(link) and os.readlink(link).startswith("socket:"):
                    with pytest.raises(OSError, match="No such device or address"):
                        link.open("wb").close()
        with socket.socket(fileno=os.dup(process.channel.fileno())) as channel:
            assert channel.family == socket.AF_UNIX
    finally:
        process.close()


PATCH = "open({mark!r}, 'a').write('ran')\n"
AUDITED = """
import sys
from pathlib import Path
from tests.measure.test_audit import Run
from tests.worker.test_isolation import measured
folder, mark = map(Path, sys.argv[1:])
assert measured(folder / "a", "child").completions is not None
assert mark.exists(), "it runs in a worker"
mark.unlink()
found = Run(folder).audited()
assert found.audit.passed, found
assert not mark.exists(), "it ran in the auditor"
"""


def test_no_hook_of_the_environment_runs_in_the_auditor(tmp_path: Path) -> None:
    """The environment is another one, which has all packages of this one and a .pth file that runs code."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "base.pth").write_text(f"import site; site.addsitedir({sysconfig.get_paths()['purelib']!r})\n")
    (site / "acme_patch.py").write_text(PATCH.format(mark=str(tmp_path / "mark")))
    (site / "acme_patch.pth").write_text("import acme_patch\n")
    words = [str(tmp_path / "venv/bin/python"), "-c", AUDITED, str(tmp_path), str(tmp_path / "mark")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_auditor_keeps_few_variables_and_attaches_to_no_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("ACME_SECRET", "1")
    seen: dict[str, object] = {}

    def noted(*given: Any) -> ChildProcess:
        seen["variables"], seen["isolated"] = given[3], given[5]
        return ChildProcess(*given)

    monkeypatch.setattr(handle, "ChildProcess", noted)
    assert Run(tmp_path).audited().audit is not None
    assert seen["isolated"] is True
    variables = seen["variables"]
    assert isinstance(variables, dict)
    assert not variables.keys() & {"PYTHONPATH", "LD_PRELOAD", "ACME_SECRET"}
    assert variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


SWAPPED = """
import sys
from pathlib import Path
import mixmark
from mixmark.harness.measure.audit import clean_process
copy, folder = Path(sys.argv[1]), Path(sys.argv[2])
assert Path(mixmark.__file__).is_relative_to(copy)
with clean_process() as clean:
    measures = [*copy.glob("*.py"), *(copy / "harness").rglob("*.*"), *(copy / "suites").rglob("*.*")]
    for file in filter(Path.is_file, measures):  # what a plugin's process may do while anything is imported
        file.write_text("raise RuntimeError('swapped')")
    from tests.worker.test_isolation import resnet50
    resnet50(folder, clean)
"""


def resnet50(folder: Path, clean: Worker | None) -> None:
    """Measures a suite of Mixmark by its torch adapter, and audits it."""
    route = ROUTE.model_copy(update={"device": CPU.id, "adapter": "torch", "suite": "resnet50", "suite_version": "8"})
    equipped = replace(
        equipment({}),
        suites={"resnet50": Plugin("suites", "resnet50", registry.BUILT_IN["suites"]["resnet50"], "")},
        adapters={"torch": Plugin("adapters", "torch", registry.BUILT_IN["adapters"]["torch"], "")},
        devices={(CPU.id, "torch"): CPU},
        units={"resnet50": "image"},
    )
    share = Share(key="a", route=route, scenario="single-stream", batch=1, limits=LIMITS)
    for name in ("raw", "logs"):
        (folder / name).mkdir(parents=True)
    phase = Phase(name="a", purpose="solo", tasks=(Task(device=CPU.id, shares=(share,)),))
    (record,) = attend(phase, equipped, folder, solo.drive)
    assert record.completions is not None, record.error
    kept: list[Record] = []
    Auditor(folder, lambda record: equipped.choice(record.route), CPU, 60, clean=clean).run([record], kept.append)
    assert kept[-1].audit and kept[-1].audit.passed, kept


def test_files_that_are_swapped_while_a_run_goes_on_reach_no_process(tmp_path: Path) -> None:
    """Each file of a copy of Mixmark that measures, code and data. It measures and audits all the same."""
    root = Path(__file__).parents[2]
    copy = shutil.copytree(root / "mixmark", tmp_path / "copy" / "mixmark")  # what is linked, too
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy.parent), str(root)))}
    words = [sys.executable, "-P", "-c", SWAPPED, str(copy), str(tmp_path / "result")]
    done = subprocess.run(words, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(words, capture_output=True, text=True, env=variables)
    assert "swapped" in again.stderr  # what a process would have read


def test_each_file_that_measures_is_listed_with_its_hash(tmp_path: Path) -> None:
    """The list has what measures, code and data, and nothing else of the package."""

    def listed() -> dict[str, str]:
        return sealed.hashes(tmp_path, sealed.read(tmp_path))

    measures = ("harness/adapters/torch/fused.py", "suites/llm/graphs/smoke.json", "api.py")
    for name in (*measures, "reporters/report.py", "harness/README.md", "harness/__pycache__/a.py"):
        file = tmp_path / "mixmark" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a = 1\n")
    assert listed() == {f"mixmark/{name}": hashlib.sha256(b"a = 1\n").hexdigest() for name in sorted(measures)}
    fused = tmp_path / "mixmark" / measures[0]
    before = listed()
    fused.write_text("a = 2\n")
    assert {path for path, _ in before.items() ^ listed().items()} == {f"mixmark/{measures[0]}"}


def test_what_was_sealed_cannot_be_written() -> None:
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(sealed.own().descriptor, b"x", 0)


@linux
def test_code_that_finds_no_room_is_an_error_of_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = (sys.executable, "-m", "mixmark", "run", "--tier", "smoke", "--out", str(tmp_path / "out"))
    done = subprocess.run(["bash", "-c", f"ulimit -f 60; {shlex.join(words)}"], capture_output=True, text=True)
    assert done.returncode == 2 and "raise `ulimit -f`" in done.stderr and "Traceback" not in done.stderr
    for number in (errno.ENOMEM, errno.ENOSPC, errno.EPERM):

        def refuse(*given: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "memfd_create", refuse)
        with pytest.raises(UsageError, match=f"in memory .* {os.strerror(number)}") as refused:
            sealed.seal(tmp_path, {})
        assert "shared memory" in refused.value.hint


def test_a_suite_of_another_package_is_sealed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its compiled file, which the interpreter would take, nor its changed source runs in the auditor."""
    suite = tmp_path / "borrowed.py"
    suite.write_text("word = 'true'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    apart = isolation.isolation("borrowed:Suite")
    assert apart.suite is not None
    suite.write_text("word = 'fake'\n")
    py_compile.compile(str(suite))
    code = f"{sealed.prelude(apart.suite)}import borrowed\nprint(borrowed.word)"
    words = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, pass_fds=[apart.suite.descriptor])
    assert done.stdout == "true\n", done.stderr


@pytest.mark.parametrize(
    ("kind", "id", "loads"),
    [("npu", "npu:acme0", True), ("gpu", "gpu:musa0", True), ("gpu", "gpu:GPU-1", False), ("cpu", "cpu:0", False)],
)
def test_torch_finds_a_vendors_backend_for_its_devices_alone(
    kind: Any, id: str, loads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the package lies in another folder than torch, as an editable one does."""
    (facts := tmp_path / "acme-1.dist-info").mkdir()
    (facts / "METADATA").write_text("Name: acme\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\nacme = vendor:load\n")
    (tmp_path / "vendor.py").write_text("import torch\ndef load():\n    torch.acme = 'loaded'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    apart = isolation.isolation("mixmark.suites.probe:Probe", DEVICE.model_copy(update={"kind": kind, "id": id}))
    words = [sys.executable, "-I", "-S", "-c", apart.prelude + "import torch\nprint(getattr(torch, 'acme', 'none'))"]
    done = subprocess.run(words, capture_output=True, text=True, env=dict(apart.variables))
    assert done.stdout == ("loaded\n" if loads else "none\n"), done.stderr


PEEK = """
import ctypes, os, sys
if os.getuid() == 0:
    os.setuid(65534)  # no limit applies to root
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as an ordinary user's process begins
"""


@linux
@pytest.mark.parametrize("prelude", ["", f"FOLDERS = []\n{isolation.PRELUDE}"], ids=["worker", "auditor"])
def test_no_process_of_the_same_user_reads_the_memory_of_the_auditor(prelude: str) -> None:
    waits = "sys.stdout.write(str(os.getpid())); sys.stdout.flush(); sys.stdin.read()"
    reads = "open(f'/proc/{sys.argv[1]}/mem', 'rb')"
    with subprocess.Popen(
        [sys.executable, "-c", f"{PEEK}{prelude}{waits}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as read:
        assert read.stdout
        pid = os.read(read.stdout.fileno(), 100).decode()
        peeking = subprocess.run([sys.executable, "-c", PEEK + reads, pid], capture_output=True, text=True)
        read.kill()
    if not prelude and "PermissionError" in peeking.stderr:
        pytest.skip("ptrace_scope keeps this user's processes apart: sysctl kernel.yama.ptrace_scope=0")
    assert ("PermissionError" in peeking.stderr) == bool(prelude), peeking.stderr


def test_a_suite_that_is_nowhere_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path)
    gone = NULL.model_copy(update={"spec": "no_such_suite:Null"})
    Auditor(tmp_path, lambda record: gone, CPU, 60).run([run.record], run.kept.append)
    assert "there is no module no_such_suite" in run.kept[-1].unaudited
    assert audit.pending(run.record)
