from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mixmark.harness.contracts.schema import AcceleratorConditions, Conditions
from mixmark.harness.machine.accelerators import Accelerators
from mixmark.harness.machine.counters import TICK_NS, MachineCounters, between

SECOND = 1_000_000_000
WORKER, CHILD = 700, 701
METER, HOG, LEFT = 800, 801, 802


class Clock:
    """A second passes with each reading."""

    def __init__(self, step_ns: int = SECOND) -> None:
        self.now_ns, self.step_ns = 5 * SECOND, step_ns

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def process(
    pid: int, ticks: tuple[int, int, int, int], faults: int = 0, switches: int = 0, child: str = ""
) -> dict[str, str]:
    """One thread. ticks: user, system, and the user and system ticks of children that were waited for."""
    fields = f"S 1 1 1 0 -1 0 10 0 {faults} 0 {' '.join(map(str, ticks))} 20 0 1 0"
    task = f"proc/{pid}/task/{pid}"
    return {
        f"proc/{pid}/stat": f"{pid} (a ) b) {fields}\n",
        f"{task}/children": child,
        f"{task}/status": f"Name:\ta\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t{switches}\n",
    }


def counted(cpu0: int = 0, cpu1: int = 0, steal: int = 0) -> str:
    """/proc/stat of two CPUs with so many ticks of user time."""
    rows = [("cpu ", cpu0 + cpu1, steal), ("cpu0", cpu0, steal), ("cpu1", cpu1, 0)]
    return "".join(f"{name} {user} 0 0 0 0 0 0 {stolen} 0 0\n" for name, user, stolen in rows) + "intr 1\n"


def quiet(root: Path) -> Path:
    """A machine on which nothing happened yet."""
    throttle = "sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
    clock = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
    write(
        root,
        {
            "proc/stat": counted(),
            "proc/vmstat": "pgmajfault 5\npswpin 10\npswpout 20\n",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 total=7\n",
            "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull avg10=0.00 total=7\n",
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/cpu.stat": "usage_usec 1\nnr_throttled 3\nthrottled_usec 40\n",
            "sys/class/hwmon/hwmon0/name": "nvme\n",
            "sys/class/hwmon/hwmon0/temp1_input": "80000\n",
            "sys/class/hwmon/hwmon1/name": "coretemp\n",
            "sys/class/hwmon/hwmon1/temp1_input": "61500\n",
            **{throttle.format(cpu): "2\n" for cpu in (0, 1)},
            **{clock.format(cpu): f"{mhz}000\n" for cpu, mhz in ((0, 4000), (1, 1000))},
            **process(os.getpid(), (0, 0, 0, 0)),
            **process(WORKER, (0, 0, 0, 0), child=f"{CHILD} "),
            **process(CHILD, (0, 0, 0, 0)),
        },
    )
    return root


def block(root: Path, change: dict[str, str], wall: Callable[[], int] | None = None) -> Conditions:
    machine = MachineCounters([WORKER], root, Clock(), wall or Clock())
    before = machine.read()
    write(root, change)
    return between(before, machine.read())


def test_a_block_is_what_the_counters_rose_by(tmp_path: Path) -> None:
    found = block(
        quiet(tmp_path),
        {
            "proc/stat": counted(cpu0=90, cpu1=30, steal=4),
            "proc/vmstat": "pgmajfault 5\npswpin 13\npswpout 25\n",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=350\n",
            "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=160\n",
            "sys/fs/cgroup/job/cpu.stat": "nr_throttled 5\nthrottled_usec 90\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "9\n",
            **process(WORKER, (40, 5, 1, 1), faults=6, switches=11, child=f"{CHILD} "),
            **process(CHILD, (20, 10, 0, 0), faults=1, switches=2),
            **process(os.getpid(), (2, 1, 500, 500)),
        },
    )
    assert found == Conditions(
        begin_ns=6 * SECOND,
        end_ns=7 * SECOND,
        cpus=2,
        busy_ns=120 * TICK_NS,
        own_ns=(47 + 30 + 3) * TICK_NS,  # the harness without its children
        plugins_ns=0,
        stolen_ns=4 * TICK_NS,
        throttled_periods=2,
        throttled_ns=50_000,
        cpu_stall_ns=250_000,
        memory_stall_ns=60_000,
        involuntary_switches=13,
        major_faults=7,
        swapped_in_pages=3,
        swapped_out_pages=5,
        clock_mean_mhz=(4000 * 90 + 1000 * 30) / 120,
        clock_min_mhz=4000,  # the other was not busy for most of the time
        thermal_throttles=7,
        temperature_c=61.5,  # the disk is hotter, and does not matter
        clock_step_ns=0,
    )


