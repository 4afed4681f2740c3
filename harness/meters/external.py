"""Reads any meter that writes a log or sends lines: a power analyser, a smart plug, a laboratory power supply.

The user declares in mixmark.toml what the meter measures:

    path=power.csv              a log that grows during the run; what it held before is not read
    connect=HOST:PORT           one line for each reading, over TCP; with listen=HOST:PORT the meter connects to Mixmark
    serial=/dev/ttyUSB0         the same lines from a serial port, at baud=9600
    unit=W|mW|kW|J|kJ|Wh|kWh    the unit where no header names it; a unit of energy means a counter that only rises
    boundary=wall               or node or devices; covers=gpu:…,cpu:0 (needed for devices; otherwise all devices)
    accuracy=0.01               the accuracy that its maker declares, here 1 %
    timezone=Europe/Berlin      the zone of stamps that name none
    late_s=3.1                  by how many seconds its clock is late, which is added to all stamps

A log needs a header with `timestamp` and one of watts, milliwatts, kilowatts, joules, kilojoules, watt_hours and
kilowatt_hours; on a line, the stamp may be left out, and it then counts as taken when it arrives. Stamps are ISO 8601
or numbers since 1970: seconds, or milli-, micro- or nanoseconds, by their size.

Where a machine has two power supplies, and a meter at each, both are declared, each as a part of the whole:

    [meter.external.left]
    path = "left.csv"
    covers = "node/1-of-2"

    [meter.external.right]
    path = "right.csv"
    covers = "node/2-of-2"

After one reading that does not fit the declaration the source is not read again, and the result names the line and the
reason: a meter that may be wrong is no meter. No call waits for data, and no more than one line is kept in memory.

This meter was tested on real files, sockets and pseudo-terminals, never on a real analyser.
"""

from __future__ import annotations

import csv
import math
import os
import re
import socket
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Boundary, Device, Domain
from mixmark.harness.meters import covered

UNITS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "J": 1.0, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6}
POWER = {"W", "mW", "kW"}
COLUMNS = {
    **{unit.lower(): unit for unit in UNITS},
    "watts": "W",
    "milliwatts": "mW",
    "kilowatts": "kW",
    "joules": "J",
    "kilojoules": "kJ",
    "watt_hours": "Wh",
    "kilowatt_hours": "kWh",
}
OPTIONS = {
    *("name", "path", "connect", "listen", "serial", "baud", "unit", "boundary", "covers", "accuracy", "timezone"),
    "late_s",
}
CHUNK = 65536  # bytes taken by one read: data that arrives faster waits in the kernel
PILE = 4096  # bytes; a read that finds more finds what arrived during a pause, and more may follow
MOST_PILES = 10  # consecutive reads of such size before the source counts as too fast
LONGEST_LINE = 4096
CONNECT_S = 2.0
NOWHERE = "localhost:0"
MS = 1_000_000
AHEAD_NS = 100 * MS  # a stamp in the future by more: the clocks disagree
BEHIND_NS = 10_000 * MS  # a line that comes later than this after its stamp: they disagree, or its writer holds it
STEP_NS = 100 * MS  # of the wall clock, against CLOCK_MONOTONIC
DECIMAL_COMMA = re.compile(r"\d+,\d+")  # whether 1,234 is one or a thousand nobody should guess
JUMP = 500.0  # from one reading to the next, up or down: milli or kilo got lost or found
MOST_WATTS = 100_000.0  # no machine that this program runs on draws more


class Lost(MixmarkError):
    """The source cannot be used any more."""


@dataclass(frozen=True)
class Clock:
    monotonic_ns: Callable[[], int] = time.monotonic_ns
    wall_ns: Callable[[], int] = time.time_ns


@dataclass(frozen=True)
class Layout:
    """The positions of the fields in a line. stamp is None where lines have no stamp."""

    fields: int
    stamp: int | None
    value: int
    unit: str


class Feed(Protocol):
    """A stream of bytes that is read without waiting."""

    @property
    def what(self) -> str: ...

    def take(self) -> bytes:
        """The bytes that have arrived, at most CHUNK. Raises Lost or OSError."""


