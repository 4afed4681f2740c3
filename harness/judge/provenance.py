"""Where figures come from: the result and its machine."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from mixmark.harness.contracts.schema import Result, Tier
from mixmark.harness.judge import hosts
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.verdict import VerdictWord


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The result that figures are of, and its machine."""

    result_id: str
    """The first 16 hexadecimal digits of the SHA-256 of the result. It identifies the result in a database."""
    created_utc: str
    """When the run began."""
    mixmark: str
    """The version of Mixmark that measured."""
    git_commit: str | None
    """The commit of Mixmark's source, if it ran from a checkout."""
    tier: Tier
    preset: str
    verdict: VerdictWord
    """The verdict over the whole result: solid, fair, disturbed, partial, invalid or unfinished."""
    cpu_model: str | None
    cpu_threads: int | None
    """Hardware threads, of all hosts together."""
    memory_bytes: int | None
    """The memory of the machine, or of all hosts."""
    devices: str
    """The models of all devices but the processor, as `8 × Acme Topaz`."""
    operating_system: str | None
    kernel: str


def provenance(judgement: Judgement) -> Provenance:
    result, system = judgement.result, judgement.result.system
    stored = result.model_dump_json().encode("utf-8", "surrogatepass")
    return Provenance(
        result_id=hashlib.sha256(stored).hexdigest()[:16],
        created_utc=result.created_utc,
        mixmark=system.mixmark,
        git_commit=system.git_commit,
        tier=result.tier,
        preset=result.preset,
        verdict=judgement.verdict.word,
        cpu_model=hosts.processors(result),
        cpu_threads=hosts.sum_of(result, "cpu_threads"),
        memory_bytes=hosts.sum_of(result, "memory_bytes"),
        devices=", ".join(models(result)),
        operating_system=system.operating_system,
        kernel=system.kernel,
    )


def models(result: Result) -> tuple[str, ...]:
    """The models of all devices but the host's processor: 2 × Acme Topaz."""
    counted = Counter(device.name or device.kind for device in result.devices if not device.on_host)
    return tuple(f"{count} × {name}" if count > 1 else name for name, count in counted.items())
