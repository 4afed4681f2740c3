"""Real files and processes; the analyzers behind them are ours."""

from __future__ import annotations

import os
import re
import sys
import time
import zoneinfo
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from mixmark.harness.capabilities import external_log as external
from mixmark.harness.capabilities.external_log import Clocks, External, lines
from mixmark.harness.capabilities.external_log.lines import LONGEST_LINE, Lost
from mixmark.harness.capabilities.external_log.sources import CHUNK
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.machine import config
from mixmark.harness.measure.metering import Meters
from mixmark.harness.plugins.registry import Plugin

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
SECOND = 1_000_000_000
WALL_NS = 1_760_000_000 * SECOND  # 2025-10-09T08:53:20Z, when CLOCK_MONOTONIC is at 1000 s
PATIENCE_S = 20.0


class Hands:
    """Both clocks, which the test moves."""

    def __init__(self) -> None:
        self.now_ns, self.step_ns = 1000 * SECOND, 0

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now_ns, lambda: self.now_ns - 1000 * SECOND + WALL_NS + self.step_ns)


def opened(options: Mapping[str, str], clocks: Clocks | None = None) -> tuple[External, Domain]:
    meter = External(options, clocks)
    (domain,) = meter.domains([CPU])
    assert isinstance(domain, Domain), domain
    return meter, domain


def refused(options: Mapping[str, str], clocks: Clocks | None = None) -> str:
    (absent,) = External(options, clocks).domains([CPU])
    assert isinstance(absent, Absent)
    return absent.reason


def gather(meter: External, domain: Domain, count: int) -> list[Sample]:
    samples: list[Sample] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(samples) < count and time.monotonic() < deadline:
        samples += meter.read(domain)
        time.sleep(0.01)
    assert len(samples) >= count
    return samples


def fate(meter: External, domain: Domain) -> str:
    """Reads until the source is lost, and says why; it stays lost."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            meter.read(domain)
        except Lost as lost:
            with pytest.raises(Lost, match="^" + str(lost)[:10]):
                meter.read(domain)
            return str(lost)
        time.sleep(0.01)
    raise AssertionError("it was never lost")


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the system's database of time zones nor the package tzdata."""
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath([])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