class External:
    name = "external"
    needs_section = True

    def __init__(self, options: Mapping[str, str], clock: Clock | None = None) -> None:
        if unknown := options.keys() - OPTIONS:
            raise UsageError(f"the meter external does not know {', '.join(sorted(unknown))}", hint=_KNOWN)
        if len(options.keys() & {"path", "connect", "listen", "serial"}) > 1:
            raise UsageError("the meter external reads from one of path, connect, listen and serial", hint=_KNOWN)
        self._options = options
        self._id = f"external/{options['name']}" if "name" in options else "external"
        self._clock = clock or Clock()
        self._unit = _choice(options, "unit", tuple(UNITS))
        self._boundary: Boundary = _boundary(options)
        self._covers = tuple(filter(None, options.get("covers", "").replace(" ", "").split(",")))
        if self._boundary == "devices" and not self._covers:
            raise UsageError("the meter external needs covers=… where its boundary is devices", hint=_KNOWN)
        self._accuracy = _number(options, "accuracy")
        self._late_s = _number(options, "late_s") or 0.0
        self._baud = round(_number(options, "baud") or 9600)
        self._zone = _zone(options)
        self._address = _address(options.get("connect", options.get("listen", NOWHERE)))
        self._feed: Feed | None = None
        self._layout: Layout | None = None
        self._lost = ""
        self._rest = b""
        self._line = 0
        self._last: Sample | None = None
        self._wall_offset_ns = 0
        self._emptied_ns = 0
        self._piles = self._late_ns = 0

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Opens the source. What a log holds already is skipped."""
        try:
            if self._feed is None:
                self._open()
        except (OSError, MixmarkError) as error:
            yield Absent(kind="meter", name=self._id, reason=_why(error))
            return
        if self._feed is None:
            yield Absent(kind="meter", name=self._id, reason="no meter is named: [meter.external] in mixmark.toml")
            return
        unit = self._layout.unit if self._layout else self._unit or "W"
        late = f", with {self._late_s:+g} s added to its stamps" if self._late_s else ""
        yield Domain(
            id=self._id,
            meter=self.name,
            covers=self._covers or covered.everything(devices),
            boundary=self._boundary,
            quantity="power" if unit in POWER else "energy",
            method="external",
            accuracy=self._accuracy,
            source=f"{self._feed.what}, in {unit}{late}, as declared by its owner",
        )

    def read(self, domain: Domain) -> Sequence[Sample]:
        if self._lost or self._feed is None:
            raise Lost(self._lost or "it was never opened")
        try:
            return self._samples(self._feed.take())
        except (OSError, MixmarkError) as error:
            self._lost = f"{self._feed.what}: {_why(error)}"
            raise Lost(self._lost) from error

    def _open(self) -> None:
        options = self._options
        self._emptied_ns = self._clock.monotonic_ns()
        self._wall_offset_ns = self._clock.wall_ns() - self._emptied_ns
        if "path" in options:
            log = Log(Path(options["path"]))
            self._layout = _header(log.header, self._unit)
            if self._layout is None or self._layout.stamp is None:
                raise Lost(f"{log.what} needs a header in its first line: {_HEADER}")
            self._feed, self._line = log, log.lines
        elif "connect" in options:
            self._feed = Peer(_connected(self._address))
        elif "listen" in options:
            self._feed = Listener(self._address)
        elif "serial" in options:
            self._feed = Serial(options["serial"], self._baud)

    def _samples(self, new: bytes) -> list[Sample]:
        now_ns = self._clock.monotonic_ns()
        *lines, self._rest = (self._rest + new).split(b"\n")
        if any(len(line) > LONGEST_LINE for line in (*lines, self._rest)):
            raise Lost(f"line {self._line + 1} or a later one is longer than {LONGEST_LINE} bytes")
        samples: list[Sample] = []
        for line in lines:
            self._line += 1
            sample = self._sample(line, now_ns)
            if sample is None:
                continue
            if samples and sample.at_ns == samples[-1].at_ns:
                samples.pop()  # of several at one instant, as without stamps, the last is the newest
            samples.append(sample)
        stamped = self._layout is not None and self._layout.stamp is not None
        wall_offset_ns = self._clock.wall_ns() - self._clock.monotonic_ns()
        if samples and stamped and abs(wall_offset_ns - self._wall_offset_ns) > STEP_NS:
            raise Lost("this machine's wall clock was set meanwhile, so the meter's stamps mean nothing")
        late_ns = now_ns - (samples[-1].at_ns or 0) if samples else 0
        if len(new) < (CHUNK if stamped else PILE):
            self._piles = 0
        elif late_ns >= self._late_ns:
            self._piles += 1
        self._late_ns = late_ns
        if self._piles > MOST_PILES:
            raise Lost("it sends more than can be read: let it send fewer readings")
        if len(new) < PILE:
            self._emptied_ns = now_ns
        elif not stamped:  # it is not known when these were true
            return []
        return samples

    def _sample(self, line: bytes, now_ns: int) -> Sample | None:
        """The reading in a line; None: the line is a header, a comment or empty."""
        try:
            fields = _fields(line)
        except ValueError as error:
            raise Lost(f"line {self._line} is no text: {_shown(line)}") from error
        if not fields:
            return None
        if self._layout is None:
            self._layout = _header(fields, self._unit)
            if self._layout:
                if (self._layout.unit in POWER) != ((self._unit or "W") in POWER):
                    raise Lost(f"its header says {self._layout.unit}: tell so with unit={self._layout.unit}")
                return None
            if len(fields) > 2:
                raise Lost(f"line {self._line} has {len(fields)} fields and no header says which: {_HEADER}")
            self._layout = Layout(len(fields), 0 if len(fields) > 1 else None, len(fields) - 1, self._unit or "W")
        layout = self._layout
        if len(fields) != layout.fields:
            raise Lost(f"line {self._line} has {len(fields)} fields and not {layout.fields}: {_shown(line)}")
        try:
            value = float(fields[layout.value]) * UNITS[layout.unit]
            wall_ns = None if layout.stamp is None else _epoch_ns(fields[layout.stamp], self._zone)
        except (ValueError, OverflowError) as error:
            if _header(fields, None) == layout:  # again, from a logger that was started anew
                return None
            told = "a decimal comma" if DECIMAL_COMMA.fullmatch(fields[layout.value]) else error
            raise Lost(f"line {self._line} is torn or wrong: {_shown(line)} ({told})") from error
        at_ns = now_ns if wall_ns is None else wall_ns + round(self._late_s * 1e9) - self._wall_offset_ns
        sample = Sample(value, at_ns)
        if problem := _problem(sample, self._last, layout.unit in POWER, self._emptied_ns, now_ns):
            raise Lost(f"line {self._line}: {problem}")
        self._last = sample
        return sample


class Log:
    """A file that grows, read from its end on. Raises Lost where it is truncated or replaced."""

    def __init__(self, path: Path) -> None:
        self.what = f"log {path.name}"
        self._path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for whoever fills it
                raise Lost(f"{self.what} is no file: lines from a pipe can come by listen=HOST:PORT")
            self._file = path.open("rb", buffering=0)
        except (OSError, ValueError) as error:  # no path has such a name
            raise Lost(f"cannot read {self.what}: {_why(error)}; start its writer before the run") from error
        begin = self._file.read(LONGEST_LINE)
        self.header = _fields_or_none(begin.split(b"\n")[0]) if b"\n" in begin else []
        self._file.seek(0)
        self.lines = 0
        self._at = end = 0
        while chunk := self._file.read(1 << 20):
            if b"\n" in chunk:
                self.lines += chunk.count(b"\n")
                self._at = end + chunk.rindex(b"\n") + 1
            end += len(chunk)
        self._file.seek(self._at)  # behind the last whole line
        weakref.finalize(self, self._file.close)

    def take(self) -> bytes:
        try:
            there, here = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            raise Lost("it was removed or renamed") from None
        if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino) or here.st_size < self._at:
            raise Lost("it was cut or replaced")
        new = self._file.read(CHUNK) or b""
        self._at += len(new)
        return new


class Peer:
    what = "TCP line protocol"  # without the address: it ends up in a result

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setblocking(False)
        weakref.finalize(self, connection.close)

    def take(self) -> bytes:
        try:
            new = self._connection.recv(CHUNK)
        except BlockingIOError:
            return b""
        if not new:
            raise Lost("its peer closed it")
        return new


class Listener:
    """Waits for a connection, and reads from the first one."""

    what = Peer.what

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            self._socket = socket.create_server(address, backlog=1)
        except OSError as error:
            raise Lost(f"cannot listen there: {_why(error)}") from error
        self._socket.setblocking(False)
        self._peer: Peer | None = None
        weakref.finalize(self, self._socket.close)

    def take(self) -> bytes:
        if self._peer is None:
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return b""
            self._peer = Peer(connection)
            self._socket.close()
        return self._peer.take()


class Serial:
    def __init__(self, device: str, baud: int) -> None:
        import termios  # here, since only Unix has them
        import tty

        self.what = f"serial {Path(device).name}"
        self._whole = False
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise UsageError(f"there is no serial speed of {baud} baud")
        try:
            self._handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            weakref.finalize(self, os.close, self._handle)
            tty.setraw(self._handle)
            modes = termios.tcgetattr(self._handle)
            modes[4] = modes[5] = speed
            termios.tcsetattr(self._handle, termios.TCSANOW, modes)
            termios.tcflush(self._handle, termios.TCIFLUSH)  # readings long past
        except (OSError, termios.error) as error:
            permit = "; sudo usermod -aG dialout $USER, and log in again" if isinstance(error, PermissionError) else ""
            raise Lost(f"cannot read {self.what}: {_why(error)}{permit}") from error

    def take(self) -> bytes:
        try:
            new = os.read(self._handle, CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Lost(f"it is gone: {_why(error)}") from error
        if not new:
            raise Lost("it hung up")
        if not self._whole:  # the first line was on its way when we came
            _, newline, new = new.partition(b"\n")
            self._whole = bool(newline)
        return new


_KNOWN = f"[meter.external] takes {', '.join(sorted(OPTIONS))}"
_DISAGREE = "the clocks disagree (NTP, timezone, late_s)"
_HEADER = "timestamp,watts (or joules, kilowatt_hours, …)"


def _problem(sample: Sample, last: Sample | None, is_power: bool, emptied_ns: int, now_ns: int) -> str:
    """Why a reading cannot be true; empty where it can. Whether a counter may fall is left to the harness.

    The reading arrived between `emptied_ns`, when there was nothing left to read, and `now_ns`.
    """
    at_ns = sample.at_ns or 0
    if not math.isfinite(sample.value):
        return "it is no number"
    if sample.value < 0:
        return f"{sample.value:g} is negative"
    if at_ns - now_ns > AHEAD_NS:
        return f"its stamp is {(at_ns - now_ns) / 1e9:.1f} s in the future: {_DISAGREE}"
    if emptied_ns - at_ns > BEHIND_NS:
        late_s = (emptied_ns - at_ns) / 1e9
        return f"it came {late_s:.0f} s or more after its stamp: {_DISAGREE}, or its writer holds it back"
    if last is None or last.at_ns is None:
        return f"{sample.value:g} W: are these milliwatts?" if is_power and sample.value > MOST_WATTS else ""
    if at_ns < last.at_ns:
        return f"its stamp is {(last.at_ns - at_ns) / 1e9:.1f} s before that of the line above"
    watts = sample.value
    if not is_power:
        watts = (sample.value - last.value) / max((at_ns - last.at_ns) / 1e9, 1)  # stamps may be of whole seconds
    elif sample.value and last.value and not 1 / JUMP < sample.value / last.value < JUMP:
        return f"{last.value:g} W and then {sample.value:g} W: are the units mixed up?"
    return f"{watts:g} W: are the units mixed up?" if watts > MOST_WATTS else ""


def _fields(line: bytes) -> list[str]:
    """The fields of a line; none for a comment or an empty line. Raises ValueError where it is no text or no CSV."""
    text = line.decode("utf-8-sig").strip()
    if not text or text.startswith("#"):
        return []
    if not text.isprintable() and not text.replace("\t", "").isprintable():
        raise ValueError("control characters")
    try:
        (fields,) = csv.reader([text], delimiter=";" if ";" in text else ",", strict=True)
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return [field.strip() for field in fields]


def _fields_or_none(line: bytes) -> list[str]:
    try:
        return _fields(line)
    except ValueError:
        return []


def _header(fields: Sequence[str], unit: str | None) -> Layout | None:
    """The layout that a header names; None: the line is no header. Raises Lost where its unit was not declared."""
    names = [field.lower().replace(" ", "_") for field in fields]
    if not names or any(_is_number(name) for name in names):
        return None
    stamp = names.index("timestamp") if "timestamp" in names else None
    known = [name for name in names if name in COLUMNS]
    if len(known) != 1 and not (unit and not known and "value" in names):
        return None
    said = COLUMNS[known[0]] if known else unit or "W"
    if unit and said != unit:
        raise Lost(f"its header says {said}, and the options say {unit}")
    return Layout(len(names), stamp, names.index(known[0] if known else "value"), said)


def _epoch_ns(text: str, zone: tzinfo | None) -> int:
    """Nanoseconds since 1970 of a stamp in ISO 8601, or of a number whose size tells its unit. Raises ValueError."""
    if _is_number(text):
        size = abs(float(text))
        unit_ns = next((unit for most, unit in ((1e11, 1000 * MS), (1e14, MS), (1e17, 1000)) if size < most), 1)
        return int(Decimal(text) * unit_ns)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        if zone is None:
            raise ValueError("its stamp has no zone: say timezone=UTC, or what it is")
        moment = moment.replace(tzinfo=zone)
    elapsed = moment - datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return (elapsed.days * 86400 + elapsed.seconds) * 1000 * MS + elapsed.microseconds * 1000


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


def _shown(line: bytes) -> str:
    """The beginning of a line that could not be read, safe to print."""
    return ascii(line[:40].decode("utf-8", "replace"))


def _connected(address: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_connection(address, CONNECT_S)
    except (OSError, UnicodeError) as error:  # no host has such a name
        raise Lost(f"nobody answers there: {_why(error)}; start the meter first") from error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"the meter external cannot take {text!r} as an address", hint="give it as HOST:PORT")
    return host.strip("[]"), int(port)


def _why(error: Exception) -> str:
    """The reason without the path or the address, because it ends up in a result."""
    if isinstance(error, OSError) and (error.errno or 0) > 0:  # Python adds more to the words of some
        return os.strerror(error.errno or 0)
    return str(error.args[-1]) if error.args else type(error).__name__


def _choice(options: Mapping[str, str], name: str, allowed: Sequence[str]) -> str | None:
    value = options.get(name)
    if value is not None and value not in allowed:
        raise UsageError(f"the meter external takes {name} {', '.join(allowed)}, and not {value!r}")
    return value


def _boundary(options: Mapping[str, str]) -> Literal["wall", "node", "devices"]:
    chosen = _choice(options, "boundary", ("wall", "node", "devices"))
    return "node" if chosen == "node" else "devices" if chosen == "devices" else "wall"


def _number(options: Mapping[str, str], name: str) -> float | None:
    """The option as a number; `1%` is 0.01. None: it is not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (name != "late_s" and value <= 0):
        raise UsageError(f"the meter external takes a number for {name}, and not {text!r}")
    return value


def _zone(options: Mapping[str, str]) -> tzinfo | None:
    name = options.get("timezone")
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UsageError(f"there is no time zone {name!r}", hint="name it as in Europe/Berlin, or UTC") from error
