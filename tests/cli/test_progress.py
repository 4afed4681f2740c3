"""What a person sees while a run goes on, on a clock that the test turns."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from bench import waiting
from mixmark.harness.cli.eta import Eta
from mixmark.harness.cli.progress import Progress
from mixmark.harness.contracts import schema
from mixmark.harness.judge.findings import found
from mixmark.harness.measure.benchmark import Audited, AuditStarted, Planned, Recorded
from mixmark.harness.measure.executor import PhaseStarted, StageStarted
from mixmark.harness.measure.mixed import MixSnapshot
from mixmark.harness.plan import mixes, presets
from mixmark.harness.plan import phases as plan
from tests.golden.sample import but, closed_loop, record, result, system

S = 1_000_000_000
PENDING = schema.Audit(gate=schema.Gate(metric="error", at_most=1.0), finished=1, feeds=(0,))
UNITS = {"llm": "token", "diffusion": "image", "dlrm": "sample", "resnet50": "image", "probe": "kernel"}
FAILED = schema.Failure(kind="crashed", message="the worker was killed by SIGSEGV while loading")
PLACEMENT = schema.Placement.model_construct(objective="throughput", mixes_per_s=0.0133, bound_per_s=0.0133)


def header(precision: schema.Precision = "bf16", pools: str = "h") -> schema.Result:
    """A new run of the four suites on a processor for each memory pool, and of their mix."""
    workloads = [plan.Workload(name, "1", ("offline",)) for name in UNITS if name != "probe"]
    cpus = tuple(
        schema.Device(id=f"cpu:{at}", kind="cpu", memory_pool=pool, precisions=(precision,))
        for at, pool in enumerate(pools)
    )
    probe, targets = plan.Workload("probe", "1", ("probe",)), [plan.Target(cpu, "torch", {}) for cpu in cpus]
    phases = plan.solo(targets, workloads, "edge", presets.PRESETS["quick"], probe=probe)
    return but(result(finished=False), phases=phases, devices=cpus, mix=mixes.frozen()["edge-1"])


def made(share: schema.Share, phase: str, error: schema.Failure | None = None) -> schema.Record:
    """The record of a share: a failure, or a thousand units a second whose outputs are to be compared."""
    done = None if error else closed_loop([[S // 1000]])
    suite = share.route.suite
    drawn = record(share.key, suite, UNITS[suite], done, scenario=share.scenario, error=error)
    audit = {"audit": PENDING, "unaudited": ""} if share.limits.audits and not error else {}
    return drawn.model_copy(update={"route": share.route, "phase": phase, **audit})


def snapshot(share: float, elapsed_s: float, units: dict[str, float]) -> MixSnapshot:
    """A share of a mix of these units is done, of 0.0133 mixes a second that were planned."""
    done = {suite: share * amount for suite, amount in units.items()}
    running = {"cpu:0": "llm", "npu:a": ""}
    return MixSnapshot(round(elapsed_s * S), share, 0.0133, running, done, units)


class Player:
    """Plays a run to its observer, as `measure.benchmark.Benchmark` does. Each piece of work takes as long as is
    expected, times `slowness`."""

    def __init__(
        self,
        *,
        terminal: bool = False,
        width: int = 80,
        slowness: float = 1.0,
        metered: bool = False,
        of: schema.Result | None = None,
    ) -> None:
        self.header = of or header()
        self.now_s = 0.0
        self.slowness = slowness
        self.out = StringIO()
        self.shown: list[str] = []
        console = Console(file=self.out, width=width, force_terminal=terminal, color_system=None, _environ={})
        self.progress = Progress(self.header, metered, console, lambda: self.now_s)
        self.notify = self.progress.notify

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    def display(self) -> str:
        with self.progress.console.capture() as captured:
            self.progress.console.print(self.progress._render())
        return captured.get()

    def work(self, kind: str, name: str) -> None:
        """Lets a piece of work take its time, and looks at the display."""
        expected_s = self.progress.eta.seconds(kind, name)
        for _ in range(4):
            self.now_s += expected_s * self.slowness / 4
            self.shown.append(self.display())

    def play(self) -> Player:
        self._measure(self.header.phases)
        self._compare([share for phase in self.header.phases for share in phase.shares])
        routes = {share.route.suite: share for phase in self.header.phases for share in phase.shares}
        del routes["probe"]
        update = {"scenario": "mixed", "batch": 1, "limits": presets.PRESETS["quick"].mix}
        shares = [share.model_copy(update={**update, "key": f"mixed.1.{suite}"}) for suite, share in routes.items()]
        mixed = schema.Phase(
            name="mixed.1",
            purpose="mixed",
            tasks=(schema.Task(device="cpu:0", shares=tuple(shares)),),
            placement=PLACEMENT,
        )
        self.notify(Planned([mixed]))
        self._measure([mixed])
        self._compare(shares)
        return self

    def _measure(self, phases: tuple[schema.Phase, ...] | list[schema.Phase]) -> None:
        for phase in phases:
            self.notify(PhaseStarted(phase))
            for share in phase.shares:
                self.notify(StageStarted(share, "measuring"))
            self.work("phase", phase.name)
            if phase.purpose == "mixed" and self.header.mix:
                self.notify(replace(snapshot(0.5, self.now_s, dict(self.header.mix.units)), mixes=0.4))
                self.shown.append(self.display())
            for share in phase.shares:
                self.notify(Recorded(made(share, phase.name)))

    def _compare(self, shares: list[schema.Share]) -> None:
        for share in shares:
            pending = made(share, "")
            self.notify(AuditStarted(pending))
            self.work("audit", share.key)
            audited = PENDING.model_copy(update={"values": (0.0,)})
            self.notify(Audited(pending.model_copy(update={"audit": audited})))


def seconds_left(display: str) -> int | None:
    """The time that the display shows as left."""
    found = re.search(r"(\d+):(\d\d):(\d\d) left", display)
    return int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3]) if found else None


def words(display: str) -> list[str]:
    return [word for word in display.split() if not set(word) & set("━╸╺")]


@pytest.mark.parametrize("slowness", [0.5, 1.0, 3.0])
def test_the_eta_follows_the_speed_of_the_run(slowness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich shows the remaining expected seconds, divided by the expected seconds done per second."""
    player = Player(terminal=True, slowness=slowness)
    seen: list[tuple[float, int | None]] = []
    display = player.display

    def displayed() -> str:
        shown = display()
        seen.append((player.now_s, seconds_left(shown)))
        return shown

    monkeypatch.setattr(player, "display", displayed)
    player.play()
    later = [(at_s, left_s) for at_s, left_s in seen if at_s > 0.3 * player.now_s]
    assert later
    for at_s, left_s in later:
        assert left_s == pytest.approx(player.now_s - at_s, abs=0.2 * player.now_s)