class TestLog:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        path = tmp_path / "power.csv"
        path.write_text("timestamp,watts\n")
        return path

    def test_timestamps_are_moved_to_the_clock_of_the_run(self, log: Path) -> None:
        hands = Hands()
        meter, domain = opened({"path": str(log), "late_s": "-0.25", "accuracy": "1%"}, hands.clocks)
        assert (domain.boundary, domain.method, domain.quantity) == ("wall", "external", "power")
        assert (domain.accuracy, domain.covers) == (0.01, ("cpu:0", "memory", "node"))
        hands.now_ns += 10 * SECOND
        append(log, "# from a plug\n\n1760000005.25,10\n2025-10-09T10:53:29.5+02:00,12\n")
        append(log, "2025-10-09 08:53:29.75Z,13\n1760000009.75000025,15\n")
        assert meter.read(domain) == [
            Sample(10, 1005 * SECOND),
            Sample(12, 1009_250_000_000),
            Sample(13, 1009_500_000_000),
            Sample(15, 1009_500_000_250),
        ]
        assert meter.read(domain) == []

    def test_a_declared_delay_of_the_clock_is_disclosed(self, log: Path) -> None:
        """A clock that is 3 s late would move a window by 3 s."""
        hands = Hands()
        meter, domain = opened({"path": str(log), "late_s": "3"}, hands.clocks)
        append(log, "1759999997,100\n")
        assert meter.read(domain) == [Sample(100, 1000 * SECOND)]
        assert domain.source == "log power.csv, in W, with +3 s added to its timestamps, as declared by its owner"
        assert "added" not in opened({"path": str(log)}, hands.clocks)[1].source

    @pytest.mark.parametrize(
        ("lines", "reason"),
        [
            ("1760000000,100\n176000\n", "it has 1 fields, not 2"),
            ("1760000000,1o0\n", "line 2 is torn or wrong: '1760000000,1o0'"),
            ("1760000000500,100\n", "0.5 s in the future"),
            ("1760000000,100\n1760000000,50\n", "line 3 is torn or wrong: '1760000000,50' (it is of the same instant"),
            ("1\x007\x006\x000\x00\n", "NUL bytes, as UTF-16 has"),
            ("1760000000,nan\n", "'nan' is not a number"),
            ("1760000000,-4\n", "negative"),
            ("\x03\x01\x02\n", "control characters"),
            ("1760000000,100\n1759999999,100\n", "line 3: its timestamp is 1.0 s before"),
            ("1759996400,100\n", "3600 s or more after its timestamp: the clocks disagree"),
            ("x" * (LONGEST_LINE + 1), f"longer than {LONGEST_LINE}"),
        ],
    )
    def test_a_reading_that_cannot_be_right_loses_the_source(self, log: Path, lines: str, reason: str) -> None:
        meter, domain = opened({"path": str(log)}, Hands().clocks)
        append(log, lines)
        assert reason in fate(meter, domain)

    def test_a_log_that_is_cut_replaced_or_removed_is_lost(self, log: Path, tmp_path: Path) -> None:
        append(log, "1760000000,100\n")
        meter, domain = opened({"path": str(log)}, Hands().clocks)
        log.write_text("timestamp,watts\n")
        assert "cut or replaced" in fate(meter, domain)
        meter, domain = opened({"path": str(log)}, Hands().clocks)
        (tmp_path / "new.csv").write_text("timestamp,watts\n1760000000,100\n")
        os.replace(tmp_path / "new.csv", log)
        assert "cut or replaced" in fate(meter, domain)
        meter, domain = opened({"path": str(log)}, Hands().clocks)
        log.rename(log.with_suffix(".1"))
        assert fate(meter, domain) == "log power.csv: it was removed or renamed"

    def test_anything_but_a_regular_file_is_refused_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe, closed = tmp_path / "pipe", tmp_path / "closed.csv"
        os.mkfifo(pipe)  # opening it would wait for ever
        for path in (pipe, tmp_path, Path("/dev/zero")):
            assert refused({"path": str(path)}).startswith(f"log {path.name} is not a file")
        assert re.search("cannot read log p\x00: (stat: )?embedded null", refused({"path": "p\x00"}))  # since 3.13
        closed.write_text("timestamp,watts\n")

        def denied(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(closed))

        monkeypatch.setattr(Path, "open", denied)
        assert "cannot read log closed.csv: Permission denied" in refused({"path": str(closed)})

    def test_a_wall_clock_that_is_set_loses_it(self, log: Path) -> None:
        hands = Hands()
        meter, domain = opened({"path": str(log)}, hands.clocks)
        hands.step_ns = -2 * SECOND
        append(log, "1759999998,100\n")
        assert "wall clock was set" in fate(meter, domain)

    def test_lines_that_take_long_to_read_on_a_busy_machine_are_no_step_of_the_clock(
        self, log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hands, decoded = Hands(), lines.decoded
        meter, domain = opened({"path": str(log)}, hands.clocks)

        def slowly(line: bytes) -> str:
            hands.now_ns += SECOND
            return decoded(line)

        monkeypatch.setattr(lines, "decoded", slowly)
        append(log, "1760000000,100\n")
        assert len(meter.read(domain)) == 1

    def test_lines_that_waited_between_two_reads_are_not_late(self, log: Path) -> None:
        hands = Hands()
        meter, domain = opened({"path": str(log)}, hands.clocks)
        append(log, "1760000000,100\n")
        hands.now_ns += 3600 * SECOND
        append(log, "1760003600,101\n")
        assert [sample.value for sample in meter.read(domain)] == [100, 101]
        append(log, "1760003500,102\n")
        assert "it arrived 100 s or more after its timestamp" in fate(meter, domain)

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (None, ["No such file"]),
            ("", ["no whole line yet"]),
            ("1760000000,100\n", ["needs a header such as timestamp,watts", "'1760000000,100'"]),
            ("timestamp,volts\n1,2\n", ["(nvidia-smi, ", "'timestamp,volts' | '1,2'", "options time, column and unit"]),
            ("timestamp,watts,joules\n", ["several columns have a unit", 'column = "watts", or one of joules']),
            ("timestamp, power.draw [W]\n", ["which GPU a row is of: add uuid to --query-gpu"]),
            ("timestamp,Energy (MWh)\n", ["'Energy (MWh)' may be in mWh or MWh: add unit"]),
            ("timestamp,timestamp,watts\n", ["2 columns 'timestamp'"]),
        ],
    )
    def test_a_log_that_does_not_say_what_it_holds_is_refused_with_its_first_lines(
        self, tmp_path: Path, content: str | None, says: list[str]
    ) -> None:
        path = tmp_path / "power.csv"
        if content is not None:
            path.write_text(content, "latin-1")
        reason = refused({"path": str(path)})
        assert [part for part in says if part not in reason] == [], reason

    def test_what_is_not_utf_8_is_read_if_it_is_ascii_where_the_readings_are(self, tmp_path: Path) -> None:
        """HWiNFO writes the code page of Windows."""
        path = tmp_path / "power.csv"
        path.write_bytes('timestamp,"T [°C]",watts\r\n1759999000,30,99\r\n1760000000,3'.encode("cp1252"))
        meter, domain = opened({"path": str(path)}, Hands().clocks)
        assert meter.read(domain) == []
        append(path, "0,42.5\r\n1760000000.05,3")
        assert meter.read(domain) == [Sample(42.5, 1000 * SECOND)]
        path.write_bytes("timestamp,watts\r\n".encode("utf-16"))
        assert "of no known format" in refused({"path": str(path)})

    def test_a_header_may_have_any_length_and_stand_below_a_banner(self, tmp_path: Path) -> None:
        path = tmp_path / "hwinfo.csv"
        names = ",".join(f'"Core {number} Clock (perf #1/2) [MHz]"' for number in range(180))
        path.write_text(f'HWiNFO64 v8.26\n\nDate,Time,{names},"CPU Package Power [W]",\n')
        meter, domain = opened({"path": str(path), "timezone": "UTC"}, Hands().clocks)
        row = ",".join(["4100.5"] * 180)
        append(path, f"9.10.2025,08:53:20.000,{row},42.125,\n")
        assert meter.read(domain) == [Sample(42.125, 1000 * SECOND)]
        append(path, f"9.10.2025,08:53:20.050,{row.replace('4100.5', '55,3', 1)},42.125,\n")
        assert "line 5 is torn or wrong" in fate(meter, domain)

    @pytest.mark.parametrize(
        ("times", "says"),
        [
            (["1759999000,99\nnot a row"], None),
            (["timestamp,watts\n1759999000"], None),
            (["timestamp,volts\n1759999000"], "other columns than the header"),
            (["12.5", "13.5"], "13.5 is no time since 1970, but a time since the begin of the log, a day number"),
            (["12500", "13500"], "a time since the begin of the log"),
            (["45988.980", "45988.981"], "a day number of a spreadsheet"),
            (["2461007.87", "-3"], "-3 is no time since 1970"),  # a Julian day
            (["20251009085320"], "or a date that needs time_format"),
            (["638956000000000000"], "is no time since 1970"),  # ticks of .NET
            (["2025-10-09", "2025-10-09"], "its time is a date alone"),
            (["2025/10/09"], "its time is a date alone"),
            (["08:53:20"], "its time has no date"),
            (["Thu Oct  9 08:53:20 2025"], "is no time as ISO 8601 has it: add time_format"),
            (["2025-10-09 08:53:20"], "its timestamp has no zone"),
            (["2025-10-09 10:53:21Z"], "7201.0 s in the future"),
            (["12.5", "1759999000"], None),
            (["nonsense"] * 30 + ["1759999000"] + ["nonsense"] * 9, None),
        ],
    )
    def test_a_log_none_of_whose_last_rows_can_be_read_is_refused_when_it_opens(
        self, log: Path, times: list[str], says: str | None
    ) -> None:
        append(log, "".join(f"{at},99\n" for at in times))
        if says is None:
            opened({"path": str(log)}, Hands().clocks)
        else:
            assert says in refused({"path": str(log)}, Hands().clocks)

    @pytest.mark.parametrize("zone", ["UTC", "utc", "Z", "+02:00", "-0530"])
    def test_no_database_is_needed_for_utc_and_offsets(self, log: Path, zone: str, no_zones: None) -> None:
        hours = {"+02:00": 2, "-0530": -5.5}.get(zone, 0)
        meter, domain = opened({"path": str(log), "timezone": zone}, Hands().clocks)
        append(log, f"{datetime.fromtimestamp(1_760_000_000 + 3600 * hours, UTC):%Y-%m-%d %H:%M:%S},7\n")
        assert meter.read(domain) == [Sample(7, 1000 * SECOND)]

    def test_timestamps_without_a_zone_need_the_option(self, log: Path) -> None:
        log.write_text("timestamp,kilowatt hours\n")
        meter, domain = opened({"path": str(log), "timezone": "Europe/Berlin"}, Hands().clocks)
        assert domain.quantity == "energy"
        append(log, "2025-10-09 10:53:20,0.5\n")
        assert meter.read(domain) == [Sample(1_800_000, 1000 * SECOND)]


