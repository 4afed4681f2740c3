"""A fake NVML that replays what a real one returned for two NVIDIA cards; other cards are made up from nvml.h."""

from __future__ import annotations

import inspect
import json
import platform
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Absent, Device, Domain, Samples
from mixmark.harness.judge.energy.reading import reading
from mixmark.harness.judge.energy.total import disagreements
from mixmark.harness.meters import nvml
from mixmark.harness.meters.nvml import Nvml
from mixmark.harness.meters.rapl import Rapl

ONE, OTHER = "GPU-5d1cae40-0000-4000-8000-000000000001", "GPU-5d1cae40-0000-4000-8000-000000000002"
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
NOT_SUPPORTED = 3


def gpu(uuid: str) -> Device:
    return Device(id=f"gpu:{uuid}", kind="gpu", memory_pool=f"gpu:{uuid}")


class Refused(Exception):
    """Stands for pynvml.NVMLError."""


Trace = Callable[[int], int]


@dataclass(frozen=True)
class Card:
    """What it can tell, as functions of time in ms; None: not supported."""

    energy_mj: Trace | None = None
    instant_mw: Trace | None = None
    average_mw: Trace | None = None
    usage_mw: Trace | None = None
    mig: int | None = None
    capability: tuple[int, int] = (9, 0)

    @property
    def fields(self) -> Mapping[tuple[int, int], Trace | None]:
        return {(nvml.POWER_INSTANT, nvml.GPU): self.instant_mw, (nvml.POWER_AVERAGE, nvml.GPU): self.average_mw}


class Library:
    NVMLError = Refused
    NVML_SUCCESS = 0
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, cards: Mapping[str, Card]) -> None:
        self.cards = cards
        self.now_ms = 1000
        self.broken = ""

    def nvmlInit(self) -> None:
        self.told(None if self.broken else 0)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        if uuid not in self.cards:
            raise Refused("Not Found")
        return self.cards[uuid]

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        return [self.told(card.mig), 0]

    def nvmlDeviceGetTotalEnergyConsumption(self, card: Card) -> int:
        return self.told(card.energy_mj and card.energy_mj(self.now_ms))

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return self.told(card.usage_mw and card.usage_mw(self.now_ms))

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return card.capability

    def nvmlDeviceGetFieldValues(self, card: Card, fields: list[tuple[int, int]]) -> list[SimpleNamespace]:
        trace = card.fields[fields[0]]
        self.told(0)
        milliwatts = trace(self.now_ms) if trace else 0
        status = 0 if trace else NOT_SUPPORTED
        return [SimpleNamespace(nvmlReturn=status, value=SimpleNamespace(uiVal=milliwatts))]

    def told(self, value: int | None) -> int:
        if value is None or self.broken:
            raise Refused(self.broken or "Not Supported")
        return value


def test_the_fake_is_called_as_the_real_library_is() -> None:
    import pynvml

    for name in (each for each in vars(Library) if each.startswith("nvml")):
        real, fake = (inspect.signature(getattr(each, name)).parameters for each in (pynvml, Library))
        assert len(real) == len(fake) - 1, name
    assert (pynvml.NVML_SUCCESS, pynvml.NVML_DEVICE_MIG_ENABLE) == (0, 1)
    assert (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_POWER_SCOPE_GPU) == (NOT_SUPPORTED, nvml.GPU)
    assert pynvml.NVML_FI_DEV_POWER_AVERAGE == nvml.POWER_AVERAGE
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == nvml.POWER_INSTANT
    value = pynvml.c_nvmlFieldValue_t(nvmlReturn=0)
    value.value.uiVal = 45_000
    assert (value.nvmlReturn, value.value.uiVal) == (0, 45_000)


LOGS = {
    name: json.loads((Path(__file__).parent / "logs" / f"nvml-{name}.json").read_text()) for name in ("h100", "h200")
}


def recorded(phase: str, column: int, name: str = "h200") -> Trace:
    """The value of the last row that is not later."""
    rows = LOGS[name][phase]
    return lambda now_ms: int(rows[max(0, bisect_right(rows, now_ms, key=lambda row: row[0]) - 1)][column])


REST = Card(recorded("rest", 1), recorded("rest", 3), recorded("rest", 4), recorded("rest", 2), mig=0)
WORK = {name: replace(REST, energy_mj=recorded("work", 1, name), instant_mw=recorded("work", 2, name)) for name in LOGS}


def found(
    monkeypatch: pytest.MonkeyPatch, library: Library, *devices: Device, machine: str = "x86_64"
) -> tuple[Nvml, dict[str, Domain], dict[str, str]]:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    meter = Nvml({})
    answers = list(meter.domains(devices))
    domains = {each.id: each for each in answers if isinstance(each, Domain)}
    return meter, domains, {each.name: each.reason for each in answers if isinstance(each, Absent)}


def test_a_gpu_gives_its_counter_and_its_power_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library({ONE: REST, OTHER: REST})
    _, domains, absent = found(monkeypatch, library, CPU, gpu(ONE))
    assert not absent and [*domains] == [f"nvml/{ONE}/energy", f"nvml/{ONE}/power"]
    energy, power = domains.values()
    assert (energy.quantity, energy.method, energy.parent) == ("energy", "counter", None)
    assert (power.quantity, power.method, power.parent) == ("power", "integrated", energy.id)
    assert energy.covers == power.covers == (f"gpu:{ONE}",)


