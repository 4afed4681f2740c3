"""Reads a meter, such as an analyser or a smart plug, from a log that another program writes or over TCP.

The user declares in mixmark.toml what the meter measures:

    path=power.csv              a log that grows during the run; its earlier lines are not read
    connect=HOST:PORT           or a TCP port that sends one line for each reading: `150.5`, or `timestamp,150.5`
    unit=W|mW|kW|J|kJ|Wh|kWh    the unit of the lines of a TCP port; with a unit of energy, a counter that only rises
    boundary=wall               or node or devices; covers=gpu:…,cpu:0 (needed for devices; otherwise all devices)
    accuracy=0.01               the accuracy that the meter's maker declares, here 1 %
    timezone=Europe/Berlin      the zone of timestamps without a zone
    late_s=3.1                  how many seconds the meter's clock is late; added to all timestamps
    column=P-1, time=Date+Time  the columns of a log whose header is of no known format, with unit and time_format=%H…
    only=GPU-…                  the uuid of the GPU whose lines of nvidia-smi are read

A log needs a header with `timestamp` and one of watts, milliwatts, kilowatts, joules, kilojoules, watt_hours and
kilowatt_hours, or a first line that `formats` recognises. A reading without a timestamp gets its time of arrival.
Timestamps are ISO 8601, seconds since 1970, or in the log's format.

If a machine has two power supplies with a meter each, each meter is declared as a part of the node:

    [meter.external.left]
    path = "left.csv"
    covers = "node/1-of-2"

    [meter.external.right]
    path = "right.csv"
    covers = "node/2-of-2"

After a line that does not fit the declaration, the source is not read again, and the result names the line and the
reason. No call waits for data, and at most one unfinished line is kept.

This meter was tested on real files and sockets, never on a real analyser.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import Literal, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters.common import all_ids, choice_option, number_option
from mixmark.harness.meters.external import lines
from mixmark.harness.meters.external.formats import Format, recognised
from mixmark.harness.meters.external.lines import HEADER, POWER, UNITS, Columns
from mixmark.harness.meters.external.sources import LONGEST_LINE, LogFile, Lost, TcpConnection, cause

TABLE = ("column", "time", "time_format", "only")
OPTIONS = ("name", "path", "connect", "unit", "boundary", "covers", "accuracy", "timezone", "late_s", *TABLE)
BACKLOG = 4096  # bytes; a larger read has lines that arrived during a pause, and more may follow
STEP_NS = 100_000_000  # if the wall clock moves more against CLOCK_MONOTONIC, it was set


@dataclass(frozen=True)
class Clocks:
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns


class External:
    name = "external"
    needs_section = True

    def __init__(self, options: Mapping[str, str], clocks: Clocks | None = None) -> None:
        refuse_options("the meter external", options, OPTIONS)
        if "path" in options and "connect" in options:
            raise UsageError("the meter external reads from path or from connect, not from both")
        if "path" in options and "unit" in options and "column" not in options:
            raise UsageError("the header of a log names the unit", "unit is for connect, or with column and time")
        self._options = options
        self._id = f"external/{options['name']}" if "name" in options else "external"
        self._clocks = clocks or Clocks()
        self._unit = choice_option("external", options, "unit", UNITS) or "W"
        boundary = choice_option("external", options, "boundary", ("wall", "node", "devices")) or "wall"
        self._boundary = cast(Literal["wall", "node", "devices"], boundary)
        self._covers = tuple(filter(None, options.get("covers", "").replace(" ", "").split(",")))
        if self._boundary == "devices" and not self._covers:
            raise UsageError("the meter external with the boundary devices needs covers", 'such as covers = "cpu:0"')
        self._accuracy = number_option("external", options, "accuracy")
        self._late_s = number_option("external", options, "late_s", signed=True) or 0.0
        self._zone = _zone(options)
        self._address = _address(options["connect"]) if "connect" in options else None
        self._source: LogFile | TcpConnection | None = None
        self._format: Format | None = None
        """The format of the log. None for lines over TCP."""
        self._columns: Columns | None = None
        self._last_wall_ns = 0
        self._lost: str | None = None
        self._rest = b""
        self._line = 0
        self._last: Sample | None = None
        self._wall_offset_ns = 0
        self._emptied_ns = 0

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Opens the source."""
        try:
            if self._source is None:
                self._open()
        except (OSError, MixmarkError) as error:
            yield Absent(kind="meter", name=self._id, reason=cause(error))
            return
        if self._source is None:
            yield Absent(kind="meter", name=self._id, reason="no meter is named under [meter.external] in mixmark.toml")
            return
        unit = self._format.unit if self._format else self._unit
        written = f", as {self._format.name} writes it" if self._format and self._format.name != "plain" else ""
        late = f", with {self._late_s:+g} s added to its timestamps" if self._late_s else ""
        yield Domain(
            id=self._id,
            meter=self.name,
            covers=self._covers or all_ids(devices),
            boundary=self._boundary,
            quantity="power" if unit in POWER else "energy",
            method="external",
            accuracy=self._accuracy,
            source=f"{self._source.label}{written}, in {unit}{late}, as declared by its owner",
        )

    def read(self, domain: Domain) -> Sequence[Sample]:
        if self._lost or self._source is None:
            raise Lost(self._lost or "it was not opened")
        try:
            return self._samples(self._source.take())
        except (OSError, MixmarkError) as error:
            self._lost = f"{self._source.label}: {cause(error)}"
            raise Lost(self._lost) from error

    def _open(self) -> None:
        self._emptied_ns = self._clocks.monotonic_ns()
        self._wall_offset_ns = self._clocks.wall_ns() - self._emptied_ns
        if "path" in self._options:
            log = LogFile(Path(self._options["path"]))
            try:
                self._format = recognised(log.first_line, self._options)
            except ValueError as error:
                raise Lost(f"{log.label}: {error}") from error
            if self._format is None:
                raise Lost(f"{log.label} needs a header in its first line: {HEADER}; or name column and time")
            self._source, self._line = log, log.lines
        elif self._address:
            self._source = TcpConnection(self._address)

    def _samples(self, new: bytes) -> list[Sample]:
        """The readings of the lines that `new` completes. Raises Lost."""
        now_ns = self._clocks.monotonic_ns()
        *whole, self._rest = (self._rest + new).split(b"\n")
        if any(len(line) > LONGEST_LINE for line in (*whole, self._rest)):
            raise Lost(f"line {self._line + 1} or a later one is longer than {LONGEST_LINE} bytes")
        samples: list[Sample] = []
        for line in whole:
            self._line += 1
            sample = self._sample(line, now_ns)
            if sample is None:
                continue
            if samples and sample.at_ns == samples[-1].at_ns:
                samples.pop()  # lines without timestamps may have the same time; the last reading is the newest
            samples.append(sample)
        timed = self._format is not None or (self._columns is not None and self._columns.timestamp is not None)
        wall_offset_ns = self._clocks.wall_ns() - self._clocks.monotonic_ns()
        if samples and timed and abs(wall_offset_ns - self._wall_offset_ns) > STEP_NS:
            raise Lost("this machine's wall clock was set meanwhile, so the meter's timestamps cannot be matched")
        if len(new) < BACKLOG:
            self._emptied_ns = now_ns
        elif not timed:
            return []  # the lines waited in the source, so the times of their readings are unknown
        return samples

    def _sample(self, line: bytes, now_ns: int) -> Sample | None:
        """The reading of a line. None for a header, a comment or an empty line. Raises Lost."""
        try:
            text = line.decode("utf-8-sig").strip()
            found = self._format.reading(text) if self._format and text else self._from_tcp(line)
            if found is None:
                return None
            at, number = found
            unit = self._format.unit if self._format else self._unit
            value = float(number) * UNITS[unit]
            wall_ns = self._wall_ns(at) if at else None
        except (ValueError, OverflowError) as error:
            raise Lost(f"line {self._line} is torn or wrong: {lines.shown(line)} ({error})") from error
        at_ns = now_ns if wall_ns is None else wall_ns + round(self._late_s * 1e9) - self._wall_offset_ns
        sample = Sample(value, at_ns)
        if problem := lines.implausible(sample, self._last, self._emptied_ns, now_ns):
            raise Lost(f"line {self._line}: {problem}")
        self._last = sample
        return sample

    def _wall_ns(self, text: str) -> int:
        """Raises ValueError."""
        time_format = self._format.time_format if self._format else None
        self._last_wall_ns = lines.epoch_ns(text, self._zone, time_format, self._last_wall_ns)
        return self._last_wall_ns

    def _from_tcp(self, line: bytes) -> tuple[str, str] | None:
        """The reading of a line over TCP: a number, or a timestamp and a number. Raises ValueError."""
        row = lines.fields(line)
        if not row or self._format:
            return None
        if self._columns is None:
            if len(row) > 2:
                raise ValueError(f"it has {len(row)} fields instead of a reading, or a timestamp and a reading")
            self._columns = Columns(len(row), 0 if len(row) > 1 else None, len(row) - 1, self._unit)
        if len(row) != self._columns.count:
            raise ValueError(f"it has {len(row)} fields, not {self._columns.count}")
        return (row[0] if self._columns.timestamp is not None else ""), row[-1]


def _zone(options: Mapping[str, str]) -> tzinfo | None:
    name = options.get("timezone")
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"there is no time zone {name!r}", hint="name it as in Europe/Berlin, or UTC") from error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"meter external: {text!r} is not an address", hint="give it as HOST:PORT")
    return host.strip("[]"), int(port)