class TestCommand:
    """Real programs."""

    def program(self, folder: Path, text: str) -> dict[str, str]:
        (folder / "read_meter.py").write_text(text)
        return {"command": f'"{sys.executable}" -u "{folder}/read_meter.py"'}

    def test_lines_without_timestamps_get_their_time_of_arrival(self, tmp_path: Path) -> None:
        began_ns = time.monotonic_ns()
        text = "import itertools, time\nfor step in itertools.count(): print(40 + step % 2); time.sleep(0.02)"
        meter, domain = opened({**self.program(tmp_path, text), "unit": "kW"})
        try:
            samples = gather(meter, domain, 3)
        finally:
            meter.close()
        assert {each.value for each in samples} <= {40_000.0, 41_000.0}
        assert began_ns < (samples[0].at_ns or 0) < (samples[-1].at_ns or 0) <= time.monotonic_ns()
        assert domain.quantity == "power"
        assert "read_meter" not in domain.source

    @pytest.mark.parametrize("header", ["watts", "timestamp;watts", "Reading the meter\ntimestamp;watts"])
    def test_its_output_is_read_as_a_log_is(self, tmp_path: Path, header: str) -> None:
        timed = "time.time(), end=';')" if ";" in header else "end='')"
        text = f"import time\nprint({header!r})\nwhile True: print({timed}; print(42.5); time.sleep(0.02)"
        meter, domain = opened(self.program(tmp_path, text))
        assert {each.value for each in gather(meter, domain, 3)} == {42.5}
        meter.close()

    def test_lines_that_waited_without_timestamps_are_dropped(self, tmp_path: Path) -> None:
        """The first read finds what waited, and of these lines no time is known."""
        text = f"import time\nprint('100\\n' * {CHUNK // 8})\ntime.sleep(0.3)\nwhile True: print(250); time.sleep(0.1)"
        meter, domain = opened(self.program(tmp_path, text))
        assert {each.value for each in gather(meter, domain, 2)} == {250}
        meter.close()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [("print('~;;6O watts'); time.sleep(1000)", "is torn or wrong"), ("sys.exit(3)", "it ended with exit code 3")],
    )
    def test_a_program_that_prints_no_readings_any_more_is_lost(self, tmp_path: Path, text: str, reason: str) -> None:
        meter, domain = opened(self.program(tmp_path, f"import sys, time\nprint(42)\ntime.sleep(0.1)\n{text}"))
        assert reason in fate(meter, domain)

    def test_a_program_ends_with_its_meter_and_all_that_it_started(self, tmp_path: Path) -> None:
        options = {"command": "sh -c 'echo 42; echo 43; sleep 1000 & echo $! >&2; cat >/dev/null; sleep 1000'"}
        configured = config.Config(meters={"external": options})
        plugin = {
            "external": Plugin("meters", "external", "mixmark.harness.capabilities.external_log:External", "test")
        }
        before = {each.pid for each in psutil.Process().children()}
        with Meters(configured, [CPU], plugin) as meters:
            assert [each.id for each in meters.domains] == ["external"]
            (pid,) = {each.pid for each in psutil.Process().children()} - before
            os.killpg(pid, 0)
        deadline = time.monotonic() + PATIENCE_S
        with pytest.raises(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(pid, 0)
                time.sleep(0.01)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (
                "import sys; print('busy', file=sys.stderr); sys.exit('no such port: ttyUSB7')",
                "1: no such port: ttyUSB7",
            ),
            ("print('hello world')", "it ended with exit code 0"),
            ("import os; os.kill(os.getpid(), 9)", "it ended with exit code -9"),
        ],
    )
    def test_a_program_that_ends_at_once_is_refused_with_its_last_line_of_errors(
        self, tmp_path: Path, text: str, reason: str
    ) -> None:
        assert refused(self.program(tmp_path, text)).endswith(reason)

    def test_a_program_that_prints_no_table_is_refused_and_ended(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(external, "HEADER_S", 0.3)
        text = f"import os, time\nopen('{tmp_path}/pid', 'w').write(str(os.getpid()))\nprint('a;b')\ntime.sleep(1000)"
        assert "first lines are 'a;b'" in refused(self.program(tmp_path, text))
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)

    def test_there_is_no_shell(self) -> None:
        assert "No such file" in refused({"command": "no-such-meter; echo 42"})
        assert "No closing quotation" in refused({"command": "echo '42"})