def test_a_step_that_takes_longer_than_expected_says_so_and_all_is_over_at_the_end_only() -> None:
    player = Player(terminal=True)
    player.play()
    assert player.progress._part() == "[100 %]" and not any("100 %" in shown for shown in player.shown)
    assert not any("longer than expected" in shown for shown in player.shown)
    late = Player(terminal=True)
    work = late.work

    def last(kind: str, name: str) -> None:
        late.slowness = 50.0 if (kind, name) == ("audit", "mixed.1.resnet50") else 1.0
        work(kind, name)

    late.work = last  # type: ignore[method-assign]
    late.play()
    for shown in late.shown[-4:]:
        assert "longer than expected" in shown and seconds_left(shown) is None and "[ 99 %]" in shown


def test_a_resumed_run_begins_where_it_stopped() -> None:
    new = Player()
    records = tuple(made(phase.shares[0], phase.name) for phase in new.header.phases[:3])
    resumed = Progress(new.header.model_copy(update={"records": records}))
    assert resumed.eta.done_s == sum(new.progress.eta.seconds("phase", record.phase) for record in records)
    assert resumed.eta.total_s == new.progress.eta.total_s
    assert len(resumed.pending) == 3


def test_the_part_that_is_over_never_falls_when_more_is_planned() -> None:
    player = Player()
    for phase in player.header.phases:
        player.notify(Recorded(made(phase.shares[0], phase.name)))
    part = player.progress._part()
    again = [phase.model_copy(update={"name": f"{phase.name}.again"}) for phase in player.header.phases]
    player.notify(Planned(again))
    assert player.progress.eta.done_s / player.progress.eta.total_s < 0.3 < player.progress.shown
    assert player.progress._part() == part


def test_the_probes_of_the_routes_that_screening_will_choose_are_expected() -> None:
    """Two of 3 s to load, a window of √(1.5 · 10) s, and 2 · 1 s to compare, once the reference is loaded in 1.5 s."""
    solo = header()
    solo = solo.model_copy(update={"preset": "ranked"})
    screened = solo.model_copy(update={"candidates": solo.phases, "phases": ()})
    without = [phase for phase in solo.phases if phase.purpose != "probe"]
    bare = screened.model_copy(update={"candidates": tuple(without)})
    with_probes, lacking = (Eta(each, False).total_s for each in (screened, bare))
    assert with_probes - lacking == pytest.approx(2 * (3 + 15**0.5 + 2 * 1) + 1.5)
    assert with_probes == pytest.approx(Eta(solo, False).total_s), "as if they were planned"


