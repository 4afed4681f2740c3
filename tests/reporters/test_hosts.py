"""Each report of a run over several hosts lists equal hosts once, their network traffic."""

from __future__ import annotations

import csv

import pytest

import mixmark.reporters.data
from mixmark.harness.contracts.schema import Failure, Hosts
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.plan import mixes
from mixmark.reporters import hosts, report
from mixmark.reporters.hosts import label
from tests.fakes.hosts import cluster, rates
from tests.fakes.machine import EDGE, one_run
from tests.golden.sample import altered, system
from tests.judge.test_hosts import carrying

THREE = ("host1", "host2", "host3")
OTHER = system().model_copy(update={"cpu_model": "Acme Onyx", "cpu_threads": 8, "memory_bytes": 16 << 30})


@pytest.fixture(scope="module")
def clustered() -> Assessment:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})
        run = carrying(cluster(THREE), "host3", 500_000)
        hosts = (Hosts(names=("host1", "host3"), system=system()), Hosts(names=("host2",), system=OTHER))
        return judge(run.model_copy(update={"hosts": hosts}))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_equal_hosts_are_listed_once_with_their_names(clustered: Assessment) -> None:
    text = report.full(clustered)
    assert "2 hosts: host1, host3  Acme Quartz 9000 · 32 threads · 64.0 GiB · Example Linux 12" in text
    assert "1 host: host2          Acme Onyx · 8 threads · 16.0 GiB" in text
    assert text.startswith("2 × Acme Quartz 9000, Acme Onyx")


def test_the_summary_names_the_cluster_and_a_line_its_processors(clustered: Assessment) -> None:
    assert "This cluster of 3 hosts does one edge mix" in flat(report.console(clustered))
    header, *lines = mixmark.reporters.data.as_csv(clustered).splitlines()
    first = dict(zip(header.split(","), next(csv.reader(lines)), strict=True))
    assert (first["cpu_model"], first["cpu_threads"]) == ("2 × Acme Quartz 9000, Acme Onyx", "72")
    assert int(first["memory_bytes"]) == (64 + 64 + 16) << 30


def test_two_hosts_on_one_machine_are_not_two_machines(clustered: Assessment) -> None:
    names = ("host1", "host2", "host3")
    shared = clustered.result.model_copy(update={"hosts": (Hosts(names=names, machines=1, system=system()),)})
    assert (shared.machine.cpu_model, shared.machine.cpu_threads) == (system().cpu_model, system().cpu_threads)
    assert hosts.subject(shared) == "This machine, as 3 hosts,"
    (group,) = shared.groups
    assert hosts.label(group) == "3 hosts on 1 machine: host1, host2, host3"
    beside = (Hosts(names=names[:2], machines=1, system=system()), Hosts(names=names[2:], system=OTHER))
    two = shared.model_copy(update={"hosts": beside})
    assert hosts.subject(two) == "This cluster of 3 hosts on 2 machines"
    assert two.machine.cpu_threads == (system().cpu_threads or 0) + 8


def test_a_group_is_named_by_its_first_hosts() -> None:
    many = Hosts(names=tuple(f"host{number}" for number in range(1, 15)), system=system())
    assert label(many).startswith("14 hosts: host1, ") and label(many).endswith(", host12 and 2 more")
    assert [*map(label, one_run(None).groups)] == ["machine"]


@pytest.mark.slow
def test_a_page_of_a_hundred_hosts_has_a_row_of_equal_devices_and_names_the_slowest_and_the_failed() -> None:
    names = tuple(f"host{number}" for number in range(1, 101))
    run = cluster(names, speeds=rates(names) | {("llm", "host57/gpu:0"): 80.0}, seconds=5)
    lost = {f"solo.dlrm.{name}-cpu-0" for name in names[-20:]}
    gone = {"completions": None, "error": Failure(kind="crashed", message="out of memory"), "audit": None}
    judged = judge(altered(run, lambda record: record.key in lost, **gone))
    rows = {(row[0], row[2]): row[3:] for row in hosts.table(judged).rows}
    assert rows["llm", "host57/gpu:0"] == ("100", "80.0 tok/s", "100 tok/s", "100 tok/s")
    assert rows["dlrm", "host1/cpu:0"] == ("80", *["30,000 samples/s"] * 3)
    page = report.html(judged)
    text = report.full(judged)
    assert len(page.encode()) < 1_000_000 and len(text.splitlines()) < 250
    assert 'id="solo.llm.host57-gpu-0"' in page and "solo.llm.host58-gpu-0" not in page
    assert "dlrm on host81/cpu:0 by acme in bf16, offline, " in page and "and 8 more: crashed: out of" in flat(text)
