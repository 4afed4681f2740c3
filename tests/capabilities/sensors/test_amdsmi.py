"""AMD SMI as its documentation has it, faked: the traces are synthetic and no GPU was ever here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mixmark.harness.capabilities.sensors.amdsmi import AmdSmi
from mixmark.harness.contracts.schema import Absent, Device, Domain

SERIALS = ("0x1A2B3C4D5E6F7081", "0x1a2b3c4d5e6f7082")
TORCH = ("31613262-3363-3464-3565-366637303831", "31613262-3363-3464-3565-366637303832")  # the same, in hex of ASCII
STEP_UJ = 15.3


def gpu(uuid: str) -> Device:
    return Device(id=f"gpu:GPU-{uuid}", kind="gpu", memory_pool=f"gpu:GPU-{uuid}")


class Refused(Exception):
    """Stands for amdsmi.AmdSmiException."""


@dataclass
class Card:
    serial: str
    product: str = "AMD Instinct MI300X"
    watts: Callable[[float], object] = lambda _: 130
    steps: Callable[[float], float] | None = lambda at_s: 130 * at_s * 1e6 / STEP_UJ


@dataclass
class Library:
    cards: list[Card]
    now_s: float = 1000.0
    broken: str = ""
    power_key: str = "current_socket_power"
    energy_key: str = "energy_accumulator"
    AmdSmiException: type[Exception] = field(default=Refused)

    def amdsmi_init(self) -> None:
        if self.broken:
            raise Refused(self.broken)

    def amdsmi_get_processor_handles(self) -> list[Card]:
        return self.cards

    def amdsmi_get_gpu_asic_info(self, card: Card) -> dict[str, str]:
        return {"market_name": card.product, "asic_serial": card.serial}

    def amdsmi_get_energy_count(self, card: Card) -> dict[str, float]:
        self.amdsmi_init()
        if card.steps is None:
            raise Refused("not supported")
        return {self.energy_key: card.steps(self.now_s), "counter_resolution": STEP_UJ, "timestamp": 1}

    def amdsmi_get_power_info(self, card: Card) -> dict[str, object]:
        self.amdsmi_init()
        return {"average_socket_power": "N/A", self.power_key: card.watts(self.now_s), "gfx_voltage": 0}


def found(
    monkeypatch: pytest.MonkeyPatch, library: Library, *uuids: str
) -> tuple[AmdSmi, dict[str, Domain], dict[str, str]]:
    def pass_time(seconds: float) -> None:
        library.now_s += seconds

    monkeypatch.setitem(sys.modules, "amdsmi", library)
    meter = AmdSmi({}, clock=lambda: library.now_s, sleep=pass_time)
    answers = list(meter.domains([gpu(uuid) for uuid in uuids]))
    domains = {each.id: each for each in answers if isinstance(each, Domain)}
    return meter, domains, {each.name: each.reason for each in answers if isinstance(each, Absent)}


@pytest.mark.parametrize("uuid", [TORCH[0], SERIALS[0][2:].lower()])
@pytest.mark.parametrize("energy_key", ["energy_accumulator", "power"])
def test_a_gpu_gives_its_counter_and_its_power_inside_it(
    monkeypatch: pytest.MonkeyPatch, uuid: str, energy_key: str
) -> None:
    library = Library([Card(SERIALS[0]), Card(SERIALS[1])], energy_key=energy_key)
    meter, domains, absent = found(monkeypatch, library, uuid)
    energy, power = domains.values()
    assert not absent
    assert (energy.quantity, power.quantity, power.parent) == ("energy", "power", energy.id)
    assert energy.covers == power.covers == (f"gpu:GPU-{uuid}",)
    (before,) = meter.read(energy)
    library.now_s += 10
    (after,) = meter.read(energy)
    assert after.value - before.value == pytest.approx(1300)
    assert [sample.value for sample in meter.read(power)] == [130]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (None, "no energy counter"),
        (lambda _: 7.0, "stands still"),
        (lambda at_s: (2000 - at_s) * 1e9, "runs backwards"),
        (lambda at_s: 130 * at_s * 1e6, "rises by 1.99e+03 W while its power is 130 W"),  # the step was forgotten
        (lambda at_s: 13 * at_s * 1e6 / STEP_UJ, "rises by 13 W"),
    ],
)
def test_a_counter_that_does_not_fit_its_power_is_refused_and_the_power_taken(
    monkeypatch: pytest.MonkeyPatch, steps: Callable[[float], float] | None, reason: str
) -> None:
    _, domains, absent = found(monkeypatch, Library([Card(SERIALS[0], steps=steps)]), TORCH[0])
    assert [(each.quantity, each.parent) for each in domains.values()] == [("power", None)]
    assert reason in absent[f"gpu:GPU-{TORCH[0]} energy counter"]


@pytest.mark.parametrize(("call", "left"), [("energy_count", ["power"]), ("power_info", ["energy"])])
@pytest.mark.parametrize("error", [AttributeError, TypeError])
def test_a_call_that_the_library_lacks_loses_this_call_and_not_the_source(
    monkeypatch: pytest.MonkeyPatch, call: str, left: list[str], error: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise error(call)

    library = Library([Card(SERIALS[0])])
    monkeypatch.setattr(library, f"amdsmi_get_{call}", fails, raising=False)
    _, domains, _ = found(monkeypatch, library, TORCH[0])
    assert [each.quantity for each in domains.values()] == left


def test_a_card_that_cannot_be_named_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([Card("lost"), Card(SERIALS[0])])
    named = library.amdsmi_get_gpu_asic_info

    def fails(card: Card) -> dict[str, str]:
        if card.serial == "lost":
            raise TypeError("asic_info")
        return named(card)

    monkeypatch.setattr(library, "amdsmi_get_gpu_asic_info", fails, raising=False)
    _, domains, _ = found(monkeypatch, library, TORCH[0])
    assert [each.quantity for each in domains.values()] == ["energy", "power"]


@pytest.mark.parametrize("nothing", ["N/A", 0, 0xFFFF])
def test_power_that_the_card_does_not_know_is_not_taken(monkeypatch: pytest.MonkeyPatch, nothing: object) -> None:
    _, domains, _ = found(monkeypatch, Library([Card(SERIALS[0], watts=lambda _: nothing)]), TORCH[0])
    assert [each.quantity for each in domains.values()] == ["energy"]


def test_the_first_die_of_an_mi250_reports_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Card(SERIALS[0], "AMD Instinct MI250X / MI250")
    second = Card(SERIALS[1], first.product, watts=lambda _: "N/A", steps=lambda _: 0.0)
    _, domains, absent = found(monkeypatch, Library([first, second]), *TORCH)
    both = tuple(f"gpu:GPU-{uuid}" for uuid in TORCH)
    assert [each.covers for each in domains.values()] == [both, both]  # the counter, and the power inside it
    assert not absent


def test_two_dies_that_both_report_may_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = [Card(serial, "AMD Instinct MI250X") for serial in SERIALS]
    _, domains, absent = found(monkeypatch, Library(dies), *TORCH)
    assert not domains
    assert len(absent) == 2


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, absent = found(monkeypatch, Library([], broken="AMDSMI_STATUS_NO_PERM"), TORCH[0])
    assert "usermod -aG render" in absent["amdsmi"]
    _, _, absent = found(monkeypatch, Library([Card(SERIALS[0])]), "of-nvidia")
    assert "any of 1 GPU" in absent["amdsmi"]
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    (missing,) = AmdSmi({}).domains([])
    assert isinstance(missing, Absent) and "install ROCm" in missing.reason


def test_a_gpu_that_goes_away_is_an_error_and_not_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([Card(SERIALS[0])])
    meter, domains, _ = found(monkeypatch, library, TORCH[0])
    library.broken = "AMDSMI_STATUS_NO_DATA"
    for domain in domains.values():
        with pytest.raises(OSError, match="AMD SMI"):
            meter.read(domain)