def test_a_mix_in_fp32_is_expected_to_take_the_longest_window() -> None:
    fast, slow = header(), header("fp32")
    assert slow.mix and fast.mix
    longer_s = Eta(slow, False).total_s - Eta(fast, False).total_s
    assert longer_s == pytest.approx(600 - (60 * 600) ** 0.5)


@pytest.mark.parametrize(("pools", "loads_s"), [("hg", 4 * (12 + 3)), ("hh", 8 * 12), ("hhg", 8 * 12)])
def test_devices_are_expected_to_load_side_by_side_and_a_reference_once(pools: str, loads_s: float) -> None:
    """Four suites of 12 + 3 s to load and to warm up; the loads of one memory one after the other; √(60 · 600) s; and
    6 s for each reference, 4 s for each device to compare."""
    run = header(pools=pools)
    mix_s = Eta(run, False).total_s - Eta(but(run, mix=None), False).total_s
    assert mix_s == pytest.approx(loads_s + 36000**0.5 + 4 * (6 + 4 * len(pools)))


def test_a_command_is_timed_by_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["waiting", "--help"])
    with pytest.raises(SystemExit, match="0"):
        waiting.main()
    assert capsys.readouterr().out.endswith("s of them in windows: 0.000\n")


def test_a_failed_record_is_not_compared() -> None:
    player = Player()
    phase = player.header.phases[0]
    player.notify(Recorded(made(phase.shares[0], phase.name, FAILED)))
    eta = player.progress.eta
    assert eta.done_s == eta.seconds("phase", phase.name) + eta.seconds("audit", phase.shares[0].key)
    assert not player.progress.pending


def test_a_record_that_could_not_be_compared_does_not_count_as_wrong() -> None:
    player = Player(width=200)
    records = [made(player.header.phases[number].shares[0], player.header.phases[number].name) for number in (1, 2)]
    for each in records:
        player.notify(Recorded(each))
    agreeing = PENDING.model_copy(update={"values": (0.0,)})
    unaudited = records[1].model_copy(update={"unaudited": "the reference is gone"})
    player.notify(Audited(records[0].model_copy(update={"audit": agreeing})))
    player.notify(Audited(unaudited))
    told = "outputs compared with the reference: 1 of 1 agree; the others could not be compared: the reference is gone"
    assert player.lines[-1].endswith(told)
    player.notify(Recorded(records[1]))
    player.notify(Audited(unaudited))
    assert player.lines[-1].endswith("no output could be compared: the reference is gone")
    player.notify(Recorded(records[1]))
    player.notify(Audited(records[1].model_copy(update={"audit": agreeing.model_copy(update={"values": (9.0,)})})))
    assert player.lines[-1].endswith("0 of 1 agree")


def test_the_idle_readings_of_the_meters_are_expected() -> None:
    metered, bare = (Player(metered=each).progress.eta for each in (True, False))
    assert metered.total_s - bare.total_s == pytest.approx(5 * 2 * 5), (
        "four suites and the mix, 5 s before and after each"
    )


def test_the_mix_shows_devices_and_units_of_those_due_and_mixes() -> None:
    player = Player(terminal=True)
    player.notify(snapshot(0.5, 100, {"llm": 50.2, "dlrm": 1000.0}))
    shown = [line.split() for line in player.display().splitlines()]
    assert ["cpu:0", "llm"] in shown and ["npu:a", "idle"] in shown
    assert ["llm", "25", "of", "67", "due", "0.50", "mixes"] in shown, "100 s at 0.0133 mixes a second"


def test_the_work_that_is_in_no_whole_mix_yet_is_told_too() -> None:
    player = Player(width=10_000)
    units = {"llm": 50.0, "dlrm": 1000.0}
    begun = replace(snapshot(0.0, 61, units), units={"dlrm": 1500.0})
    player.notify(PhaseStarted(player.header.phases[0]))
    share = player.header.phases[0].shares[0].model_copy(update={"scenario": "mixed"})
    player.notify(StageStarted(share, "loading"))
    assert player.progress.stage == f"loading {share.route.suite}"
    player.now_s = 61
    player.notify(begun)
    assert player.lines[-1].endswith("work for 0.75 mixes; slowest suite 0.00")


