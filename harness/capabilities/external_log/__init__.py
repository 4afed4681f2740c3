"""Reads a meter, such as an analyser or a smart plug, from a log that another program writes or from its output.

The user declares in mixmark.toml what the meter measures:

    path=power.csv              a log that grows during the run; its earlier lines are not read
    command=read_meter --csv    or a program that prints a log, or one line for each reading: `150.5`, or
                                `timestamp,150.5`; no shell, unless it is `sh -c '…'`
    unit=W|mW|kW|J|Wh|kWh|…     the unit of lines without a header (else watts), or of a column whose name has none;
                                with a unit of energy, a counter that only rises
    boundary=wall               or node or devices; covers=gpu:…,cpu:0 (needed for devices; otherwise all devices)
    accuracy=0.01               the accuracy that the meter's maker declares, here 1 %
    timezone=Europe/Berlin      the zone of timestamps without a zone
    late_s=3.1                  how many seconds the meter's clock is late; added to all timestamps and times of arrival
    column=P-1, time=Date+Time  the columns of a log whose header is of no known format, and time_format=%H…
    where={index = "0"}         the rows of a log of several devices that are read
    one_device=true             all rows are of one device, whatever their other columns hold

A log needs a header with `timestamp` and one column in a unit, such as watts or `power [kW]`, or one of `recipes.toml`.
A reading without a timestamp gets its time of arrival. Timestamps are ISO 8601, seconds, milliseconds, microseconds or
nanoseconds since 1970, or in the log's format.

If a machine has two power supplies with a meter each, each meter is declared as a part of the node:

    [meter.external.left]
    path = "left.csv"
    covers = "node/1-of-2"

    [meter.external.right]
    path = "right.csv"
    covers = "node/2-of-2"

After a line that does not fit the declaration, the source is not read again, and the result names the line and the
reason. No call waits for data, and at most one unfinished line is kept.

This meter was tested on real files and programs, never on a real analyser.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mixmark.harness.capabilities.external_log import declared, lines
from mixmark.harness.capabilities.external_log.declared import number_option
from mixmark.harness.capabilities.external_log.formats import Format, bare_values, recognised, unknown
from mixmark.harness.capabilities.external_log.lines import Lost
from mixmark.harness.capabilities.external_log.sources import CHUNK, LogFile, Program, cause
from mixmark.harness.capabilities.external_log.tables import WHERE, Table
from mixmark.harness.capabilities.external_log.units import POWER, UNITS
from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters.common import absent

SOURCES = ("path", "command")
OPTIONS = (*declared.OPTIONS, *SOURCES, "unit", "timezone", "late_s", "column", "time", "time_format", "one_device")
BACKLOG = 4096  # bytes; a larger read has lines that arrived during a pause, and without timestamps they have no time
STEP_NS = 100_000_000  # if the wall clock moves more against CLOCK_MONOTONIC, it was set
POLL_S = 0.05
FIRST_LINES = 200  # in which a header may stand below a banner
HEADER_S = 10.0  # in which a program must print its header
HEAD = 8  # characters in which rows and headers differ
TAIL = 20  # rows of the past; if not one of them can be read, no later one can


@dataclass(frozen=True)
class Clocks:
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns


class External:
    name = "external"
    needs_section = True

    def __init__(self, options: Mapping[str, str], clocks: Clocks | None = None) -> None:
        _refuse_contradictions(options)
        self._options = options
        self._declared = declared.declared("external", options, ("wall", "node", "devices"))
        self._late_s = number_option("external", options, "late_s", signed=True) or 0.0
        self._zone = _zone(options)
        self._clocks = clocks or Clocks()
        self._reader: Reader | None = None
        self._lost: Reason = "it was not opened"

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Opens the source, and reads it up to its header."""
        path = self._options.get("path")
        try:
            source = LogFile(Path(path)) if path else Program(self._options["command"])
            reader = Reader(source, self._options, self._zone, self._late_s, self._clocks)
        except MixmarkError as error:
            yield absent(self._declared.id, str(error))
            return
        self._reader = reader
        unit, name = reader.format.unit, reader.format.name
        written = f", as {name} writes it" if name != "plain" else ""
        late = f", with {self._late_s:+g} s added to its timestamps" if self._late_s else ""
        described = f"{source.label}{written}, in {unit}{late}, as declared by its owner"
        yield self._declared.domain(devices, "power" if unit in POWER else "energy", described)

    def read(self, domain: Domain) -> Sequence[Sample]:
        """Raises Lost for good after an error."""
        if self._reader is None:
            raise Lost(self._lost)
        try:
            return self._reader.samples()
        except Lost as lost:
            self.close()
            self._lost = str(lost)
            raise

    def close(self) -> None:
        """Ends the program that was started, if any."""
        if self._reader:
            self._reader.source.close()
        self._reader = None


