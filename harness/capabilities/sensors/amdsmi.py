"""Reads the energy accumulator and the power of AMD GPUs through AMD SMI (package amdsmi of ROCm).

`domains` imports the package. On released cards the accumulator has stood still, run backwards and been wrong by whole
factors (ROCm/amdsmi issues 22, 38 and 115), so it is compared with the power for a second before it is used. The first
die of an MI250 reports for both of its dies.

This meter was written from AMD's documentation and tested on a fake library, never on a real GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mixmark.harness.contracts.errors import refuse_options
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters.common import absent, domain_of, gpu_ids, library_reader

SOURCE = "rocm.docs.amd.com/projects/amdsmi"
WATCH_S = 1.0
AGREE = 2.0  # counter and power may differ by this factor: power is in whole watts and lags the counter
POWERS = ("current_socket_power", "average_socket_power", "socket_power")  # watts; a card reports some of these
NO_POWER = (0, 0xFFFF)  # AMD SMI's values for an unknown power
INSTALL = "install ROCm, and the amdsmi of /opt/rocm/share/amd_smi with pip"
PERMIT = "sudo usermod -aG render,video $USER, and log in again"


@dataclass(frozen=True)
class CardReading:
    """A card's sensors at one moment. A value is None if the sensor cannot be read."""

    at_s: float
    joules: float | None
    watts: float | None


@dataclass(frozen=True)
class Card:
    """A GPU of the library's list. Each die of an MI250 is a GPU."""

    ids: frozenset[str]
    """The possible ids of the device: the serial number or, as in PyTorch, the number's characters in hex."""
    product: str
    joules: Callable[[], float]
    watts: Callable[[], float]


class AmdSmi:
    """clock, sleep: replace time.monotonic and time.sleep in tests."""

    name = "amdsmi"

    def __init__(
        self,
        options: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        refuse_options("the meter amdsmi", options)
        self._clock, self._sleep = clock, sleep
        self._reads: dict[str, Callable[[], float]] = {}

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """If AMD GPUs are found, this takes a second, to compare their counters with their power."""
        known = set(gpu_ids(devices))
        try:
            import amdsmi as smi
        except Exception as error:  # also OSError or KeyError, from looking for its library
            yield absent("amdsmi", f"{error}: {INSTALL}")
            return
        try:
            smi.amdsmi_init()
            cards = [_card(smi, handle) for handle in smi.amdsmi_get_processor_handles()]
        except Exception as error:  # AmdSmiException, or what an old library lacks
            yield absent("amdsmi", f"{error}: {PERMIT}")
            return
        if not any(card.ids & known for card in cards):
            yield absent("amdsmi", f"no adapter found any of {counted(len(cards), 'GPU')}")
            return
        readings = self._watch(cards)
        position = 0
        while position < len(cards):
            dies = 2 if "MI250" in cards[position].product else 1
            group = slice(position, position + dies)
            position += dies
            ids = tuple(min(card.ids & known, default="") for card in cards[group])
            if any(ids):
                yield from self._domains(cards[group], ids, readings[group])

    def read(self, domain: Domain) -> Sequence[Sample]:
        return (Sample(self._reads[domain.id]()),)

    def _watch(self, cards: Sequence[Card]) -> list[list[CardReading]]:
        """The sensors of each card, and the same a second later."""

        def read() -> list[CardReading]:
            return [CardReading(self._clock(), _read_or_none(card.joules), _read_or_none(card.watts)) for card in cards]

        before = read()
        self._sleep(WATCH_S)
        return [[*pair] for pair in zip(before, read(), strict=True)]

    def _domains(
        self, dies: Sequence[Card], ids: Sequence[str], readings: Sequence[Sequence[CardReading]]
    ) -> Iterator[Domain | Absent]:
        """The domains of one board. ids: the device id of each die, empty if no adapter reaches it."""
        covers = tuple(id for id in ids if id)
        if any(reading.watts or (reading.joules or 0) > 0 for second in readings[1:] for reading in second):
            reason = "both dies of this MI250 report, but it is not documented whether each reports for both"
            yield from (absent(id, f"AMD SMI: {reason}") for id in covers)
            return
        taken, card, parent = readings[0], dies[0], None
        name = f"amdsmi/{covers[0].removeprefix('gpu:')}"
        if problem := _counter_problem(*taken):
            yield absent(f"{covers[0]} energy counter", f"AMD SMI: {problem}")
        else:
            parent = f"{name}/energy"
            self._reads[parent] = card.joules
            yield domain_of(parent, covers, "energy", f"amdsmi_get_energy_count; {SOURCE}")
        if all(reading.watts for reading in taken):
            self._reads[f"{name}/power"] = card.watts
            yield domain_of(f"{name}/power", covers, "power", f"amdsmi_get_power_info; {SOURCE}", parent=parent)


def _counter_problem(before: CardReading, after: CardReading) -> Reason | None:
    """Why the accumulator cannot be used. None if it can."""
    if before.joules is None or after.joules is None:
        return "it has no energy counter, as in a virtual machine"
    joules = after.joules - before.joules
    if joules < 0:
        return "its energy counter runs backwards"
    if joules == 0:
        return "its energy counter stands still"
    if not (before.watts and after.watts):
        return None
    counted, mean = joules / (after.at_s - before.at_s), (before.watts + after.watts) / 2
    if not mean / AGREE <= counted <= mean * AGREE:
        return f"its energy counter rises by {counted:.3g} W while its power is {mean:.3g} W"
    return None


def _card(smi: Any, handle: Any) -> Card:
    try:
        asic = smi.amdsmi_get_gpu_asic_info(handle)
        serial = str(asic["asic_serial"])
    except Exception:  # a card that cannot be named is no device's
        asic, serial = {}, ""
    serial = serial.lower().removeprefix("0x").zfill(16)
    names = {f"gpu:GPU-{serial}"}
    if len(serial) == 16:
        names.add(f"gpu:GPU-{UUID(bytes=serial.encode())}")

    def joules() -> float:
        count = smi.amdsmi_get_energy_count(handle)
        accumulator = count["energy_accumulator"] if "energy_accumulator" in count else count["power"]  # before 6.1
        return float(accumulator) * float(count["counter_resolution"]) / 1e6

    def watts() -> float:
        power = smi.amdsmi_get_power_info(handle)
        for name in POWERS:
            value = power.get(name)
            if isinstance(value, int | float) and value not in NO_POWER:
                return float(value)
        raise OSError("AMD SMI reports no power")

    reads = (library_reader(read, "AMD SMI") for read in (joules, watts))
    return Card(frozenset(names), str(asic.get("market_name", "")), *reads)


def _read_or_none(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except OSError:
        return None