@pytest.mark.parametrize("width", [40, 60, 79, 80, 200])
def test_it_fits_the_terminal_and_breaks_no_word(width: int) -> None:
    narrow, wide = (Player(terminal=True, width=columns) for columns in (width, 10_000))
    for player in (narrow, wide):
        player.play()
    for few, many in zip(narrow.shown, wide.shown, strict=True):
        assert max(map(len, few.splitlines())) <= width
        assert sorted(words(few)) == sorted(words(many)), "a cell of a table may take two lines"
    assert max(map(len, narrow.lines)) <= width
    assert narrow.out.getvalue().split() == wide.out.getvalue().split()


LINES = """\
[  1 %] probe on cpu:0 by torch in bf16: hardware limits measured
[ 10 %] llm on cpu:0 by torch in bf16: 1,000 tok/s
[ 18 %] diffusion on cpu:0 by torch in bf16: 1,000 img/s
[ 27 %] dlrm on cpu:0 by torch in bf16: 1,000 samples/s
[ 36 %] resnet50 on cpu:0 by torch in bf16: 1,000 img/s
[ 37 %] probe on cpu:0 by torch in bf16: hardware limits measured
[ 46 %] outputs compared with the reference: 6 of 6 agree
[ 46 %] about 47.9 mixes per hour expected by these rates; now measured
[ 92 %] the mix, on all devices: work for 0.50 mixes; slowest suite 0.40
[ 92 %] in the mix, llm on cpu:0 by torch in bf16: 1,000 tok/s
[ 92 %] in the mix, diffusion on cpu:0 by torch in bf16: 1,000 img/s
[ 92 %] in the mix, dlrm on cpu:0 by torch in bf16: 1,000 samples/s
[ 92 %] in the mix, resnet50 on cpu:0 by torch in bf16: 1,000 img/s
[100 %] outputs compared with the reference: 4 of 4 agree
""".splitlines()


def test_the_figure_of_a_screening_run_does_not_look_like_a_measurement() -> None:
    player = Player()
    phase = player.header.phases[1]
    full = made(phase.shares[0], phase.name)
    for measured in (full, full.model_copy(update={"screening": True})):
        player.notify(Recorded(measured))
    assert [line.rpartition(": ")[2] for line in player.lines] == ["1,000 tok/s", "about 1,000 tok/s"]


def test_a_repeated_mix_is_told_in_one_line() -> None:
    player = Player()
    player.notify(Planned((), ("mix1", found("no_foreign_load.much", used_pct=12, machine="the machine", share=()))))
    [line] = " ".join(player.lines).split("[  0 %] ")[1:]
    words = "mix1 was disturbed, so the mix is run once more: other programs used up to 12 % of the machine"
    assert " ".join(line.split()) == words


def test_names_that_a_plugin_chose_move_no_cursor() -> None:
    player = Player(width=200)
    phase = player.header.phases[0]
    share = phase.shares[0]
    named = share.model_copy(update={"route": share.route.model_copy(update={"adapter": "acme\x1b[2J\x1b]0;x\x07"})})
    task = schema.Task(device=named.route.device, shares=(named,))
    player.notify(PhaseStarted(phase.model_copy(update={"tasks": (task,)})))
    player.notify(StageStarted(named, "loading \x9b5A"))
    failure = schema.Failure(kind="crashed", message="it said \x1b[31mno\r\ntwice")
    player.notify(Recorded(made(named, phase.name, failure)))
    shown = player.display() + player.out.getvalue()
    assert "\x1b" not in shown and "\x9b" not in shown and "\r" not in shown
    assert "[  2 %] probe on cpu:0 by acme in bf16: crashed: it said no twice" in player.out.getvalue()


@pytest.mark.parametrize(
    ("environment", "terminal"), [({"TERM": "dumb"}, True), ({}, False)], ids=["dumb terminal", "file"]
)
def test_where_no_cursor_moves_there_are_only_lines_and_more_if_a_phase_is_long(
    environment: dict[str, str], terminal: bool
) -> None:
    player = Player()
    player.progress.console = Console(file=player.out, width=80, force_terminal=terminal, _environ=environment)
    with player.progress:  # which would start a thread
        player.play()
    assert player.lines == ["mixmark: this run takes about 9 minutes, longer on a slow or busy machine", *LINES]
    assert max(map(len, player.lines)) <= 80


def test_hosts_that_measure_side_by_side_take_the_time_of_one() -> None:
    one = header()
    two = one.model_copy(update={"hosts": (schema.Hosts(names=("a", "b"), system=system()),)})
    eta = Eta(one, False)
    alone_s = sum(eta.seconds("phase", phase.name) for phase in one.phases)
    assert eta.total_s - Eta(two, False).total_s == pytest.approx(alone_s / 2)
