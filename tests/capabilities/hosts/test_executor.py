"""Phases on several hosts: their records, and the loss of a host that dies, stalls, lies or cannot go on."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from mixmark.harness.capabilities.hosts import agents, messages, streams
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.executor import Cluster
from mixmark.harness.capabilities.hosts.messages import AgentCalls, LeaderCalls, PhaseMeasured
from mixmark.harness.contracts.errors import ResultError
from mixmark.harness.contracts.schema import Connection, Failure, Metering, Mix, Phase, Record, Samples, Share, Task
from mixmark.harness.measure.executor import PhaseEvent, PhaseRequest, StageStarted
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.plan.placement import place
from mixmark.harness.record import store
from mixmark.harness.resources import clock
from mixmark.harness.worker import calls
from mixmark.harness.worker.calls import Later
from mixmark.harness.worker.failures import WorkerFailed
from tests.capabilities.hosts.stand_ins import LIMITS, PACKAGE, StandIn, StandInLauncher, device, rate, share, solo

SECOND = 1_000_000_000
MIX = Mix(name="duo", tier="smoke", units={"low": 10, "high": 10})
OPEN = LIMITS.model_copy(update={"min_ns": 60 * SECOND, "max_ns": 60 * SECOND})  # the stand-ins end it earlier


pytestmark = pytest.mark.usefixtures("jumping_clock")


@contextmanager
def led(folder: Path, **hosts: StandIn | str) -> Iterator[Cluster]:
    launcher = StandInLauncher(folder, hosts)
    (folder / "out/raw").mkdir(parents=True)
    with Agents(launcher, launcher.hosts, folder) as started:
        yield Cluster(
            started, (), {"low": "sample", "high": "sample"}, folder / "out", {each: [each] for each in hosts}
        )


def measured(
    cluster: Cluster, phase: Phase, notify: Callable[[PhaseEvent], None] = lambda event: None
) -> tuple[dict[str, Record], list[Connection]]:
    """The records by their hosts' names and suites, and the connections."""
    devices = [device(task.device) for task in phase.tasks]
    facts, meters = cluster.measure([PhaseRequest(phase, 0, MIX, devices)], notify)
    assert meters.metering is None
    return {f"{each.route.device} {each.route.suite}": each for each in facts.records}, [*facts.connections]


def mixed(*hosts: str) -> Phase:
    devices = [device(f"{host}/npu:a") for host in hosts]
    rates = [rate(suite, each.id) for each in devices for suite in MIX.units]
    tasks = tuple(
        Task(
            device=each.id,
            shares=tuple(share("mix1", suite, each.id).model_copy(update={"limits": OPEN}) for suite in MIX.units),
        )
        for each in devices
    )
    return Phase(name="mix1", purpose="mixed", tasks=tasks, placement=place(MIX.units, rates, devices))


def refuse(message: str, hint: str = "") -> NoReturn:
    raise WorkerFailed(Failure(kind="raised", message=message, hint=hint))


def failures(records: Mapping[str, Record]) -> dict[str, str]:
    return {name: each.error.message for name, each in records.items() if each.error}


def test_each_host_measures_its_own_and_all_is_of_the_run(tmp_path: Path) -> None:
    events: list[PhaseEvent] = []
    begin_ns = clock.now_ns()
    with led(tmp_path, left=StandIn(), right=StandIn()) as cluster:
        records, connections = measured(cluster, mixed("left", "right"), events.append)
    assert sorted(records) == ["left/npu:a high", "left/npu:a low", "right/npu:a high", "right/npu:a low"]
    stages = {(each.share.route.device, each.stage) for each in events if isinstance(each, StageStarted)}
    assert stages == {("left/npu:a", "measuring"), ("right/npu:a", "measuring")}
    for record in records.values():
        assert record.completions is not None
        issued_ns, ended_ns = record.completions.issued_ns[0], record.completions.yielded_ns[-1]
        assert begin_ns < issued_ns < ended_ns < clock.now_ns(), "the hosts are 5 s ahead"
        assert ended_ns - issued_ns == 30_000_000
    assert [(each.phase, each.host, each.sent_bytes) for each in connections] == [
        ("mix1", "left", 10),
        ("mix1", "right", 10),
    ]
    for each in connections:
        assert abs(each.clock.offset_ns - 5 * SECOND) <= each.clock.bound_ns < SECOND
    assert not [*(tmp_path / "out/raw").iterdir()], "the result keeps the timestamps itself"


class Dying(StandIn):
    """Its agent is killed while it measures."""

    def measure(self, phase: Phase) -> PhaseMeasured | None:
        if phase.placement is not None:
            self.ready(phase)
            self.grants.get()
            self.progress(phase)
        self.die()
        return None