def of_plugins(meter: int, hog: int, left: int) -> dict[str, str]:
    """The harness started a worker and a meter, whose child has these ticks, and adopted what the meter left behind."""
    return {
        **process(os.getpid(), (0, 0, 0, 0), child=f"{WORKER} {METER} {LEFT} "),
        **process(METER, (meter, 0, 0, 0), faults=9, switches=9, child=f"{HOG} "),
        **process(HOG, (hog, 0, 0, 0)),
        **process(LEFT, (left, 0, 0, 0)),
    }


def test_what_plugins_start_is_counted_apart_and_is_foreign_load(tmp_path: Path) -> None:
    """The machine was busy for 90 ticks: a worker had 40 of them, and a meter with what it started 46."""
    write(quiet(tmp_path), of_plugins(100, 0, 100))
    found = block(
        tmp_path,
        {
            "proc/stat": counted(cpu0=90),
            **of_plugins(101, 40, 105),
            **process(WORKER, (30, 0, 0, 0), faults=1, switches=1, child=f"{CHILD} "),
            **process(CHILD, (10, 0, 0, 0)),
        },
    )
    assert (found.own_ns, found.plugins_ns) == (40 * TICK_NS, 46 * TICK_NS)
    assert found.foreign_ns == 50 * TICK_NS
    assert (found.major_faults, found.involuntary_switches) == (1, 1), "only a worker's"


def test_a_plugin_that_computes_on_an_accelerator_is_foreign_there(tmp_path: Path) -> None:
    class Lists(Accelerators):
        def read(self, ours: set[int], proc: Path) -> tuple[AcceleratorConditions, ...]:
            foreign = sorted({os.getpid(), WORKER, CHILD, METER, HOG} - ours)
            return (AcceleratorConditions(id="gpu:0", foreign_pids=tuple(foreign)),)

    write(quiet(tmp_path), of_plugins(0, 0, 0))
    [state] = MachineCounters([WORKER], tmp_path, Clock(), accelerators=Lists({})).read().accelerators
    assert state.foreign_pids == (METER, HOG)


KDAMOND = 77


def kernel_threads(*ticks: int, flags: int = 0x00200040) -> dict[str, str]:
    """Process 2 and its children, which have used so many ticks of system time."""
    pids = range(KDAMOND, KDAMOND + len(ticks))
    own = {2: 0, **dict(zip(pids, ticks, strict=True))}
    stats = {f"proc/{pid}/stat": f"{pid} (k) S 2 0 0 0 -1 {flags} 0 0 0 0 0 {used} 0 0\n" for pid, used in own.items()}
    return {"proc/2/task/2/children": " ".join(map(str, pids)) + " ", **stats}


def test_kernel_threads_are_no_other_programs(tmp_path: Path) -> None:
    """One worked before, and one is new."""
    write(quiet(tmp_path), kernel_threads(50))
    found = block(
        tmp_path, {"proc/stat": counted(cpu0=90), **process(WORKER, (60, 0, 0, 0), child=""), **kernel_threads(70, 8)}
    )
    assert found.kernel_ns == (20 + 8) * TICK_NS
    assert found.foreign_ns == (90 - 60 - 28) * TICK_NS


def test_in_a_container_the_second_process_is_a_program(tmp_path: Path) -> None:
    write(quiet(tmp_path), kernel_threads(0, flags=0x00400040))
    found = block(tmp_path, {"proc/stat": counted(cpu0=90), **kernel_threads(70, flags=0x00400040)})
    assert (found.kernel_ns, found.foreign_ns) == (None, 90 * TICK_NS)


def test_what_others_do_on_cpus_that_a_run_may_not_use_is_not_counted(tmp_path: Path) -> None:
    write(quiet(tmp_path), kernel_threads(0))
    machine = MachineCounters([WORKER], tmp_path, Clock(), usable={0})
    before = machine.read()
    write(tmp_path, {"proc/stat": counted(cpu0=30, cpu1=90, steal=5), **kernel_threads(90)})
    block = between(before, machine.read())
    assert (block.cpus, block.busy_ns, block.stolen_ns) == (1, 30 * TICK_NS, 5 * TICK_NS)
    assert block.kernel_ns is None, "a kernel thread's time is of all CPUs"


