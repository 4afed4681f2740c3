"""The names of processors, by what kernels write of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from mixmark.harness.resources import processor
from tests.machine.test_counters import write


def arm(*cores: str) -> str:
    """/proc/cpuinfo with these cores: implementer, part, variant and revision."""
    named = [zip(("implementer", "part", "variant", "revision"), core.split(), strict=True) for core in cores]
    texts = ["".join(f"CPU {key}\t: {value}\n" for key, value in core) for core in named]
    return "".join(f"processor\t: {at}\nFeatures\t: asimd\n{text}\n" for at, text in enumerate(texts))


N1 = arm("0x41 0xd0c 0x3 1", "0x41 0xd0c 0x3 1")
PROCESSORS: Mapping[str, tuple[dict[str, str], str | None, int]] = {
    "Graviton2": ({"cpuinfo": N1, "vendor": "Amazon EC2\n"}, "Neoverse-N1 r3p1, Amazon EC2", 2),
    "Altra": ({"cpuinfo": N1, "vendor": "GIGABYTE\n"}, "Neoverse-N1 r3p1, GIGABYTE", 2),
    "Graviton4": ({"cpuinfo": arm("0x41 0xd4f 0x0 1")}, "Neoverse-V2 r0p1", 1),
    "a core of no table": ({"cpuinfo": arm("0x70 0x663 0x1 3")}, "Arm 0x70/0x663 r1p3", 1),
    "two kinds": ({"cpuinfo": arm("0x41 0xd05 0x1 0", "0x41 0xd0b 0x3 0")}, "Cortex-A55 r1p0 + Cortex-A76 r3p0", 2),
    "32 bits": (
        {
            "cpuinfo": "processor\t: 0\nmodel name\t: ARMv7 Processor rev 3 (v7l)\nCPU implementer\t: 0x41\n"
            "CPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n"
        },
        "Cortex-A72 r0p3, Raspberry Pi 4 Model B Rev 1.4",
        1,
    ),
    "POWER9": (
        {"cpuinfo": "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n\nmodel\t: 8335-GTH\nmachine\t: PowerNV\n"},
        "POWER9, altivec supported",
        1,
    ),
    "z16": (
        {
            "cpuinfo": "vendor_id       : IBM/S390\n# processors    : 2\n"
            "processor 0: version = FF,  identification = 05D0C8,  machine = 3931\n"
            "processor 1: version = FF,  identification = 05D0C8,  machine = 3931\n\ncpu number      : 0\n"
        },
        "IBM machine 3931",
        2,
    ),
    "Loongson": ({"cpuinfo": "processor\t\t: 0\nModel Name\t\t: Loongson-3A6000\n"}, "Loongson-3A6000", 1),
    "RISC-V": ({"cpuinfo": "processor\t: 0\nisa\t: rv64imafdc\nuarch\t: sifive,u74-mc\n"}, "sifive,u74-mc", 1),
    "RISC-V by number": (
        {"cpuinfo": "processor\t: 0\nmvendorid\t: 0x710\nmarchid\t\t: 0x8000000058000001\n"},
        "mvendorid 0x710, marchid 0x8000000058000001",
        1,
    ),
    "a sandbox": ({"cpuinfo": "processor\t: 0\nmodel\t: unknown\nmodel name\t: unknown\n"}, None, 1),
    "nothing": ({}, None, 0),
}


@pytest.mark.parametrize(("files", "name", "threads"), PROCESSORS.values(), ids=PROCESSORS)
def test_a_processor_is_named_by_what_tells_it_from_others(
    tmp_path: Path, files: Mapping[str, str], name: str | None, threads: int
) -> None:
    paths = {"cpuinfo": "proc/cpuinfo", "vendor": "sys/class/dmi/id/sys_vendor"}
    write(tmp_path, {paths[each]: text for each, text in files.items()})
    assert (processor.name(tmp_path), len(processor.threads(tmp_path))) == (name, threads)
    assert processor.cores(processor.threads(tmp_path), tmp_path) is None