class Lasting(StandIn):
    """It measures until it does everything alone."""

    def mix(self, phase: Phase) -> None:
        self.ready(phase)
        while (granted := self.grants.get()[0]).units != pytest.approx(MIX.units):
            self.parts = dict(granted.units)
            self.progress(phase)


WHY = "the host left did not measure it: its agent was killed by signal 9"


def test_a_host_that_dies_alone_costs_its_own_phases_and_nothing_else(tmp_path: Path) -> None:
    with led(tmp_path, left=Dying(), right=StandIn()) as cluster:
        records, connections = measured(cluster, solo("solo1", "left/npu:a"))
        assert failures(records) == {"left/npu:a low": WHY}
        error = records["left/npu:a low"].error
        assert error is not None and error.kind == "crashed"
        assert connections == []
        records, connections = measured(cluster, solo("solo2", "right/npu:a"))
        assert failures(records) == {} and records["right/npu:a low"].completions is not None
        assert [each.host for each in connections] == ["right"]
        again, _ = measured(cluster, solo("solo3", "left/npu:a"))
        assert failures(again) == {"left/npu:a low": WHY}, "it is not waited for"
        both, _ = measured(cluster, mixed("left", "right"))
        assert failures(both) == {"left/npu:a low": WHY, "left/npu:a high": WHY}
        assert cluster.pool_bytes(()) == {"right/npu:a": 8 << 30}


class Unloaded(StandIn):
    """It can load nothing in the mix, as a device that was not tried alone, since an equal one stood for it."""

    def measure(self, phase: Phase) -> PhaseMeasured | None:
        failure = Failure(kind="raised", message=WHY)
        records = [self.record(phase.name, each) for each in phase.shares]
        return self.sent([each.model_copy(update={"completions": None, "error": failure}) for each in records])


@pytest.mark.parametrize("kind", [Dying, Unloaded])
def test_the_others_do_what_a_host_would_have_done_that_dies_or_loads_nothing_in_the_mix(
    tmp_path: Path, kind: type[StandIn]
) -> None:
    right = Lasting()
    with led(tmp_path, left=kind(), right=right) as cluster:
        records, _ = measured(cluster, mixed("left", "right"))
    if kind is Dying:
        assert 0 < sum(right.parts.values()) < sum(MIX.units.values()), "at first it had a part of the mix"
    assert failures(records) == {"left/npu:a low": WHY, "left/npu:a high": WHY}
    assert {name for name, each in records.items() if each.completions} == {"right/npu:a low", "right/npu:a high"}


class Timed(StandIn):
    """It works until the moment that the leading process names, and begins later than it could."""

    def __init__(self, ahead_s: float, late_s: float) -> None:
        super().__init__()
        self.ahead_ns, self.late_s = round(ahead_s * SECOND), late_s

    def mix(self, phase: Phase) -> None:
        self.ready(phase)
        self.grants.get()
        clock.sleep(self.late_s)
        self.begin_ns = self.clock_ns()
        self.progress(phase)
        while self.clock_ns() < self.ends_ns:
            clock.sleep(min(0.1, (self.ends_ns - self.clock_ns()) / 1e9))

    def record(self, phase: str, of: Share) -> Record:
        return super().record(phase, of).model_copy(update={"parent_window_ns": (self.begin_ns, self.ends_ns)})


def test_all_hosts_end_at_one_moment_and_the_window_is_as_long_as_planned_from_the_first_that_began(
    tmp_path: Path,
) -> None:
    with led(tmp_path, left=Timed(5, 0.5), right=Timed(-900, 7)) as cluster:
        records, connections = measured(cluster, mixed("left", "right"))
    windows = {name: each.parent_window_ns for name, each in records.items()}
    (left, right) = (windows["left/npu:a low"], windows["right/npu:a low"])
    assert left and right
    assert (right[0] - left[0], left[1] - left[0], right[1]) == (6.5 * SECOND, 60 * SECOND, left[1])
    assert [each.unled_ns for each in connections] == [0, 0]


def test_a_leading_process_that_stood_still_is_a_fact_of_the_phase(tmp_path: Path) -> None:
    def stands_still(event: PhaseEvent, waited: list[int] = []) -> None:  # noqa: B006
        if isinstance(event, MixSnapshot) and event.elapsed_ns > 10 * SECOND and not waited:
            waited.append(1)
            clock.sleep(40)

    with led(tmp_path, left=Timed(5, 0), right=Timed(0, 0)) as cluster:
        _, connections = measured(cluster, mixed("left", "right"), stands_still)
    assert [round(each.unled_ns / SECOND) for each in connections] == [34, 34]