@pytest.mark.parametrize("usable", [{0, 1, 2}, {24}])
def test_rows_that_are_not_of_the_cpus_of_this_process_are_no_time(tmp_path: Path, usable: set[int]) -> None:
    """lxcfs numbers the CPUs of a container from 0."""
    machine = MachineCounters([WORKER], quiet(tmp_path), Clock(), usable=usable)
    found = between(machine.read(), machine.read())
    assert (found.cpus, found.busy_ns, found.stolen_ns) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "unknown"),
    [
        ({"proc/stat": counted(90, 90, steal=832_457_433)}, "stolen_ns"),
        ({"proc/stat": counted(90, 90, steal=800)}, "stolen_ns"),
        ({"proc/stat": counted(10**6, 90)}, "busy_ns"),
        (process(WORKER, (90, 2**31, 0, 0)), "own_ns"),
        ({"proc/pressure/memory": f"some avg10=0.00 total={2**50}\n"}, "memory_stall_ns"),
        ({"proc/stat": counted(105, 104, steal=104)}, ""),
    ],
)
def test_no_time_rises_by_more_than_that_of_all_cpus(tmp_path: Path, change: dict[str, str], unknown: str) -> None:
    found = block(quiet(tmp_path), change).model_dump()
    times = ("busy_ns", "stolen_ns", "own_ns", "cpu_stall_ns", "memory_stall_ns")
    assert [name for name in times if found[name] is None] == unknown.split()


def test_a_counter_that_goes_backwards_tells_nothing(tmp_path: Path) -> None:
    before = {"proc/stat": counted(cpu0=90, steal=9), **process(WORKER, (9, 0, 0, 0), faults=9, switches=9)}
    root = quiet(tmp_path)
    write(root, before)
    found = block(
        root,
        {
            "proc/stat": counted(cpu0=80, steal=8),
            "proc/vmstat": "pswpin 9\npswpout 20\n",
            "sys/fs/cgroup/job/cpu.stat": "nr_throttled 2\nthrottled_usec 39\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "0\n",
            **process(WORKER, (8, 0, 0, 0), faults=8, switches=8),
        },
    )
    unknown = """
        busy_ns own_ns stolen_ns throttled_periods throttled_ns involuntary_switches major_faults swapped_in_pages
        thermal_throttles clock_mean_mhz
    """
    assert {getattr(found, name) for name in unknown.split()} == {None}
    assert (found.swapped_out_pages, found.memory_stall_ns) == (0, 0)  # these stood still, and that is known


def test_while_cpus_come_and_go_their_time_is_unknown(tmp_path: Path) -> None:
    one = counted(cpu0=90).replace("cpu1 0", "cpu3 0")
    found = block(quiet(tmp_path), {"proc/stat": one})
    assert (found.busy_ns, found.stolen_ns, found.own_ns) == (None, None, 0)


def test_version_1_of_cgroups_counts_in_nanoseconds(tmp_path: Path) -> None:
    write(quiet(tmp_path), {"proc/self/cgroup": "4:cpu,cpuacct:/\n"})
    write(tmp_path, {"sys/fs/cgroup/cpu/cpu.stat": "nr_periods 9\nnr_throttled 1\nthrottled_time 5\n"})
    found = block(tmp_path, {"sys/fs/cgroup/cpu/cpu.stat": "nr_periods 9\nnr_throttled 2\nthrottled_time 105\n"})
    assert (found.throttled_periods, found.throttled_ns) == (1, 100)


def test_a_machine_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    found = block(tmp_path, {})
    assert found == Conditions(begin_ns=6 * SECOND, end_ns=7 * SECOND, clock_step_ns=0)


def test_without_lists_of_children_our_own_time_is_unknown(tmp_path: Path) -> None:
    (quiet(tmp_path) / f"proc/{WORKER}/task/{WORKER}/children").unlink()
    found = block(tmp_path, {})
    assert (found.own_ns, found.plugins_ns) == (None, None)
    assert (found.major_faults, found.involuntary_switches) == (None, None)
    assert found.busy_ns == 0


def test_a_wall_clock_that_is_set_shows(tmp_path: Path) -> None:
    assert block(quiet(tmp_path), {}, wall=Clock(-3 * SECOND)).clock_step_ns == -4 * SECOND


def test_clocks_are_in_cpuinfo_where_no_governor_is(tmp_path: Path) -> None:
    cpus = (f"processor\t: {cpu}\nmodel name\t: Acme\ncpu MHz\t\t: {3 - cpu}000.5\n\n" for cpu in (0, 1))
    write(tmp_path, {"proc/stat": counted(), "proc/cpuinfo": "".join(cpus)})
    found = block(tmp_path, {"proc/stat": counted(cpu0=80, cpu1=80)})
    assert (found.clock_mean_mhz, found.clock_min_mhz) == (2500.5, 2000.5)