class Reader:
    """Reads the lines of an open source. Its errors are Lost, begin with the source's label, and leave it closed."""

    def __init__(
        self, source: LogFile | Program, options: Mapping[str, str], zone: tzinfo | None, late_s: float, clocks: Clocks
    ) -> None:
        """Reads up to the header, and of a log all that was written before."""
        self.source, self._zone, self._clocks = source, zone, clocks
        self._late_ns = round(late_s * 1e9)
        self._splitter = lines.Splitter()
        self._last: Sample | None = None
        self._emptied_ns = clocks.monotonic_ns()
        self._wall_offset_ns = clocks.wall_ns() - self._emptied_ns
        try:
            self.format = self._begin(options)
        except (ValueError, OSError, MixmarkError) as error:
            source.close()
            raise Lost(f"{source.label}: {cause(error)}") from error

    def samples(self) -> list[Sample]:
        """The readings since the last call."""
        try:
            return self._samples(self.source.take())
        except (OSError, MixmarkError) as error:
            raise Lost(f"{self.source.label}: {cause(error)}") from error

    def _begin(self, options: Mapping[str, str]) -> Format:
        """Finds the format. Raises Lost or ValueError, also if a log changes its columns, or none of its last rows can
        be read. Other wrong lines of the past do not matter."""
        live = self.source.live
        deadline_s = time.monotonic() + (HEADER_S if live else 0.0)
        format: Format | None = None
        first: list[str] = []
        last: deque[str] = deque(maxlen=TAIL)
        while (new := self.source.take()) or (format is None and time.monotonic() < deadline_s):
            for text in self._splitter.lines(new):
                self._splitter.count += 1
                if format is not None:
                    if isinstance(format, Table) and text[:HEAD] == first[-1][:HEAD]:
                        format.refuse_other_header(text)
                    last.append(text)
                elif len(first) < FIRST_LINES:
                    first.append(text)
                    format = recognised(text, options, live) or (bare_values(text, options) if live else None)
            if live if format else len(first) == FIRST_LINES:
                break
            if not new:
                time.sleep(POLL_S)
        if format is None:
            raise ValueError(unknown(first))
        if not live:
            self._refuse_unreadable(format, last)
        return format

    def _refuse_unreadable(self, format: Format, rows: Iterable[str]) -> None:
        """Raises ValueError if there are rows and none of them has a reading that may be of the past."""
        now_ns, problem = self._clocks.monotonic_ns(), ""
        for text in rows:
            try:
                sample = self._reading(deepcopy(format), text, now_ns)
            except (ValueError, OverflowError) as error:
                problem = f"{lines.shown(text)} ({error})"
                continue
            if sample and not (wrong := lines.implausible(sample, None, sample.at_ns or 0, now_ns)):
                return
            problem = f"{lines.shown(text)} ({wrong})" if sample else problem
        if problem:
            raise ValueError(f"none of its last rows can be read, such as {problem}")

    def _samples(self, new: bytes) -> list[Sample]:
        """The readings of the lines that `new` completes. Raises Lost."""
        now_ns = self._clocks.monotonic_ns()
        samples: list[Sample] = []
        for text in self._splitter.lines(new):
            self._splitter.count += 1
            sample = self._sample(text, now_ns)
            if sample is None:
                continue
            if samples and sample.at_ns == samples[-1].at_ns:
                samples.pop()  # lines without timestamps may have the same time; the last reading is the newest
            samples.append(sample)
        timed = self.format.timed
        wall_offset_ns = self._clocks.wall_ns() - self._clocks.monotonic_ns()
        if samples and timed and abs(wall_offset_ns - self._wall_offset_ns) > STEP_NS:
            raise Lost("this machine's wall clock was set meanwhile, so the meter's timestamps cannot be matched")
        if len(new) < (CHUNK // 4 if timed else BACKLOG):
            self._emptied_ns = now_ns
        elif not timed:
            return []  # the lines waited in the source, so the times of their readings are unknown
        return samples

    def _sample(self, text: str, now_ns: int) -> Sample | None:
        """The reading of a line. None for a header, a comment or an empty line. Raises Lost."""
        try:
            sample = self._reading(self.format, text, now_ns)
        except (ValueError, OverflowError) as error:
            raise Lost(f"line {self._splitter.count} is torn or wrong: {lines.shown(text)} ({error})") from error
        if sample is None:
            return None
        if problem := lines.implausible(sample, self._last, self._emptied_ns, now_ns):
            raise Lost(f"line {self._splitter.count}: {problem}")
        self._last = sample
        return sample

    def _reading(self, format: Format, text: str, now_ns: int) -> Sample | None:
        """The reading of a line in watts or joules, on the clock of the run. Raises ValueError or OverflowError.

        now_ns: its time of arrival, which counts if it has no timestamp.
        """
        found = format.reading(text)
        if found is None:
            return None
        if format.timed:
            now_ns = lines.epoch_ns(found[0], self._zone, format.time_format) - self._wall_offset_ns
        return Sample(found[1] * UNITS[format.unit], now_ns + self._late_ns)


def _refuse_contradictions(options: Mapping[str, str]) -> None:
    """Raises UsageError for options that do not go together."""
    if "where" in options:
        raise UsageError("where of the meter external is a table", 'give it as where = {index = "0"}')
    own = [name for name in options if not name.startswith(WHERE)]
    refuse_options("the meter external", dict.fromkeys(own, ""), OPTIONS)
    given = [name for name in SOURCES if name in options]
    if len(given) != 1:
        raise UsageError("the meter external reads one source", 'give path = "power.csv", or command = "read_my_meter"')
    if not options.get("command", "x").strip():
        raise UsageError("the meter external has an empty command", 'give it as command = "read_my_meter --csv"')
    if "time" in options and "column" not in options:
        raise UsageError("the meter external needs column with time", "column names the reading of a table")
    declared.choice_option("external", options, "one_device", ("true", "false"))
    if options.get("unit", "W") not in UNITS:
        raise UsageError(f"{options['unit']!r} is no unit of power or energy", "such as W, mW, J or kWh")


def _zone(options: Mapping[str, str]) -> tzinfo | None:
    """UTC and offsets need no database of time zones, which small images lack."""
    name = options.get("timezone", "").strip()
    if not name:
        return None
    if name.upper() in ("UTC", "Z", "GMT"):
        return UTC
    if re.fullmatch(r"[+-]\d\d:?\d\d", name):
        return datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        if not available_timezones():
            raise UsageError("this system has no time zones", "pip install tzdata, or give UTC or +01:00") from error
        raise UsageError(f"there is no time zone {name!r}", "name it as in Europe/Berlin, +01:00 or UTC") from error