class Silent(StandIn):
    """From the measurement on nothing is heard of it, though its connection stands."""

    silent = False

    def measure(self, phase: Phase) -> PhaseMeasured | None:
        self.silent = True
        return None

    def ping(self, *, sent_ns: int) -> object:
        return Later() if self.silent else super().ping(sent_ns=sent_ns)


def test_a_silent_host_is_given_up(tmp_path: Path) -> None:
    with led(tmp_path, left=Silent(), right=StandIn()) as cluster:
        records, _ = measured(cluster, mixed("left", "right"))
        assert set(failures(records).values()) == {"the host left did not measure it: nothing was heard of it for 30 s"}
        assert failures(records).keys() == {"left/npu:a low", "left/npu:a high"}


def test_no_host_is_given_up_because_the_leading_process_did_something_else(tmp_path: Path) -> None:
    """Such as to audit for minutes, or to stand still as a whole."""
    with led(tmp_path, left=StandIn(), right=StandIn()) as cluster:
        measured(cluster, solo("solo1", "left/npu:a"))
        clock.sleep(10 * agents.SILENT_S)
        assert cluster.pool_bytes(()).keys() == {"left/npu:a", "right/npu:a"}


BROKE = "its agent broke the protocol: "
UNUSABLE = "the files or records of its agent cannot be used: "
NO_RECORD = PhaseMeasured(records=(), sha256={}, sent_bytes=0, received_bytes=0)


def other(
    host: StandIn, phase: Phase, of: Mapping[str, object] = {}, fields: Mapping[str, object] = {}
) -> PhaseMeasured:
    """Sends a record of another share than the requested one, or with other fields."""
    record = host.record(phase.name, phase.shares[0].model_copy(update=of))
    return host.sent([record.model_copy(update=fields)])


