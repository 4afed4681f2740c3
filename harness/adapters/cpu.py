"""The host's processor as a device, equal for all adapters that reach it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import psutil

from mixmark.harness.contracts.errors import UsageError, refuse_options
from mixmark.harness.contracts.schema import HOST_POOL, HOST_PROCESSOR, Device, Precision

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of x86, x86 and Arm; other processors emulate bf16 through fp32


def cpu(precisions: tuple[Precision, ...]) -> Device:
    """All cores as one device. memory_bytes is the installed memory; a container may allow less."""
    return Device(
        id=HOST_PROCESSOR,
        kind="cpu",
        name=_cpuinfo("model name") or platform.processor(),
        memory_pool=HOST_POOL,
        memory_bytes=psutil.virtual_memory().total,
        precisions=precisions,
    )


def cores() -> int:
    """The number of physical cores that this process may use by its affinity (taskset, cpuset)."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, psutil.cpu_count(logical=False) or usable)


def threads_option(adapter: str, options: Mapping[str, str]) -> int | None:
    """The size of the CPU's thread pool, for an adapter whose only option is `threads`; None if it is not given.

    Raises UsageError for any other option, and for a value that is no number of threads.
    """
    refuse_options(f"adapter {adapter}", options, ["threads"])
    given = options.get("threads")
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise UsageError(f"adapter {adapter}: threads is {given!r}", hint="give a number of threads, 1 or more")
    return None if given is None else int(given)


def multiplies_bf16() -> bool:
    """Whether the processor has instructions that multiply bf16; False if it does not say."""
    return not BF16.isdisjoint(flags())


def flags() -> frozenset[str]:
    """The processor's instruction sets, as Linux names them; empty if it does not say."""
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())


def _cpuinfo(field: str) -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    return next(
        (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == field), ""
    )
