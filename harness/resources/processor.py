"""The host's processor, from /proc/cpuinfo and sysfs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mixmark.harness.contracts.text import plain
from mixmark.harness.resources import cpus
from mixmark.harness.resources.files import MAX_TEXT, ROOT, integer, line, text

Thread = Mapping[str, str]
"""The lines of /proc/cpuinfo about one hardware thread."""

# Extensions that decide how fast matrices are multiplied; names as in /proc/cpuinfo of x86, Arm and RISC-V.
FLAGS = """
    sse4_2 f16c fma avx avx2 avx_vnni avx_vnni_int8 avx_ne_convert avx512f avx512bw avx512vl avx512_vnni
    avx512_bf16 avx512_fp16 avx10 amx_tile amx_int8 amx_bf16 amx_fp16 asimd asimdhp asimddp fphp i8mm bf16 sve
    sve2 svei8mm svebf16 sme sme2
"""
# The cores of Arm, by implementer and part, as util-linux has them.
ARM = dict(
    re.findall(
        r"(\S+)=(\S+)",
        """
        0x41/0xd03=Cortex-A53 0x41/0xd05=Cortex-A55 0x41/0xd07=Cortex-A57 0x41/0xd08=Cortex-A72 0x41/0xd0b=Cortex-A76
        0x41/0xd0c=Neoverse-N1 0x41/0xd40=Neoverse-V1 0x41/0xd42=Cortex-A78AE 0x41/0xd49=Neoverse-N2
        0x41/0xd4f=Neoverse-V2 0x41/0xd84=Neoverse-V3 0x41/0xd85=Cortex-X925 0x41/0xd87=Cortex-A725
        0x41/0xd8e=Neoverse-N3 0x46/0x001=A64FX 0x48/0xd01=TaiShan-v110 0x51/0x001=Oryon 0xc0/0xac3=Ampere-1
        """,
    )
)
# Lines that name a model: of x86, LoongArch, MIPS, POWER and RISC-V, and of a board.
NAMES = ("model name", "Model Name", "cpu model", "cpu", "uarch", "Model")
CACHES = {"Data": "d", "Instruction": "i", "Unified": ""}


def threads(root: Path = ROOT) -> Sequence[Thread]:
    """Each hardware thread's lines of /proc/cpuinfo. s390x has one such line,
    `processor 0: version = FF, machine = …`."""
    found: list[dict[str, str]] = []
    for row in text(root / "proc/cpuinfo", 1 << 24).splitlines():
        key, _, value = row.partition(":")
        if start := re.fullmatch(r"processor\s*(\d*)", key.strip(), re.ASCII):
            found.append({"processor": start[1] or value} | dict(re.findall(r"(\w+) = (\w+)", value)))
        elif found and key.strip():
            found[-1][key.strip()] = value
    return found


def name(root: Path = ROOT) -> str | None:
    """The processor's model as the kernel names it. None if it does not.

    Of Arm it is the cores and the machine that they are in, since one core is in processors of several makers.
    """
    seen = threads(root)
    board = line(root / "proc/device-tree/model")
    if cores := " + ".join(dict.fromkeys(filter(None, map(_arm, seen)))):
        return ", ".join(
            filter(None, (cores, board or first(seen, "Model") or line(root / "sys/class/dmi/id/sys_vendor")))
        )
    if machine := first(seen, "machine") if "/S390" in text(root / "proc/cpuinfo", 1 << 10) else None:
        return f"IBM machine {machine}"
    found = next(filter(None, (first(seen, key) for key in NAMES)), None)
    marks = [f"{key} {mark}" for key in ("mvendorid", "marchid", "mimpid") if (mark := first(seen, key))]
    return found if found and found != "unknown" else ", ".join(marks) or board


def _arm(thread: Thread) -> str | None:
    """A core's name, variant and revision, such as `Neoverse-N1 r3p1`. None if it is not Arm's."""
    implementer, part, variant, revision = (
        thread.get(f"CPU {key}", "").strip() for key in ("implementer", "part", "variant", "revision")
    )
    core = f"{implementer}/{part}"
    return f"{ARM.get(core, f'Arm {core}')} r{variant.removeprefix('0x')}p{revision}" if implementer else None


def first(seen: Sequence[Thread], key: str) -> str | None:
    """The first thread's value of a line; None if no thread has it."""
    return next((found for each in seen if (found := plain(each.get(key, ""), MAX_TEXT))), None)


def cores(seen: Sequence[Thread], root: Path = ROOT) -> int | None:
    """The number of physical cores; None if the kernel does not report which threads share one."""
    found = {cpus.core_of(int(each["processor"]), root) for each in seen if each["processor"].strip().isdecimal()}
    return len(found) if found and () not in found else None


def flags(seen: Sequence[Thread]) -> tuple[str, ...]:
    """The extensions of FLAGS that every thread has."""
    sets = [set(each.get("flags", each.get("Features", "")).split()) for each in seen]
    return tuple(sorted(set(FLAGS.split()).intersection(*sets))) if sets else ()


def clock_max_mhz(root: Path = ROOT) -> float | None:
    """The highest clock of the first CPU."""
    kilohertz = integer(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    return kilohertz / 1000 if kilohertz else None


def caches(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """The caches of the first CPU: a name such as `L1d`, and a size such as `48K`."""
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (line(index / each) for each in ("level", "type", "size"))
        if level and size:
            yield f"L{level}{CACHES.get(kind or '', '')}", size
