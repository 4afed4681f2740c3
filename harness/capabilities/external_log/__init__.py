"""Reads a meter, such as an analyser or a smart plug, from a log that another program writes or over TCP.

The user declares in mixmark.toml what the meter measures:

    path=power.csv              a log that grows during the run; its earlier lines are not read
    connect=HOST:PORT           or a TCP port that sends one line for each reading: `150.5`, or `timestamp,150.5`
    command=read_meter --csv    or a program that prints a log or such lines; no shell, unless it is `sh -c '…'`
    unit=W|mW|kW|J|Wh|kWh|…     the unit of lines without a header (else watts), or of a column whose name has none;
                                with a unit of energy, a counter that only rises
    boundary=wall               or node or devices; covers=gpu:…,cpu:0 (needed for devices; otherwise all devices)
    accuracy=0.01               the accuracy that the meter's maker declares, here 1 %
    timezone=Europe/Berlin      the zone of timestamps without a zone
    late_s=3.1                  how many seconds the meter's clock is late; added to all timestamps and times of arrival
    column=P-1, time=Date+Time  the columns of a log whose header is of no known format, and time_format=%H…
    where={index = "0"}         the rows of a log of several devices that are read
    sum=true                    or that the rows of one instant are added

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

This meter was tested on real files and sockets, never on a real analyser.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mixmark.harness.capabilities.external_log import lines
from mixmark.harness.capabilities.external_log.formats import Format, bare_values, recognised, unknown
from mixmark.harness.capabilities.external_log.lines import Lost
from mixmark.harness.capabilities.external_log.sources import CHUNK, LogFile, Program, TcpConnection, cause
from mixmark.harness.capabilities.external_log.tables import WHERE, Several, Table, split
from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.contracts.text import Reason
from mixmark.harness.meters import declared
from mixmark.harness.meters.common import absent
from mixmark.harness.meters.declared import choice_option, number_option
from mixmark.harness.meters.units import POWER, UNITS

SOURCES = ("path", "connect", "command")
OPTIONS = (*declared.OPTIONS, *SOURCES, "unit", "timezone", "late_s", "column", "time", "time_format", "sum")
BACKLOG = 4096  # bytes; a larger read has lines that arrived during a pause, and without timestamps they have no time
STEP_NS = 100_000_000  # if the wall clock moves more against CLOCK_MONOTONIC, it was set
POLL_S = 0.05
FIRST_LINES = 200  # in which a header may stand below a banner
HEADER_S = 10.0  # in which a program must print its header
HEAD = 8  # characters in which rows and headers differ
TAIL = 64  # lines of a log before the run that are read, to find several devices before anything is measured
BURST, BURST_ROWS, BURSTS = 5, 32, 3  # a burst: 3 of 32 rows follow the row above 5 times faster than usual


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
        self._address = _address(options["connect"]) if "connect" in options else None
        self._clocks = clocks or Clocks()
        self._source: LogFile | TcpConnection | Program | None = None
        self._format: Format | None = None
        """The format of the lines. None until the first line over TCP."""
        self._lost: Reason | None = None
        self._splitter = lines.Splitter()
        self._last: Sample | None = None
        self._last_wall_ns = self._wall_offset_ns = self._emptied_ns = self._gap_ns = 0
        self._bursts: deque[bool] = deque(maxlen=BURST_ROWS)

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Opens the source."""
        try:
            source = self._source = self._source or self._opened()
        except (OSError, MixmarkError) as error:
            yield absent(self._declared.id, cause(error))
            return
        unit = self._format.unit if self._format else self._options.get("unit", "W")
        written = f", as {self._format.name} writes it" if self._format and self._format.name != "plain" else ""
        late = f", with {self._late_s:+g} s added to its timestamps" if self._late_s else ""
        described = f"{source.label}{written}, in {unit}{late}, as declared by its owner"
        yield self._declared.domain(devices, "power" if unit in POWER else "energy", described)

    def read(self, domain: Domain) -> Sequence[Sample]:
        if self._lost or self._source is None:
            raise Lost(self._lost or "it was not opened")
        try:
            return self._samples(self._source.take())
        except (OSError, MixmarkError) as error:
            self._lost = f"{self._source.label}: {cause(error)}"
            raise Lost(self._lost) from error

    def close(self) -> None:
        """Ends the program that was started, if any."""
        if self._source:
            self._source.close()
        self._source = None

    def _opened(self) -> LogFile | TcpConnection | Program:
        self._emptied_ns = self._clocks.monotonic_ns()
        self._wall_offset_ns = self._clocks.wall_ns() - self._emptied_ns
        if self._address:
            return TcpConnection(self._address)
        if not self._options.keys() & set(SOURCES):
            raise Lost("no meter is named under [meter.external] in mixmark.toml")
        options = self._options
        source = LogFile(Path(options["path"])) if "path" in options else Program(options["command"])
        try:
            self._begin(source)
        except (ValueError, Lost) as error:
            source.close()
            raise Lost(f"{source.label}: {error}") from error
        return source

    def _begin(self, source: LogFile | Program) -> None:
        """Reads up to the header, and of a log all that was written before. Raises Lost or ValueError, also if the log
        holds several devices, changes its columns or has no good row. Other wrong lines of the past do not matter."""
        deadline_s = time.monotonic() + (HEADER_S if source.live else 0.0)
        first: list[str] = []
        tail: deque[str] = deque(maxlen=TAIL)
        while (new := source.take()) or (self._format is None and time.monotonic() < deadline_s):
            for text in self._splitter.lines(new):
                self._splitter.count += 1
                if self._format is not None:
                    if isinstance(self._format, Table) and text[:HEAD] == first[-1][:HEAD]:
                        self._format.reading(text)  # raises if it is a header with other columns
                    tail.append(text)
                elif len(first) < FIRST_LINES:
                    first.append(text)
                    self._format = recognised(text, self._options, source.live)
                    if self._format is None and source.live:
                        self._format = bare_values(text, self._options)
            if source.live if self._format else len(first) == FIRST_LINES:
                break
            if not new:
                time.sleep(POLL_S)
        if self._format is None:
            raise ValueError(unknown(first, self._options))
        self._refuse_past(self._format, [text for text in tail if text.strip()])

    def _refuse_past(self, format: Format, rows: Sequence[str]) -> None:
        """Raises ValueError if the last rows of a log are of several devices, or none can be read."""
        wrong: list[str] = []
        for text in rows:
            try:
                self._reading(format, text)
            except Several:
                raise
            except ValueError as error:
                wrong.append(f"{lines.shown(text)} ({error})")
        if wrong and len(wrong) == len(rows):
            raise ValueError(f"none of its last rows can be read: {wrong[-1]}")

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
        timed = self._format is not None and self._format.timed
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
            if self._format is None and split(text, ","):
                self._format = bare_values(text, self._options)
                if self._format is None:
                    raise ValueError("it is not a reading, or a timestamp and a reading")
            sample = self._reading(self._format, text, now_ns) if self._format else None
        except (ValueError, OverflowError) as error:
            raise Lost(f"line {self._splitter.count} is torn or wrong: {lines.shown(text)} ({error})") from error
        if sample is None:
            return None
        problem = lines.implausible(sample, self._last, self._emptied_ns, now_ns) or self._burst(sample)
        if problem:
            raise Lost(f"line {self._splitter.count}: {problem}")
        self._last = sample
        return sample

    def _reading(self, format: Format, text: str, now_ns: int = 0) -> Sample | None:
        """The reading of a line in watts or joules, on the clock of the run. Raises ValueError or OverflowError.

        now_ns: its time of arrival, which counts if it has no timestamp.
        """
        found = format.reading(text)
        if found is None:
            return None
        if format.timed:
            self._last_wall_ns = lines.epoch_ns(found[0], self._zone, format.time_format, self._last_wall_ns)
            now_ns = self._last_wall_ns - self._wall_offset_ns
        return Sample(found[1] * UNITS[format.unit], now_ns + round(self._late_s * 1e9))

    def _burst(self, sample: Sample) -> Reason | None:
        """Why the rows of a log that names no device are of several devices: they come in bursts. None if not."""
        if self._last is None or self._format is None or not self._format.bursts:
            return None
        gap_ns = (sample.at_ns or 0) - (self._last.at_ns or 0)
        self._bursts.append(gap_ns * BURST < self._gap_ns)
        self._gap_ns = gap_ns
        return f"its rows come in bursts, so they are of {self._format.bursts}" if sum(self._bursts) >= BURSTS else None


def _refuse_contradictions(options: Mapping[str, str]) -> None:
    """Raises UsageError for options that do not go together."""
    if "where" in options:
        raise UsageError("where of the meter external is a table", 'give it as where = {index = "0"}')
    own = [name for name in options if not name.startswith(WHERE)]
    refuse_options("the meter external", dict.fromkeys(own, ""), OPTIONS)
    given = [name for name in SOURCES if name in options]
    if len(given) > 1:
        raise UsageError(f"the meter external reads from one source, not from {' and '.join(given)}")
    if "path" in options and "unit" in options and "column" not in options:
        raise UsageError("the header of a log names the unit", "unit is for connect and command, or with column")
    if not options.get("command", "x").strip():
        raise UsageError("the meter external has an empty command", 'give it as command = "read_my_meter --csv"')
    if "time" in options and "column" not in options:
        raise UsageError("the meter external needs column with time", "column names the reading of a table")
    if options.get("unit", "W") not in UNITS:
        raise UsageError(f"{options['unit']!r} is no unit of power or energy", "such as W, mW, J or kWh")
    choice_option("external", options, "sum", ("true", "false"))


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
