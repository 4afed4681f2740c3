"""Logs as instruments write them: one real log of an analyser, and lines as the tools' documentation shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Absent, Device, Domain, Samples
from mixmark.harness.judge.energy.reading import reading
from mixmark.harness.meters.external import Clocks, External
from mixmark.harness.meters.external.formats import recognised
from mixmark.harness.meters.external.lines import UNITS, epoch_ns
from tests.fakes.machine import WALL

LOGS = Path(__file__).parent / "logs"
SECOND = 1_000_000_000
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
FORMATS = [
    (
        "nvidia-smi",
        ["timestamp, uuid, power.draw [W]", "2026/11/24 09:41:30.123, GPU-aa, 65.43 W"],
        {},
        ("2026-11-24T09:41:30.123", 65.43),
    ),
    (
        "turbostat",
        ["Time_Of_Day_Seconds\tPkgWatt\tRAMWatt", "1764000000.500000\t33.25\t2.10"],
        {},
        ("2025-11-24T16:00:00.500", 33.25),
    ),
    (
        "powermetrics",
        [
            "Machine model: Mac16,1",
            "*** Sampled system activity (Tue Nov 24 09:41:30 2026 +0100) (1003.21ms elapsed) ***",
            "CPU Power: 512 mW",
            "Combined Power (CPU + GPU + ANE): 1234 mW",
        ],
        {},
        ("2026-11-24T08:41:30", 1.234),
    ),
    (
        "HWiNFO",
        ['Date,Time,"Total CPU Usage [%]","CPU Package Power [W]"', "24.11.2026,09:41:30.250,12.5,45.6"],
        {},
        ("2026-11-24T09:41:30.250", 45.6),
    ),
    (
        "LibreHardwareMonitor",  # as its Logger.cs writes
        [",/amdcpu/0/load/0,/amdcpu/0/power/0", 'Time,"CPU Total","Package"', "11/24/2026 09:41:30,12.5,45.6"],
        {},
        ("2026-11-24T09:41:30", 45.6),
    ),
    (
        "LibreHardwareMonitor",
        [",/a/0/power/0,/b/0/power/0", 'Time,"Package","Package"', "11/24/2026 09:41:30,12.5,45.6"],
        {"column": "/b/0/power/0"},
        ("2026-11-24T09:41:30", 45.6),
    ),
    (
        "a table",  # as an export of an analyser may have it
        ["Store No.;Date;Time;U-1;P-1", "1;2026/11/24;09:41:30;230.1;0.1504"],
        {"time": "Date+Time", "column": "P-1", "unit": "kW", "time_format": "%Y/%m/%d %H:%M:%S"},
        ("2026-11-24T09:41:30", 150.4),
    ),
]


@pytest.mark.parametrize(("name", "text", "options", "expected"), FORMATS)
def test_a_line_of_each_tool(name: str, text: list[str], options: dict[str, str], expected: tuple[str, float]) -> None:
    found = recognised(text[0].encode(), options)
    assert found is not None
    assert found.name == name
    readings = [each for line in text for each in [found.reading(line)] if each]
    [(at, value)] = readings
    moment = datetime.fromisoformat(expected[0]).replace(tzinfo=UTC)
    assert epoch_ns(at, UTC, found.time_format) == pytest.approx(moment.timestamp() * SECOND, abs=1000)
    assert float(value) * UNITS[found.unit] == pytest.approx(expected[1])


@pytest.mark.parametrize(
    ("header", "options", "says"),
    [
        ('Date,Time,"CPU Package Power [W]","GPU Power [W]"', {}, "several columns are in watts"),
        ("Date,Time,P [W]", {"column": "Q"}, "no column 'Q'"),
        (",/a/0/power/0,/b/0/power/0", {}, "several columns are in watts"),
        ("a,b", {"time": "a", "column": "b", "unit": "hp"}, "'hp' is not a unit"),
    ],
)
def test_a_header_whose_columns_are_not_clear_is_refused(header: str, options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recognised(header.encode(), options)


@pytest.mark.parametrize("first", [b"", b"hello", b"Time,later,Watts,3", b"a,b,c", b"\xff\xfe", b"Date,Time,x"])
def test_what_is_no_log_is_not_recognised(first: bytes) -> None:
    assert recognised(first, {}) is None


def test_two_gpus_in_one_log_must_be_told_apart() -> None:
    text = "timestamp, uuid, power.draw [W]"
    lines = ["2026/11/24 09:41:30.1, GPU-aa, 65 W", "2026/11/24 09:41:30.1, GPU-bb, 99 W"]
    mixed = recognised(text.encode(), {})
    assert mixed is not None and mixed.reading(lines[0])
    with pytest.raises(ValueError, match="another GPU"):
        mixed.reading(lines[1])
    only = recognised(text.encode(), {"only": "GPU-bb"})
    assert only is not None
    assert [only.reading(line) for line in lines] == [None, ("2026/11/24 09:41:30.1", "99")]


def ptdaemon() -> tuple[list[int], list[float]]:
    lines = (LOGS / "ptdaemon.txt").read_text().splitlines()
    found = recognised(lines[0].encode(), {})
    assert found is not None and found.name == "SPEC PTDaemon"
    readings = [each for line in lines for each in [found.reading(line)] if each]
    return [epoch_ns(at, UTC, found.time_format) for at, _ in readings], [float(value) for _, value in readings]


def test_the_energy_of_a_real_analysers_log_is_the_sum_of_its_samples() -> None:
    at, watts = ptdaemon()
    assert (len(at), watts[0]) == (200, 2.96)
    at_ns = np.array(at) - at[0]
    for first, last in ((0, 199), (10, 110), (60, 199)):
        found = reading(WALL, Samples(at_ns, at_ns, np.array(watts)), int(at_ns[first]), int(at_ns[last]))
        own = float(np.sum(np.array(watts[first:last]) * np.diff(at_ns[first : last + 1]) / 1e9))
        assert found.joules == pytest.approx(own, rel=0.001 + 0.5 * abs(watts[last] - watts[first]) / own)


def test_a_log_of_an_analyser_is_followed_while_it_grows(tmp_path: Path) -> None:
    text = (LOGS / "ptdaemon.txt").read_text().splitlines(keepends=True)
    path = tmp_path / "spl.txt"
    path.write_text("".join(text[:50]))
    first_ns = epoch_ns("03-03-2021 00:54:21.185", UTC, "%m-%d-%Y %H:%M:%S.%f")
    now = [1000 * SECOND]
    clocks = Clocks(lambda: now[0], lambda: now[0] - 1000 * SECOND + first_ns)
    meter = External({"path": str(path), "timezone": "UTC", "accuracy": "0.1%"}, clocks)
    [domain] = meter.domains([CPU])
    assert isinstance(domain, Domain)
    assert domain.source == "log spl.txt, as SPEC PTDaemon writes it, in W, as declared by its owner"
    now[0] += 10 * SECOND
    with path.open("a") as log:
        log.writelines(text[50:60])
    samples = meter.read(domain)
    assert [sample.value for sample in samples[:2]] == [5.74, 5.74]
    assert len(samples) == 10
    assert samples[0].at_ns == 1000 * SECOND
    now[0] += 86_400 * SECOND
    assert meter.read(domain) == []
    with path.open("a") as log:
        log.writelines(text[60:61])
    with pytest.raises(Exception, match="after its timestamp: the clocks disagree"):
        meter.read(domain)


def test_local_time_without_a_zone_is_refused_and_the_hour_that_comes_twice_is_told_apart(tmp_path: Path) -> None:
    zone = ZoneInfo("Europe/Berlin")
    before = epoch_ns("2026-10-25 02:59:59", zone)
    again = epoch_ns("2026-10-25 02:00:00", zone, last_ns=before)
    assert again - before == SECOND
    assert epoch_ns("2026-10-25 03:00:00", zone, last_ns=again) - again == 3600 * SECOND
    with pytest.raises(ValueError, match="no zone"):
        epoch_ns("03-03-2021 00:53:31.184", None, "%m-%d-%Y %H:%M:%S.%f")


def test_a_log_that_no_tool_writes_says_what_to_name(tmp_path: Path) -> None:
    path = tmp_path / "power.csv"
    path.write_text("when,how much\n")
    [absent] = External({"path": str(path)}).domains([CPU])
    assert isinstance(absent, Absent)
    assert "or name column and time" in absent.reason
