"""The host's processor, from /proc/cpuinfo and sysfs."""

from __future__ import annotations

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
CACHES = {"Data": "d", "Instruction": "i", "Unified": ""}


def threads(root: Path = ROOT) -> Sequence[Thread]:
    """Each hardware thread's lines of /proc/cpuinfo."""
    found: list[dict[str, str]] = []
    for row in text(root / "proc/cpuinfo", 1 << 24).splitlines():
        key, _, value = row.partition(":")
        if key.strip() == "processor":
            found.append({})
        if found and key.strip():
            found[-1][key.strip()] = value
    return found


def name(root: Path = ROOT) -> str | None:
    """The processor's model as the kernel names it."""
    seen = threads(root)
    return first(seen, "model name") or first(seen, "Model") or line(root / "proc/device-tree/model")


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
