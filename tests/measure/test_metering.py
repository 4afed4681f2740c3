"""Meters are read while phases run; a failing meter loses only its own domains."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from click.testing import CliRunner

from mixmark.harness.cli import commands
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Device, Domain, Metering
from mixmark.harness.judge.energy.reading import cumulative, reading
from mixmark.harness.judge.rules.quality import METERING
from mixmark.harness.machine.config import Config
from mixmark.harness.measure import metering
from mixmark.harness.measure.metering import Meters, metered
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import clock
from tests.fakes.clock import BEGIN_NS, JumpingClock
from tests.fakes.meters import WATTS
from tests.golden.sample import domain

FAKES = {name: Plugin("meters", name, f"tests.fakes.meters:{name.title()}", "test") for name in ("joules", "plug")}
CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
NPU = Device(id="npu:acme0", kind="npu", memory_pool="npu:acme0")


@pytest.fixture(autouse=True)
def _threads_end(jumping_clock: JumpingClock, in_process: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(metering, "READING", 1.0)
    yield
    assert not [each for each in threading.enumerate() if each.name == metering.NAME and not each.daemon]


def read(config: Config, seconds: float = 5.05) -> tuple[Meters, Metering]:
    with Meters(config, (CPU, NPU), FAKES) as meters:
        meters.begin()
        meters.rest(seconds)
        drained = meters.drain("a")
        assert drained is not None
        return meters, drained


def test_a_counter_becomes_joules_of_a_window() -> None:
    meters, drained = read(Config())
    assert [each.id for each in meters.domains] == ["joules/cpu:0", "joules/npu:acme0"]
    (begin, end), domain = drained.idle_ns[0], meters.domains[0]
    samples = drained.samples[domain.id]
    at_ns = samples.before_ns[[0, -1]]
    joules = cumulative(domain, samples, at_ns)
    assert joules is not None and joules[1] == pytest.approx(WATTS * 5.05)
    assert (drained.begin_ns, drained.end_ns) == (begin, end) == (BEGIN_NS, BEGIN_NS + 5_050_000_000)
    reads = [round(0.1 * read, 1) for read in range(51)] + [5.05]
    assert ((samples.before_ns - BEGIN_NS) / 1e9).tolist() == reads, "one last read"
    assert drained.cpu_ns > 0


def test_what_a_supply_can_take_is_a_fact_of_its_meters_domains() -> None:
    with Meters(Config(supplies_watts={"joules": 850.0}), (CPU, NPU), FAKES) as meters:
        assert [each.supply_watts for each in meters.domains] == [850.0, 850.0]
    with Meters(Config(supplies_watts={"other": 850.0}), (CPU, NPU), FAKES) as meters:
        assert [each.supply_watts for each in meters.domains] == [None, None]


def test_the_age_of_a_timestamp_when_its_reading_is_seen_is_kept() -> None:
    _, drained = read(Config(meters={"joules": {"mode": "late"}}))
    assert set(drained.reading_age_ns) == {"joules/cpu:0", "joules/npu:acme0"}
    assert set(drained.reading_age_ns.values()) == {3_000_000_000}
    _, drained = read(Config())
    assert drained.reading_age_ns == {}, "the harness stamps these"


def test_each_phase_has_its_own_samples() -> None:
    with Meters(Config(), (CPU,), FAKES) as meters:
        drained = []
        for phase in ("a", "b"):
            meters.begin()
            clock.sleep(0.25)
            drained.append(meters.drain(phase))
        first, second = (each.samples["joules/cpu:0"] for each in drained if each)
    assert len(first.values) == len(second.values) == 4
    assert first.after_ns[-1] == second.before_ns[0]


def test_a_meter_that_needs_a_section_is_asked_only_with_one() -> None:
    with Meters(Config(), (CPU,), FAKES) as meters:
        assert {each.meter for each in meters.domains} == {"joules"}
    with Meters(Config(meters={"plug": {}}), (CPU,), FAKES) as meters:
        assert {each.meter for each in meters.domains} == {"joules", "plug"}


def test_without_a_domain_nothing_is_read_and_no_time_is_spent() -> None:
    before = set(threading.enumerate())
    with Meters(Config(), (), FAKES) as meters:
        assert set(threading.enumerate()) <= before  # threads of other tests may end meanwhile
        meters.begin()
        meters.rest(1000)
        assert meters.drain("a") is None


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("broken driver", "meter joules: RuntimeError: libjoules.so: cannot open shared object file"),
        ("exits", "meter joules: SystemExit: joules: licence expired"),
        ("absent", "meter joules: probe 2: not plugged in: plug it in"),
    ],
)
def test_an_absent_source_has_its_reason(mode: str, message: str) -> None:
    meters = Meters(Config(meters={"joules": {"mode": mode}, "gone": {}}), (CPU,), FAKES)
    assert [f"{each.label}: {each.reason}" for each in meters.absent] == [
        "[meter.gone]: configured, but there is no such meter",
        message,
    ]
    assert meters.domains == ()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("dies", "the probe was pulled out; plug it in again"),
        ("nan", "ValueError: it read nan"),
        ("1e300", "ValueError: it read 1e+300"),
        ("leaves", "SystemExit: joules: licence expired"),
        ("backwards", "ValueError: its timestamps run backwards"),
        ("hangs", "a read took longer than 2 s"),
    ],
)
def test_a_meter_that_breaks_loses_only_its_own_domains(mode: str, message: str) -> None:
    meters, drained = read(Config(meters={"joules": {"mode": mode}, "plug": {}}))
    assert drained.lost and set(drained.lost.values()) == {message}
    assert {id.split("/")[0] for id in drained.lost} == {"joules"}
    assert len(drained.samples["plug/cpu:0"].values) > 10
    lost = reading(meters.domains[0], drained.samples["joules/cpu:0"], drained.begin_ns, drained.end_ns, True)
    assert lost.joules is None


def test_a_meter_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Meters(Config(meters={"joules": {"mode": "hangs"}}), (CPU,), FAKES) as meters:
        meters.begin()
        clock.sleep(1)
        meters.drain("a")
        monkeypatch.setattr(metering, "PATIENCE_S", 1000)
        meters.begin()
        drained = meters.drain("b")
        assert drained and drained.lost and not len(drained.samples["joules/cpu:0"].values)


def test_a_meter_that_never_lists_its_domains_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.meters.Joules.domains", lambda self, devices: clock.sleep(1000))
    [absent] = Meters(Config(), (CPU,), FAKES).absent
    assert "listing its domains took longer than 30 s" in absent.reason


def test_two_meters_with_the_same_domain_are_told_apart() -> None:
    twin = Plugin("meters", "twin", FAKES["joules"].spec, "test")
    meters = Meters(Config(), (CPU,), {"joules": FAKES["joules"], "twin": twin})
    assert len(meters.domains) == 1
    assert [each.reason for each in meters.absent] == ["another meter has a domain of this name"]


def test_a_wrong_option_is_misuse() -> None:
    with pytest.raises(UsageError, match="takes no options: index"):
        Meters(Config(meters={"rapl": {"index": "0"}}), (CPU,), {"rapl": registry.find("meters")["rapl"]})


def test_power_that_is_a_mean_is_not_read_more_often_than_it_renews_itself() -> None:
    with Meters(Config(), (CPU,), FAKES) as meters:
        mean = meters.domains[0].model_copy(update={"averaging_ns": 1_000_000_000})
        reader = metering._Reader(meters._readers[0]._meter, [mean])
        reader.start()
        reader.begin()
        clock.sleep(1.3)
        reader.finish()
        reader.wait()
        reader.end()
    read_ns = reader.samples()[mean.id].before_ns - BEGIN_NS
    assert (read_ns / 1e8).tolist() == [0, 2, 4, 6, 8, 10, 12, 13], "every 0.2 s, not every 0.1, and one last read"


class Costly:
    """The meter of an NVIDIA GPU. It is the CPU clock, too."""

    name = "costly"

    def __init__(self, counter_ns: int, power_ns: int) -> None:
        self.cpu_ns = 0
        self.takes_ns = {"energy": counter_ns, "power": power_ns}
        units = {"energy": "counter", "power": "integrated"}
        self.listed = tuple(domain(id, ("gpu:0",), quantity=id, method=method) for id, method in units.items())

    def domains(self, devices: object) -> Sequence[Domain]:
        return self.listed

    def read(self, domain: Domain) -> list[Sample]:
        clock.sleep(self.takes_ns[domain.quantity] / 1e9)
        self.cpu_ns += self.takes_ns[domain.quantity]
        updates = (clock.now_ns() - BEGIN_NS) // 100_000_000
        return [Sample(7.8 * updates if domain.quantity == "energy" else 78 + updates % 2)]

    def thread_time_ns(self) -> int:
        return self.cpu_ns


@pytest.mark.parametrize(
    ("counter_ns", "power_ns", "every_s", "reasons"),
    [
        (3_500_000, 20_000, 0.9, ("short window",)),  # as on an H200, alone
        (5_900_000, 220_000, 3.3, ("window too short",)),  # as on an H100 at work, with the turns of the thread
    ],
    ids=["H200", "H100"],
)
def test_a_costly_counter_is_read_so_seldom_that_its_meter_stays_below_the_limit(
    monkeypatch: pytest.MonkeyPatch, counter_ns: int, power_ns: int, every_s: float, reasons: tuple[str, ...]
) -> None:
    """In a minute. On an H100 eight of ten measurements were said to be disturbed by their meter."""
    monkeypatch.setattr(metering, "READING", 0.8 * METERING)
    costly = Costly(counter_ns, power_ns)
    monkeypatch.setattr(metering, "time", costly)
    reader = metering._Reader(costly, costly.listed)
    reader.begin()
    reader.start()
    clock.sleep(60)
    reader.finish()
    reader.wait()
    reader.end()
    energy, power = (reader.samples()[each.id] for each in costly.listed)
    assert len(power.values) == 601
    assert METERING > reader.cpu_ns / 60e9 == pytest.approx((len(energy.values) * counter_ns + 601 * power_ns) / 60e9)
    assert np.median(np.diff(energy.before_ns)) == every_s * 1e9
    read = reading(costly.listed[0], energy, BEGIN_NS + 1_000_000_000, BEGIN_NS + 59_000_000_000)
    assert read.reasons == reasons and (read.joules is None or read.joules == pytest.approx(7.8 * 580, rel=1e-3))


ACME = f"{Path(__file__).parents[1] / 'fakes' / 'acme.py'}:Acme"


def test_devices_of_an_adapter_that_is_left_out_draw_power_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "adapters", {"torch": registry.BUILT_IN["adapters"]["torch"], "acme": ACME})
    monkeypatch.setitem(registry.BUILT_IN, "meters", {"joules": FAKES["joules"].spec})
    found = metered((CPU,), ["torch"], Config())
    assert [each.id for each in found.devices] == ["cpu:0", "npu:acme0"]
    assert [each.id for each in found.domains] == ["joules/cpu:0", "joules/npu:acme0"]
    assert metered((CPU,), [], Config()).devices == (CPU,), "all were asked"
    assert metered((CPU,), ["torch"], Config(meters={"joules": {"mode": "absent"}})).devices == (CPU,)


def typed(
    monkeypatch: pytest.MonkeyPatch, *words: str, mode: str = "fine", sections: tuple[str, ...] = ("joules",)
) -> str:
    """The standard output."""
    specs = {name: plugin.spec for name, plugin in FAKES.items()}
    monkeypatch.setitem(registry.BUILT_IN, "meters", specs)
    monkeypatch.setitem(registry.BUILT_IN, "adapters", {})
    with TemporaryDirectory() as folder:
        config = Path(folder) / "mixmark.toml"
        config.write_text("".join(f'[meter.{each}]\nmode = "{mode}"\n' for each in sections))
        done = CliRunner().invoke(commands.main, ["meters", "--adapter", ACME, "--config", str(config), *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_mixmark_meters_writes_the_same_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = json.loads(typed(monkeypatch, "--json"))
    [domain] = listed["domains"]
    assert domain["watts"] == pytest.approx(WATTS)
    assert domain["period_ns"] > 0 and domain["resolution"] > 0
    assert (domain["added"], listed["boundary"], listed["unmetered"]) == (True, None, ["cpu:0"])
    assert [(each["kind"], each["name"]) for each in listed["absent"]] == [("meter", "plug")]


def test_a_driver_that_prints_does_not_get_into_the_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(typed(monkeypatch, "--json", mode="prints"))["domains"]
    captured = capfd.readouterr()
    assert "libjoules" in captured.err and "libjoules" not in captured.out


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("dies", "joules/npu:acme0 could not be read any more: the probe was pulled out; plug it in again"),
        ("falls", "jumped back"),
    ],
)
def test_mixmark_meters_says_why_a_source_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, mode: str, message: str
) -> None:
    output = typed(monkeypatch, mode=mode)
    assert message in output and "counted" not in output


def test_mixmark_meters_says_that_two_walls_need_a_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    one = typed(monkeypatch, mode="wall")
    assert "A run on this machine reports its energy with the boundary wall." in one
    two = typed(monkeypatch, mode="wall", sections=("joules.left", "joules.right"))
    assert "A run on this machine reports no efficiency.\njoules/left and joules/right both claim to meter" in two


@pytest.mark.parametrize("error", [OSError, ValueError, MixmarkError])
@pytest.mark.parametrize(("failures", "lost"), [(1, {}), (2, {"joules/cpu:0": "the first"})])
def test_a_file_that_is_empty_for_a_moment_is_read_again_once(
    error: type[Exception], failures: int, lost: dict[str, str]
) -> None:
    left = [error("the second"), error("the first")][-failures:]

    class Flaky:
        name = "flaky"

        def domains(self, devices: object) -> list[Domain]:
            return []

        def read(self, domain: Domain) -> list[Sample]:
            if left:
                raise left.pop()
            return [Sample(5.0)]

    with Meters(Config(), (CPU,), FAKES) as meters:
        domain = meters.domains[0]
    reader = metering._Reader(Flaky(), [domain])
    reader._rows[domain.id] = []
    reader._read(domain)
    assert {id: why.rpartition(": ")[2] for id, why in reader.lost.items()} == lost