ODD: dict[str, tuple[Callable[[StandIn, Phase], PhaseMeasured | None], str]] = {
    "a line without an end": (
        lambda host, phase: host.write(b"x" * 100_000),
        f"{BROKE}more than 65536 bytes without an end of line",
    ),
    "a line that is no message": (lambda host, phase: host.write(b"hello\n"), BROKE),
    "a file of another folder": (
        lambda host, phase: host.file("../../out/raw/solo1.npz", b"x"),
        f"{BROKE}no file is called '../../out/raw/solo1.npz'",
    ),
    "a part that is no base64": (
        lambda host, phase: host.call(LeaderCalls.file_part, name="solo1.npz", base64="#é"),
        BROKE,
    ),
    "timestamps that have another hash": (
        lambda host, phase: host.measured(phase).model_copy(update={"sha256": {"solo1.npz": "0" * 64}}),
        UNUSABLE,
    ),
    "another share": (lambda host, phase: other(host, phase, {"key": "solo9"}), f"{UNUSABLE}solo9 was not requested"),
    "another phase": (
        lambda host, phase: other(host, phase, fields={"phase": "solo9"}),
        f"{UNUSABLE}solo1 was not requested",
    ),
    "nothing": (lambda host, phase: NO_RECORD, f"{UNUSABLE}solo1 is missing"),
    "no record": (lambda host, phase: NO_RECORD.model_copy(update={"records": ({"key": 1},)}), UNUSABLE),
    "a stage of another": (
        lambda host, phase: host.call(LeaderCalls.stage, key="solo9", name="measuring"),
        f"{BROKE}a stage of a share that it does not measure",
    ),
    "that it cannot": (
        lambda host, phase: refuse("OSError: No space left on device", "free some"),
        "OSError: No space left on device; free some",
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_message_that_no_agent_sends_costs_its_host_and_the_record_says_so(
    tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LONGEST_BYTES", 1 << 16)
    does, reason = ODD[odd]

    class Odd(StandIn):
        def measure(self, phase: Phase) -> PhaseMeasured | None:
            return does(self, phase)

    with led(tmp_path, left=Odd(), right=StandIn()) as cluster:
        records, _ = measured(cluster, solo("solo1", "left/npu:a"))
        (message,) = failures(records).values()
        assert message.startswith(f"the host left did not measure it: {reason}"), message
        assert not message.isspace() and message.isprintable()
        records, _ = measured(cluster, solo("solo2", "right/npu:a"))
        assert failures(records) == {}
    assert not [each for each in (tmp_path / "out").rglob("*") if each.is_file()], "nothing of it is kept"


def test_a_host_that_ran_out_of_disk_goes_on_when_it_can(tmp_path: Path) -> None:
    class Full(StandIn):
        tries = itertools.count()

        def measure(self, phase: Phase) -> PhaseMeasured | None:
            if next(self.tries) == 0:
                self.file("solo1.npz", b"the part that there was room for")
                refuse("OSError: No space left on device")
            return super().measure(phase)

    with led(tmp_path, left=Full()) as cluster:
        records, _ = measured(cluster, solo("solo1", "left/npu:a"))
        assert [*failures(records).values()] == ["the host left did not measure it: OSError: No space left on device"]
        records, _ = measured(cluster, solo("solo1", "left/npu:a"))
        assert failures(records) == {}


ODD_IN_THE_MIX: dict[str, Callable[[StandIn, Phase], Any]] = {
    "rates that were not planned": lambda host, phase: host.ready(
        phase, rates=(rate("low", "npu:z"),), quanta={("low", "npu:z"): 1}, concurrency={"npu:z": 1}
    ),
    "rates without quanta": lambda host, phase: host.ready(phase, quanta={}),
    "no concurrency": lambda host, phase: host.ready(phase, concurrency={}),
    "sums of another suite": lambda host, phase: host.progress(phase, finished={"mid": 1.0}),
    "work of another device": lambda host, phase: host.progress(phase, unfinished_s={"npu:z": 1.0}),
    "a pace of another device": lambda host, phase: host.progress(phase, paces={("low", "npu:z"): 1.0}),
    "a pace of no pair": lambda host, phase: host.write(
        b'{"call": "mix_progress", "arguments": {"tally": '
        b'{"finished": {}, "handed_out": {}, "paces": [["low"]], "unfinished_s": {}}}}\n'
    ),
}


@pytest.mark.parametrize("odd", ODD_IN_THE_MIX)
def test_sums_of_what_a_host_does_not_do_cost_that_host(tmp_path: Path, odd: str) -> None:
    class Odd(StandIn):
        def mix(self, phase: Phase) -> None:
            ODD_IN_THE_MIX[odd](self, phase)
            self.grants.get()  # for ever

    with led(tmp_path, left=Odd(), right=StandIn()) as cluster:
        records, _ = measured(cluster, mixed("left", "right"))
        assert failures(records).keys() == {"left/npu:a low", "left/npu:a high"}
        assert all("its agent broke the protocol" in each for each in failures(records).values())


def test_a_host_without_a_task_can_say_what_it_likes(tmp_path: Path) -> None:
    class Talking(StandIn):
        def ping(self, *, sent_ns: int) -> object:
            self.write(calls.write_failed(calls.Failed(failure=Failure(kind="raised", message="no call"))))
            self.write(calls.write_reply(AgentCalls.measure_phase, NO_RECORD))
            return super().ping(sent_ns=sent_ns)

    with led(tmp_path, left=StandIn(), right=Talking()) as cluster:
        records, _ = measured(cluster, solo("solo1", "left/npu:a"))
        assert failures(records) == {}


class Metered(StandIn):
    """It reads a meter. phase: the phase of its samples; empty: the requested one."""

    def __init__(self, phase: str = "") -> None:
        super().__init__()
        self.phase = phase

    def read_meters(self, *, phase: str) -> messages.MeterSamples:
        now_ns = self.clock_ns()
        stamps = np.array([now_ns - 50_000_000, now_ns - 10_000_000])
        metering = Metering(
            phase=self.phase or phase,
            begin_ns=now_ns - 60_000_000,
            end_ns=now_ns,
            cpu_ns=1,
            samples={"rapl:0": Samples(stamps, stamps + 1, np.array([1.0, 2.0]))},
        )
        made = self.folder / "metered"
        (made / "raw").mkdir(parents=True)
        store.Store(made).meter(metering)
        for name in (sha256 := store.sums(made)):
            self.file(name, (made / "raw" / name).read_bytes())
        return messages.MeterSamples(metering=metering.model_dump(mode="json"), sha256=sha256)


def test_hosts_measure_side_by_side_and_neighbours_in_turn(tmp_path: Path) -> None:
    met = threading.Barrier(2, timeout=30)

    class Meeting(StandIn):
        """It ends its phase when another host is in one."""

        def measure(self, phase: Phase) -> PhaseMeasured | None:
            met.wait()
            return super().measure(phase)

    phases = [solo(f"solo{number}", f"{host}/npu:a") for number, host in enumerate(("left", "left", "beside", "right"))]
    mix = mixed("left", "right")
    with led(tmp_path, left=Meeting(), right=Meeting(), beside=StandIn()) as apart:
        machine = ["left", "beside"]
        cluster = dataclasses.replace(apart, neighbours={"left": machine, "beside": machine, "right": ["right"]})
        rounds = [*cluster.rounds([*phases, mix, mix, phases[0]])]
        numbers = ["".join(phase.name[-1] for phase in each) for each in rounds]
        assert numbers == ["03", "1", "2", "1", "1", "0"]
        facts, *_ = cluster.measure([PhaseRequest(each, 0, None, ()) for each in rounds[0]], lambda event: None)
    assert [(each.phase, each.route.host, each.error) for each in facts.records] == [
        ("solo0", "left", None),
        ("solo3", "right", None),
    ]


@pytest.mark.parametrize("mix", [False, True], ids=["alone", "mix"])
@pytest.mark.parametrize("cancelled", [False, True], ids=["interrupted", "cancelled"])
def test_a_round_that_is_cut_off_keeps_the_phases_that_have_ended(tmp_path: Path, mix: bool, cancelled: bool) -> None:
    """Cancelled: its engine ends all agents, and the leading process hears nothing else."""

    class CutOff(StandIn):
        def measure(self, phase: Phase) -> PhaseMeasured | None:
            if mix:
                self.ready(phase)
                self.grants.get()
            clock.sleep(1)  # the other has ended
            if cancelled:
                left.die("its agent ended")
                self.die("its agent ended")
            self.call(LeaderCalls.stage, key=phase.shares[0].key, name="measuring")
            return None

    def interrupt(event: PhaseEvent) -> None:
        if isinstance(event, StageStarted) and event.share.route.host == "right":
            raise KeyboardInterrupt

    left = StandIn()
    phases = [mixed("left", "right")] if mix else [solo(f"solo-{host}", f"{host}/npu:a") for host in ("left", "right")]
    devices = [device(f"{host}/npu:a") for host in ("left", "right")]
    kept: list[Record] = []
    error = ResultError if cancelled else KeyboardInterrupt
    with led(tmp_path, left=left, right=CutOff()) as cluster, pytest.raises(error) as ended:
        for facts in cluster.measure([PhaseRequest(each, 0, MIX, devices) for each in phases], interrupt):
            kept += facts.records
    assert [(each.key, each.error) for each in kept] == ([] if mix else [("solo-left", None)])
    assert str(ended.value).startswith("no host is left: left: its agent ended") == cancelled


def test_meters_are_read_on_each_host_and_readings_that_are_none_cost_their_host(tmp_path: Path) -> None:
    begin_ns = clock.now_ns()
    with led(tmp_path, left=Metered(), right=Metered(phase="solo9")) as cluster:
        domain = PACKAGE.model_copy(update={"id": "left/rapl:0", "covers": ("left/npu:a",)})
        requests = [PhaseRequest(solo(f"solo{host}", f"{host}/npu:a"), 0.01, None, ()) for host in ("left", "right")]
        _, meters, none = dataclasses.replace(cluster, domains=(domain,)).measure(requests, lambda event: None)
        metering = meters.metering
        assert metering is not None and metering.samples.keys() == {"left/rapl:0"} and none.metering is None
        assert begin_ns - 100_000_000 < metering.samples["left/rapl:0"].before_ns[0] < clock.now_ns()
        assert cluster.hosts.present == ["left"]
        reason = "the samples of its meters cannot be used: the samples of solo9 were not requested"
        assert cluster.hosts["right"].lost == reason


def test_a_mix_that_cannot_be_planned_says_why_and_its_late_messages_do_not_disturb_the_next_phase(
    tmp_path: Path,
) -> None:
    class Lacking(StandIn):
        """It has one suite loaded, and the other nobody has."""

        def measure(self, phase: Phase) -> PhaseMeasured | None:
            if phase.placement is None:
                return super().measure(phase)
            (one,) = (each for each in phase.placement.rates if each.suite == "low")
            self.ready(phase, rates=(one,), quanta={("low", one.device): 1}, concurrency={one.device: 1})
            _, problem = self.grants.get()
            assert problem
            clock.sleep(0.2)
            failure = Failure(kind="no result", message=problem)
            return self.sent(
                [
                    self.record(phase.name, each).model_copy(update={"completions": None, "error": failure})
                    for each in phase.shares
                ]
            )

    with led(tmp_path, left=Lacking(), right=Lacking()) as cluster:
        records, _ = measured(cluster, mixed("left", "right"))
        assert len(failures(records)) == 4
        assert all(each.startswith("no device can run high") for each in failures(records).values())
        records, _ = measured(cluster, solo("solo1", "left/npu:a"))
        assert failures(records) == {}