def test_a_choice_between_devices_is_a_table_of_the_section(tmp_path: Path) -> None:
    log = tmp_path / "gpus.csv"
    log.write_text("\ufefftimestamp, index, power.draw [W]\r\n")  # as loggers of Windows begin
    (tmp_path / "mixmark.toml").write_text(f'[meter.external]\npath = "{log}"\ntimezone = "UTC"\nwhere = {{index = 1}}')
    options = config.load(tmp_path / "mixmark.toml").meters["external"]
    meter, domain = opened(options, Hands().clocks)
    append(log, "2025/10/09 08:53:20.000, 0, 300.00 W\n2025/10/09 08:53:20.001, 1, 50.00 W\n")
    assert [each.value for each in meter.read(domain)] == [50.0]


def test_the_boundary_devices_needs_their_ids(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="covers"):
        External({"path": "a", "boundary": "devices"})
    log = tmp_path / "power.csv"
    log.write_text("timestamp,watts\n")
    domain = opened({"path": str(log), "boundary": "devices", "covers": "gpu:0, cpu:0", "name": "left"})[1]
    assert (domain.id, domain.covers) == ("external/left", ("gpu:0", "cpu:0"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"path": "a", "watt": "3"},
        {"path": "a", "command": "b"},
        {"command": " "},
        {"path": "a", "where": "index=0"},
        {"command": "b", "unit": "hp"},
        {"path": "a", "time": "b"},
        {"path": "a", "boundary": "room"},
        {"path": "a", "one_device": "maybe"},
        {"path": "a", "accuracy": "good"},
        {"path": "a", "late_s": "inf"},
        {"path": "a", "timezone": "Atlantis"},
    ],
)
def test_options_that_mean_nothing_are_misuse(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        External(options)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Etc/GMT+1"])
def test_without_a_database_of_time_zones_the_remedy_is_one(zone: str, no_zones: None) -> None:
    with pytest.raises(UsageError, match="this system has no time zones") as refused:
        External({"path": "a", "timezone": zone})
    assert "tzdata" in refused.value.hint


def append(path: Path, text: str) -> None:
    with path.open("a", newline="") as log:
        log.write(text)