@pytest.mark.parametrize(("name", "first", "joules"), [("h100", 40, [1751, 1742]), ("h200", 5, [1215, 1219])])
def test_the_counter_and_the_integral_of_the_power_agree(
    monkeypatch: pytest.MonkeyPatch, name: str, first: int, joules: list[int]
) -> None:
    """first: of the H100's readings those before were held up by the start of the load."""
    library = Library({ONE: WORK[name]})
    meter, domains, _ = found(monkeypatch, library, gpu(ONE))
    values: dict[str, list[float]] = {id: [] for id in domains}
    times_ms = [row[0] for row in LOGS[name]["work"]]
    for library.now_ms in times_ms:
        for domain in domains.values():
            values[domain.id] += [sample.value for sample in meter.read(domain)]
    at_ns = np.array(times_ms) * 1_000_000
    samples = {id: Samples(at_ns, at_ns + 1, np.array(each)) for id, each in values.items()}
    readings = {id: reading(domain, samples[id], *at_ns[[first, -5]]) for id, domain in domains.items()}
    assert [round(each.joules or 0) for each in readings.values()] == joules
    [(_, _, differ)] = disagreements(domains.values(), readings)
    assert abs(differ) < 0.006, "the limit of the rule is eight times that"


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", ["power"]),
        ("nvmlDeviceGetFieldValues", ["energy", "power"]),
        ("nvmlDeviceGetMigMode", ["energy", "power"]),
        ("nvmlDeviceGetCudaComputeCapability", ["energy", "power"]),
    ],
)
@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_a_call_that_the_library_lacks_loses_this_call_and_not_the_source(
    monkeypatch: pytest.MonkeyPatch, call: str, left: list[str], error: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise error(call)

    library = Library({ONE: replace(REST, instant_mw=None, average_mw=None)})
    monkeypatch.setattr(library, call, fails, raising=False)
    meter, domains, absent = found(monkeypatch, library, gpu(ONE))
    assert not absent and [id.rpartition("/")[2] for id in domains] == left
    assert [meter.read(each)[0].value for each in domains.values() if each.quantity == "power"] == [78.165]


@pytest.mark.parametrize(
    ("lacks", "capability", "source", "averaging_ns"),
    [
        ((), (9, 0), "POWER_INSTANT", None),
        (("instant_mw",), (9, 0), "POWER_AVERAGE", 1_000_000_000),
        (("instant_mw", "average_mw"), (8, 6), "PowerUsage", 1_000_000_000),
        (("instant_mw", "average_mw"), (8, 0), "PowerUsage", None),
        (("instant_mw", "average_mw"), (7, 0), "PowerUsage", None),
    ],
)
def test_power_comes_by_the_best_way_that_the_driver_knows(
    monkeypatch: pytest.MonkeyPatch,
    lacks: tuple[str, ...],
    capability: tuple[int, int],
    source: str,
    averaging_ns: int | None,
) -> None:
    card = replace(REST, capability=capability, **dict.fromkeys(lacks))
    _, domains, _ = found(monkeypatch, Library({ONE: card}), gpu(ONE))
    power = domains[f"nvml/{ONE}/power"]
    assert source in power.source
    assert power.averaging_ns == averaging_ns


def test_beside_a_grace_cpu_the_usage_may_be_of_the_module_so_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(REST, instant_mw=None, average_mw=None)
    _, domains, _ = found(monkeypatch, Library({ONE: bare}), CPU, gpu(ONE), machine="aarch64")
    assert [*domains] == [f"nvml/{ONE}/energy"]


MIG = "MIG-5d1cae40-0000-4000-8000-000000000003"


@pytest.mark.parametrize(
    ("cards", "broken", "uuid", "reason"),
    [
        ({ONE: Card(usage_mw=lambda _: 0)}, "", ONE, "sensor"),
        ({ONE: replace(REST, mig=1)}, "", ONE, "nvidia-smi -mig 0"),
        ({MIG: replace(REST, mig=None)}, "", MIG, "nvidia-smi -mig 0"),
        ({}, "", ONE, "NVML: Not Found"),
        ({}, "NVML Shared Library Not Found", ONE, "NVML Shared Library Not Found: sudo modprobe nvidia"),
    ],
)
def test_what_has_no_meter_is_named_and_not_zero(
    monkeypatch: pytest.MonkeyPatch, cards: Mapping[str, Card], broken: str, uuid: str, reason: str
) -> None:
    library = Library(cards)
    library.broken = broken
    _, domains, absent = found(monkeypatch, library, gpu(uuid))
    assert not domains and reason in absent["nvml" if broken else f"gpu:{uuid}"]


def test_each_gpu_of_a_group_has_its_own_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library({ONE: REST, OTHER: REST})
    group = Device(id="gpu:both", kind="gpu", memory_pool="gpu:both", parts=(f"gpu:{ONE}", f"gpu:{OTHER}"))
    _, domains, _ = found(monkeypatch, library, group)
    assert sorted(each.covers for each in domains.values() if each.quantity == "energy") == [
        (f"gpu:{ONE}",),
        (f"gpu:{OTHER}",),
    ]


def test_a_gpu_that_falls_off_the_bus_is_an_error_and_not_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library({ONE: REST})
    meter, domains, _ = found(monkeypatch, library, gpu(ONE))
    library.broken = "GPU is lost"
    for domain in domains.values():
        with pytest.raises(OSError, match="GPU is lost"):
            meter.read(domain)


@pytest.mark.parametrize("meter", [Nvml, Rapl])
def test_meters_that_find_their_sources_take_no_options(meter: Callable[[dict[str, str]], object]) -> None:
    with pytest.raises(UsageError, match="index"):
        meter({"index": "0"})
