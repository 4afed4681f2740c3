"""What the agents of a run found on their hosts, put together; and which hosts take no part."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.hosts import launchers, messages
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.gather import Gathered, gather
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Absent, Domain, Environment
from mixmark.harness.plan.phases import Workload
from tests.capabilities.hosts.stand_ins import PACKAGE, StandIn, StandInLauncher, device
from tests.golden import sample

WORKLOADS = (Workload("low", "1", ("offline",)), Workload("high", "1", ("offline",)))
CPU = {"kind": "cpu", "memory_pool": "host"}


def refused(found: Gathered) -> list[tuple[str, str]]:
    return [(each.name, each.reason) for each in found.found.absent if each.kind == "host"]


def gathered(folder: Path, found: Mapping[str, StandIn | str], **cores: tuple[int, ...]) -> Gathered:
    launcher = StandInLauncher(folder, found)
    hosts = [launchers.Host(name, cores=cores.get(name, ())) for name in found]
    with Agents(launcher, hosts, folder) as agents:
        return gather(agents, hosts, messages.HostQuery(), WORKLOADS)


def suites(name: str = "low", version: str = "1", weights: str = "synthetic") -> tuple[Workload, ...]:
    return WORKLOADS[1], Workload(name, version, ("offline",), weights=weights)


class Saying(StandIn):
    """It says something else than others of what it has."""

    def __init__(self, **other: Any) -> None:
        super().__init__()
        self.other = other

    def describe_host(self, *, query: messages.HostQuery) -> messages.HostDescription:
        description = super().describe_host(query=query)
        environments = self.other.pop("environments", {})
        found = dataclasses.replace(description.found, environments=environments)
        return description.model_copy(update={"found": found, **self.other})


class Arriving(StandIn):
    """Its first line is another."""

    def __init__(self, **other: object) -> None:
        super().__init__()
        self.arrival = json.dumps(json.loads(self.arrival) | other).encode() + b"\n"


class Refusing(StandIn):
    """It cannot do what is asked."""

    def describe_host(self, *, query: messages.HostQuery) -> messages.HostDescription:
        raise MixmarkError("there is no file llm.safetensors", "copy it to every host")


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("its ssh failed: connection refused", "its ssh failed: connection refused"),
        (
            Arriving(mixmark="9.9"),
            "it has Mixmark 9.9 with other files than Mixmark 0.1.0 of this host; install the same",
        ),
        (Arriving(code="0" * 64), "it has Mixmark 0.1.0 with other files than Mixmark 0.1.0 of this host"),
        (Saying(suites=suites(version="2")), "it has version 2 of the suite low, and this host 1"),
        (
            Saying(suites=suites(weights="a sampled-sha256:1")),
            "its weights of low are a sampled-sha256:1, and this host's are",
        ),
        (Saying(suites=suites(name="other")), "it has no suite low"),
        (Refusing(), "there is no file llm.safetensors; copy it to every host"),
    ],
    ids=["unreached", "version", "code", "suite", "weights", "lacking", "refusing"],
)
def test_a_host_that_has_something_else_takes_no_part(tmp_path: Path, host: StandIn | str, reason: str) -> None:
    found = gathered(tmp_path, {"left": StandIn(), "right": host})
    ((name, why),) = refused(found)
    assert (name, why[: len(reason)]) == ("right", reason)
    assert [target.device.id for target in found.found.targets] == ["left/npu:a"]
    assert [each.names for each in found.hosts] == [("left",)]
    with pytest.raises(MixmarkError, match="no host can be measured") as raised:
        gathered(tmp_path, {"right": "its ssh failed: connection refused"})
    assert raised.value.hint == "right: its ssh failed: connection refused"


def test_agents_on_one_machine_need_cores_of_their_own(tmp_path: Path) -> None:
    def both() -> dict[str, StandIn | str]:
        return {name: StandIn(devices=[device("cpu:0", **CPU)], machine="m") for name in ("left", "right")}

    for cores in ({}, {"left": (0,)}, {"left": (0, 1), "right": (1, 2)}):
        found = gathered(tmp_path, both(), **cores)
        reason = "it is the same machine as left: give each cores = … of its own"
        assert refused(found) == [("right", reason)]
        assert found.neighbours == {"left": ["left"]}
    found = gathered(tmp_path, both(), left=(0, 1), right=(2, 3))
    assert refused(found) == []
    assert [target.device.id for target in found.found.targets] == ["left/cpu:0", "right/cpu:0"]
    assert found.neighbours == {"left": ["left", "right"], "right": ["left", "right"]}
    assert [(each.names, each.machines) for each in found.hosts] == [(("left", "right"), 1)]


def test_an_accelerator_that_two_agents_on_a_machine_see_counts_once(tmp_path: Path) -> None:
    def host(machine: str, *names: str, **other: tuple[str, ...]) -> StandIn:
        groups = [device(name, parts=parts) for name, parts in other.items()]
        return StandIn(devices=[*map(device, names), *groups], machine=machine)

    found = gathered(
        tmp_path,
        {
            "left": host("m", "npu:a"),
            "right": host("m", "npu:a", "npu:b", **{"npu:both": ("npu:a", "npu:b")}),
            "far": host("n", "npu:a"),
        },
        left=(0,),
        right=(1,),
    )
    assert [target.device.id for target in found.found.targets] == ["left/npu:a", "right/npu:b", "far/npu:a"]
    reason = "it is the same device as left/npu:a"
    assert [(each.kind, each.name, each.reason) for each in found.found.absent] == [
        ("device", "right/npu:a", reason),
        ("device", "right/npu:both", reason),
    ]


def test_equal_hosts_are_described_once_and_software_by_host_where_it_differs(tmp_path: Path) -> None:
    new, old = (
        Environment(origin="built in", spec="band:Band", python=each, mixmark="0.1.0") for each in ("3.12.9", "3.12.1")
    )
    other = sample.system().model_copy(update={"cpu_model": "Acme Flint"})
    found = gathered(
        tmp_path,
        {
            "one": Saying(environments={"band": new}),
            "two": Saying(environments={"band": old}, system=other),
            "three": Saying(environments={"band": new}),
        },
    )
    assert [(each.names, each.system.cpu_model) for each in found.hosts] == [
        (("one", "three"), "Acme Quartz 9000"),
        (("two",), "Acme Flint"),
    ]
    assert found.found.environments == {"band": new, "two/band": old}


def test_the_first_host_of_a_machine_reads_its_meters_for_all(tmp_path: Path) -> None:
    class Metered(StandIn):
        def open_meters(self) -> tuple[Domain | Absent, ...]:
            return PACKAGE, Absent(kind="meter", name="nvml", reason="no driver")

    class Blind(StandIn):
        def open_meters(self) -> tuple[Domain | Absent, ...]:
            raise MixmarkError("PermissionError: /sys is not for you")

    hosts: dict[str, StandIn | str] = {"left": Metered(machine="m"), "right": Metered(machine="m"), "far": Blind()}
    found = gathered(tmp_path, hosts, left=(0,), right=(1,))
    assert [(each.id, each.covers) for each in found.domains] == [("left/rapl:0", ("left/cpu:0", "right/cpu:0"))]
    assert [(each.name, each.reason) for each in found.found.absent if each.kind == "meter"] == [
        ("left/nvml", "no driver"),
        ("far/meters", "PermissionError: /sys is not for you"),
    ]
