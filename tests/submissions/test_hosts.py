"""An entry of several hosts: what they are, equal ones once, without the names that their owner gave them."""

from __future__ import annotations

import json

import pytest

from mixmark.harness.contracts.schema import Hosts, Result
from mixmark.harness.judge.assessment import judge
from mixmark.harness.plan import mixes
from mixmark.reporters.hosts import label
from mixmark.submissions.conclude import machine_of
from mixmark.submissions.redact import Redactor, host_names, words_of
from tests.fakes.hosts import cluster, environment_of
from tests.fakes.machine import EDGE
from tests.golden.sample import but, system

UUID = "5d1cae40-0000-4000-8000-0123456789ab"
ONYX = system().model_copy(update={"cpu_model": "Acme Onyx", "cpu_threads": 8, "cpu_cores": 4})


@pytest.fixture(autouse=True)
def _published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixes, "frozen", lambda: {"edge-9": EDGE})


def named(*names: str) -> Result:
    return but(cluster(names, seconds=60), environments={"acme": environment_of("3.12")})


def test_the_names_of_hosts_are_replaced_everywhere_and_the_figures_stay() -> None:
    before = named("lab7-alpha", "lab7-beta")
    words = list(host_names(before))
    assert words == [("lab7-alpha", "machine"), ("lab7-beta", "machine")]
    assert not {"lab7", "alpha", "lab7-alpha"} & words_of(before), "else they were kept as words of the result"
    clean = Redactor(words).result(before)
    assert "lab7" not in json.dumps(clean.model_dump(mode="json"))
    assert [group.names for group in clean.hosts] == [("machine-1", "machine-2")]
    assert {device.host for device in clean.devices} == {"machine-1", "machine-2"}
    assert {connection.host for connection in clean.connections} == {"machine-1", "machine-2"}
    assert {id for metering in clean.meterings for id in metering.samples} == {"machine-1/plug", "machine-2/plug"}
    after, figures = judge(clean).score, judge(before).score
    assert after and figures and (after.mixes_per_kwh, after.headline) == (figures.mixes_per_kwh, figures.headline)


def test_hosts_that_are_only_numbered_keep_their_names() -> None:
    assert list(host_names(named("host1", "node2"))) == []


def test_the_id_of_a_part_of_a_host_is_replaced_with_its_host_left() -> None:
    gpu = f"host1/gpu:GPU-{UUID}"
    before = named("host1", "host2")
    devices = [
        but(each, id=gpu, memory_pool=gpu) if each.id == "host1/gpu:0" else each
        for each in before.devices
        if each.id != "host2/gpu:0"
    ]
    redactor = Redactor()
    nothing = dict.fromkeys(("records", "phases", "meterings", "domains"), ())
    clean = redactor.result(but(before, devices=tuple(devices), **nothing))
    assert "host1/gpu:0" in [device.id for device in clean.devices]
    assert redactor.text(f"mix1.llm.host1-gpu-gpu-{UUID}.bf16") == "mix1.llm.host1-gpu-0.bf16"
    by_number = Redactor(devices={"host1/gpu:5D1CAE40_A": "host1/gpu:0"})
    assert by_number.text("mix1.llm.host1-gpu-5d1cae40-a.bf16") == "mix1.llm.host1-gpu-0.bf16"


def test_an_entry_lists_equal_hosts_once_and_counts_what_they_have_together() -> None:
    before = named("host1", "host2", "host3")
    groups = (Hosts(names=("host1", "host3"), system=system()), Hosts(names=("host2",), system=ONYX))
    machine = machine_of(before.model_copy(update={"hosts": groups}))
    assert [*map(label, machine.hosts)] == ["2 hosts: host1, host3", "1 host: host2"]
    whole = machine.whole
    assert (whole.cpu_model, whole.cpu_cores, whole.cpu_threads) == ("2 × Acme Quartz 9000, Acme Onyx", 36, 72)
