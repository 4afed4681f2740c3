"""Helping hands, on real processes: a worker that leaves its slice, one that is stopped, work that goes elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mixmark.harness.contracts.schema import Conditions
from mixmark.harness.discover.machine.counters import Machine, between
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.rules import integrity
from tests.golden.sample import closed_loop, record, result

SPIN = "import sys, threading, time\nprint(flush=True)\n"
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
several = pytest.mark.skipif(len(CPUS) < 2, reason="needs Linux and two CPUs")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


@contextmanager
def worker(code: str = "time.sleep(60)") -> Iterator[subprocess.Popen[bytes]]:
    """A process that is pinned to the first CPU and runs the code from its second line on."""
    begin = f"import os; os.sched_setaffinity(0, {{{CPUS[0]}}})\n{SPIN}"
    with subprocess.Popen([sys.executable, "-c", begin + code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline() if "again" in code else None
        try:
            yield process
        finally:
            process.kill()


def block(machine: Machine, meanwhile: object = None) -> Conditions:
    before = machine.read()
    if callable(meanwhile):
        meanwhile()
    return between(before, machine.read())


def told(rule: object, *blocks: Conditions) -> list[tuple[str, str]]:
    """What a rule says of a record whose window is that of the blocks."""
    assert callable(rule)
    measured = record("a", "llm", "token", closed_loop([[10**9]] * 4))
    inside = tuple(
        each.model_copy(update={"begin_ns": at * 10**9 + 1, "end_ns": (at + 1) * 10**9 + 1})
        for at, each in enumerate(blocks)
    )
    found = rule(gather(result(measured.model_copy(update={"conditions": inside}))))
    return [(each.severity, each.message) for each in found]


@several
def test_a_worker_that_stays_in_its_slice_is_not_accused() -> None:
    with worker() as process:
        found = block(Machine([process.pid], pinned={process.pid: CPUS[:1]}))
    assert found.strayed_threads == 0
    assert told(integrity.threads_pinned, found) == []
    assert block(Machine([process.pid])).strayed_threads is None


@several
@pytest.mark.parametrize(
    "code",
    [
        f"os.sched_setaffinity(0, {{{CPUS[-1]}}})" if CPUS else "",
        f"threading.Thread(target=lambda: (os.sched_setaffinity(0, {CPUS}), time.sleep(60))).start(); time.sleep(0.3)",
        f"import subprocess; subprocess.Popen(['taskset', '-cp', '{CPUS[-1]}', str(os.getpid())]).wait()",
    ],
    ids=["all", "a thread", "by a child"],
)
def test_a_worker_that_resets_its_affinity_is_told(code: str) -> None:
    with worker(f"{code}\nprint('again', flush=True)\ntime.sleep(60)") as process:
        found = block(Machine([process.pid], pinned={process.pid: CPUS[:1]}))
    assert found.strayed_threads == 1
    message = "1 thread of the phase's workers could run on cores outside of their slice"
    assert told(integrity.threads_pinned, found) == [("invalid", message)]


@several
def test_a_child_of_the_worker_counts_with_it() -> None:
    nap = f"import os, time; os.sched_setaffinity(0, {CPUS}); time.sleep(60)"
    code = f"import subprocess\nchild = subprocess.Popen([sys.executable, '-c', {nap!r}])\ntime.sleep(1)\n"
    with worker(f"{code}print('again', flush=True)\ntime.sleep(60)\nchild.kill()") as process:
        found = block(Machine([process.pid], pinned={process.pid: CPUS[:1]}))
        for child in psutil.Process(process.pid).children():
            child.kill()
    assert found.strayed_threads == 1


@linux
def test_a_worker_that_was_stopped_is_told_also_when_it_runs_again() -> None:
    with worker() as process:
        machine = Machine([process.pid])
        assert told(integrity.never_suspended, block(machine)) == []

        def briefly() -> None:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            process.send_signal(signal.SIGCONT)

        brief = block(machine, briefly)
        quiet = block(machine)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        still = block(machine)
    assert [each.stopped_processes for each in (brief, quiet, still)] == [1, 0, 1]
    message = "a process of the phase's workers was stopped by a signal, in 2 blocks of the window"
    assert told(integrity.never_suspended, brief, quiet, still) == [("invalid", message)]


def test_traffic_is_counted_without_the_loopback(tmp_path: Path) -> None:
    head = "Inter-|   Receive                            |  Transmit\n face |bytes    packets\n"
    table = tmp_path / "proc/net/dev"
    table.parent.mkdir(parents=True)

    def carry(received: int, sent: int) -> None:
        loopback = f"    lo: {9**9} 1 0 0 0 0 0 0 {9**9} 1 0 0 0 0 0 0\n"
        cable = f"  eth0:{received} 2 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n"
        table.write_text(f"{head}{loopback}{cable} wlan0: 5 2 0 0 0 0 0 0 7 2 0 0 0 0 0 0\n")

    carry(1000, 50)
    found = block(Machine(root=tmp_path), lambda: carry(51_000, 13_050))
    assert (found.received_bytes, found.sent_bytes) == (50_000, 13_000)
    assert told(integrity.network_quiet, found) == []  # in a second
    busy = found.model_copy(update={"sent_bytes": 15_000})
    message = "the machine's network carried 65 kB a second in the window, for this run or for others (at rest: 64 kB)"
    assert told(integrity.network_quiet, busy) == [("warning", message)]
    assert told(integrity.network_quiet, busy, found.model_copy(update={"received_bytes": 0})) == []  # on average


def test_a_machine_that_tells_nothing_accuses_nobody(tmp_path: Path) -> None:
    found = block(Machine([1], root=tmp_path, pinned={1: [0]}))
    assert (found.stopped_processes, found.strayed_threads) == (None, None)
    assert (found.received_bytes, found.sent_bytes) == (None, None)
    for rule in (integrity.threads_pinned, integrity.never_suspended, integrity.network_quiet):
        assert told(rule, found) == []
