"""What a report shows of the paths between memories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mixmark.harness.capabilities.paths.figures import PathFigures
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import Result
from mixmark.reporters import charts, figures
from mixmark.reporters.document import Block, Chart, Heading, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN

ABOUT = (
    "Every copy is of random bytes (8 bits of entropy a byte), and other ones for each copy of a call, into a "
    "poisoned destination that was compared whole. A copied byte counts once. The latency is of the two smallest "
    "sizes, the bandwidth of the sizes that reach memory; a copy below four times the last cache is of cache. Within "
    "the host the latency is that of a call of numpy or of Linux from Python. A path against another: a second "
    "process copied there all the time. Beside the mix: the copies went on all through a run of the mix. Joules per "
    "byte are the machine's: the slope over windows in which copies took different parts of the time."
)
PREDICTED = "Predicted from latency and bandwidth, not measured. Weights and caches have 16 bits a value."
ENDS = ("from", "to", "path", "host memory")


def table(paths: Sequence[PathFigures]) -> Table:
    """Each path with its latency and bandwidth."""
    rows = [(*_ends(each), each.reason or _time(each.latency_s), _rate(each.bytes_per_s)) for each in paths]
    header = (*ENDS, "latency", "bandwidth")
    return Table("Paths between memories", header, rows, len(header))


def in_full(result: Result, paths: Sequence[PathFigures]) -> Iterator[Block]:
    """The copies of each size, and what the suites would move."""
    yield Heading("Paths between memories", "paths")
    rows = [
        (
            *_ends(found),
            _copied(of_size.size_bytes),
            of_size.memory or UNKNOWN,
            _time(of_size.seconds),
            figures.prefixed(of_size.bytes_per_s, "B/s"),
            _time(of_size.call_s),
        )
        for found in paths
        for of_size in found.sizes
    ]
    header = (*ENDS, "copy", "of", "time", "rate", "call alone")
    yield Table("", header, rows, len(ENDS))
    yield Paragraph(ABOUT, style="quiet")
    moves = [
        (
            move.suite,
            move.what,
            figures.prefixed(move.size_bytes, "B"),
            *_ends(found),
            _time(move.predicted_s),
        )
        for found in paths
        for move in found.moves
    ]
    yield Table("What the suites move", ("suite", "what", "bytes", *ENDS, "predicted"), moves, 7)
    yield Paragraph(PREDICTED if moves else "", style="quiet")
    short = {suite.name: suite.unit_names.short for suite in result.suites}
    ceilings = [
        (
            ceiling.suite,
            ceiling.device,
            found.path.id,
            figures.rate(ceiling.units_per_s, short.get(ceiling.suite, "units")),
            figures.rate(ceiling.ceiling_per_s, short.get(ceiling.suite, "units")),
            figures.whole_percent(ceiling.fraction),
        )
        for found in paths
        for ceiling in found.ceilings
    ]
    yield _shared(paths)
    yield _energy(result, paths)
    columns = ("suite", "device", "path", "alone", "path allows", "of it reached")
    yield Table("What the paths would limit", columns, ceilings, 3)
    yield from _charts(paths)


def _shared(paths: Sequence[PathFigures]) -> Table:
    """What is left of two things that run at once."""
    rows = [
        (*_ends(found), _percent(found.left), found.mix_reason or _percent(found.mix_left))
        for found in paths
        if found.opposing or found.beside
    ]
    return Table("What sharing leaves", (*ENDS, "of the path", "of the mix"), rows, len(ENDS))


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


def _charts(paths: Sequence[PathFigures]) -> Iterator[Chart]:
    """The rate of copies by their size, for each path with several sizes."""
    for number, found in enumerate(paths):
        points = [(of_size.size_bytes / 1024, of_size.bytes_per_s / 1e9) for of_size in found.sizes]
        if len(points) > 1:
            title = f"{found.path.source} to {found.path.destination}: {found.path.id}"
            yield Chart(title, charts.over_kib(f"path-{number}", title, points, "GB/s", figures.significant))


def _ends(found: PathFigures) -> tuple[str, str, str, str]:
    path = found.path
    kind = f"converts the {path.converts}" if path.converts else path.route
    shared = f", against {found.opposing}" if found.opposing else ", beside the mix" if found.beside else ""
    own = ", as its plugin says" if found.own_code else ""
    return path.source, path.destination, f"{path.id} ({kind}){shared}{own}", path.host_pages or UNKNOWN


def _copied(size_bytes: int) -> str:
    """4 KiB, 256 MiB: a power of two, as on the charts."""
    mib = size_bytes >= 1 << 20
    return f"{figures.bare(size_bytes / (1 << 20 if mib else 1 << 10))} {'MiB' if mib else 'KiB'}"


def _percent(fraction: Estimate | None) -> str:
    return _written(fraction, figures.percent)


def _time(seconds: Estimate | float | None) -> str:
    return _written(seconds, lambda value: figures.duration(value * 1e9))


def _rate(bytes_per_s: Estimate | None) -> str:
    return _written(bytes_per_s, lambda value: figures.prefixed(value, "B/s"))


def _written(found: Estimate | float | None, words: Callable[[float], str]) -> str:
    """A figure with its interval, on one line."""
    if found is None:
        return UNKNOWN
    if not isinstance(found, Estimate):
        return words(found)
    known = found.low is not None and found.high is not None
    return words(found.estimate) + (f" ({' to '.join(map(words, found.ends))})" if known else "")
