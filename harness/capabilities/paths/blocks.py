"""What a report shows of the paths between memories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mixmark.harness.capabilities.paths.facts import PathRecord
from mixmark.harness.capabilities.paths.figures import PathFigures
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Found, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.reporters import figures
from mixmark.reporters.document import Block, Heading, Paragraph, Table
from mixmark.reporters.experiments import Section
from mixmark.reporters.figures import UNKNOWN

ABOUT = (
    "Every copy is of random bytes (8 bits of entropy a byte), and other ones for each copy of a call, into a "
    "poisoned destination that was compared whole. A copied byte counts once. The latency is of the two smallest "
    "sizes, the bandwidth of the sizes that reach memory; a copy below four times the last cache is of cache. Within "
    "the host the latency is that of a call of numpy from Python. Joules per byte are the machine's: the slope over "
    "windows in which copies took different parts of the time."
)
ENDS = ("from", "to", "path", "host memory")


class PathsSection(Section):
    def said(self, found: Found) -> str:
        record = PathRecord.model_validate(found.facts)
        wrong = record.fault and f"a wrong copy ({record.fault.kind})"
        return f"path {record.path.id}: {record.failure.message if record.failure else wrong or 'measured'}"

    def table(self, judged: Assessment, found: Sequence[PathFigures]) -> Table:
        return table(found)

    def section(self, judged: Assessment, found: Sequence[PathFigures]) -> Iterator[Block]:
        return in_full(judged.result, found)


def table(paths: Sequence[PathFigures]) -> Table:
    """Each path with its latency and bandwidth."""
    rows = [(*_ends(each), each.reason or _time(each.latency_s), _rate(each.bytes_per_s)) for each in paths]
    header = (*ENDS, "latency", "bandwidth")
    return Table("Paths between memories", header, rows, len(header))


def in_full(result: Result, paths: Sequence[PathFigures]) -> Iterator[Block]:
    """The copies of each size, and their joules."""
    yield Heading("Paths between memories", "paths")
    rows = [
        (
            *_ends(found),
            _copied(of_size.size_bytes),
            of_size.memory or UNKNOWN,
            _time(of_size.seconds),
            figures.prefixed(of_size.bytes_per_s, "B/s"),
        )
        for found in paths
        for of_size in found.sizes
    ]
    yield Table("", (*ENDS, "copy", "of", "time", "rate"), rows, len(ENDS))
    yield Paragraph(ABOUT, style="quiet")
    yield _energy(result, paths)


def _energy(result: Result, paths: Sequence[PathFigures]) -> Table:
    """The joules of a byte of each path whose copies were metered."""
    rows: list[tuple[str, ...]] = []
    for found in paths:
        if energy := found.energy:
            per_gb = _written(energy.joules_per_byte, lambda value: figures.prefixed(value * 1e9, "J"))
            rows.append((*_ends(found), energy.boundary, ", ".join(energy.domains), per_gb))
        elif result.domains and found.energy_reason:
            rows.append((*_ends(found), UNKNOWN, UNKNOWN, found.energy_reason))
    return Table("Energy of copies", (*ENDS, "boundary", "meters", "per GB"), rows, len(ENDS) + 2)


def _ends(found: PathFigures) -> tuple[str, str, str, str]:
    path = found.path
    own = ", as its plugin says" if found.own_code else ""
    return path.source, path.destination, f"{path.id}{own}", path.host_pages or UNKNOWN


def _copied(size_bytes: int) -> str:
    """4 KiB, 256 MiB: a power of two, as on the charts."""
    mib = size_bytes >= 1 << 20
    return f"{figures.bare(size_bytes / (1 << 20 if mib else 1 << 10))} {'MiB' if mib else 'KiB'}"


def _time(seconds: Estimate | None) -> str:
    return _written(seconds, lambda value: figures.duration(value * 1e9))


def _rate(bytes_per_s: Estimate | None) -> str:
    return _written(bytes_per_s, lambda value: figures.prefixed(value, "B/s"))


def _written(found: Estimate | None, words: Callable[[float], str]) -> str:
    """A figure with its interval, on one line."""
    if found is None:
        return UNKNOWN
    known = found.low is not None and found.high is not None
    return words(found.estimate) + (f" ({' to '.join(map(words, found.ends))})" if known else "")
