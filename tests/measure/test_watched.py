"""What is read of real processes: a worker that leaves its slice, a stopped worker, traffic of the network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mixmark.harness.contracts.schema import Conditions
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.findings import words
from mixmark.harness.judge.rules import integrity
from mixmark.harness.machine.counters import MachineCounters, between
from tests.golden.sample import but, closed_loop, record, result
from tests.marks import CPUS, two_cpus

SPIN = "import sys, threading, time\nprint(flush=True)\n"


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


def block(machine: MachineCounters, meanwhile: object = None) -> Conditions:
    before = machine.read()
    if callable(meanwhile):
        meanwhile()
    return between(before, machine.read())


def found_by(rule: object, *blocks: Conditions) -> list[tuple[str, str]]:
    """What a rule finds in a record whose window is the blocks' window."""
    assert callable(rule)
    measured = record("a", "llm", "token", closed_loop([[10**9]] * 4))
    inside = tuple(but(each, begin_ns=at * 10**9 + 1, end_ns=(at + 1) * 10**9 + 1) for at, each in enumerate(blocks))
    found = rule(gather(result(but(measured, conditions=inside))))
    return [(each.severity, words(each)) for each in found]


@two_cpus
def test_a_worker_that_stays_in_its_slice_breaks_no_rule() -> None:
    with worker() as process:
        found = block(MachineCounters([process.pid], pinned={process.pid: CPUS[:1]}))
    assert found.strayed_threads == 0
    assert found_by(integrity.threads_pinned, found) == []
    assert block(MachineCounters([process.pid])).strayed_threads is None


@two_cpus
@pytest.mark.parametrize(
    "code",
    [
        f"os.sched_setaffinity(0, {{{CPUS[-1]}}})" if CPUS else "",
        f"threading.Thread(target=lambda: (os.sched_setaffinity(0, {CPUS}), time.sleep(60))).start(); time.sleep(0.3)",
        f"import subprocess; subprocess.Popen(['taskset', '-cp', '{CPUS[-1]}', str(os.getpid())]).wait()",
    ],
    ids=["all", "a thread", "by a child"],
)
def test_a_worker_that_resets_its_affinity_is_found(code: str) -> None:
    with worker(f"{code}\nprint('again', flush=True)\ntime.sleep(60)") as process:
        found = block(MachineCounters([process.pid], pinned={process.pid: CPUS[:1]}))
    assert found.strayed_threads == 1
    message = "1 thread of the phase's workers could run on cores outside of their slice"
    assert found_by(integrity.threads_pinned, found) == [("invalid", message)]


@two_cpus
def test_a_child_of_the_worker_counts_with_it() -> None:
    nap = f"import os, time; os.sched_setaffinity(0, {CPUS}); time.sleep(60)"
    code = f"import subprocess\nchild = subprocess.Popen([sys.executable, '-c', {nap!r}])\ntime.sleep(1)\n"
    with worker(f"{code}print('again', flush=True)\ntime.sleep(60)\nchild.kill()") as process:
        found = block(MachineCounters([process.pid], pinned={process.pid: CPUS[:1]}))
        for child in psutil.Process(process.pid).children():
            child.kill()
    assert found.strayed_threads == 1


def test_traffic_is_counted_without_the_loopback(tmp_path: Path) -> None:
    head = "Inter-|   Receive                            |  Transmit\n face |bytes    packets\n"
    table = tmp_path / "proc/net/dev"
    table.parent.mkdir(parents=True)

    def carry(received: int, sent: int) -> None:
        loopback = f"    lo: {9**9} 1 0 0 0 0 0 0 {9**9} 1 0 0 0 0 0 0\n"
        cable = f"  eth0:{received} 2 0 0 0 0 0 0 {sent} 2 0 0 0 0 0 0\n"
        table.write_text(f"{head}{loopback}{cable} wlan0: 5 2 0 0 0 0 0 0 7 2 0 0 0 0 0 0\n")

    carry(1000, 50)
    found = block(MachineCounters(root=tmp_path), lambda: carry(51_000, 13_050))
    assert (found.received_bytes, found.sent_bytes) == (50_000, 13_000)
    assert found_by(integrity.network_quiet, found) == []  # in a second
    busy = but(found, sent_bytes=15_000)
    message = "the machine's network carried 65 kB a second in the window, for this run or for others (at rest: 64 kB)"
    assert found_by(integrity.network_quiet, busy) == [("warning", message)]
    assert found_by(integrity.network_quiet, busy, but(found, received_bytes=0)) == []  # on average
