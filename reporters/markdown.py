"""All figures and findings as Markdown tables for GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mixmark.harness.contracts.schema import System
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.judgement import Judgement
from mixmark.harness.judge.solo import Solo
from mixmark.reporters import figures, hosts, scores, tables
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.summary import summary

COLUMNS = (
    "suite", "device", "adapter", "scenario", "type", "feeds", "throughput", "latency", "tail", "first unit",
    "time per unit", "roofline", "energy per unit",
)  # fmt: skip


def report(judgement: Judgement) -> str:
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: Judgement) -> Iterator[str]:
    result, system = judgement.result, judgement.result.system
    names = figures.device_names(result)
    state = "finished" if result.finished else "UNFINISHED"
    yield f"## Mixmark: {result.tier} tier, {cell(result.preset)}, {state}"
    yield ""
    for group, of_group in hosts.groups(result):
        yield f"- {cell(f'{group}: {_machine(of_group)}')}"
    measured = f"{result.created_utc}, Mixmark {system.mixmark}"
    yield "" if result.hosts else cell(f"{_machine(system)}, {measured}")
    if result.hosts:
        yield cell(measured)
    if scope := figures.scope(judgement.runs):
        yield ""
        yield cell(scope)
    yield ""
    first = summary(judgement)
    yield f"**{first.verdict}**: {cell(first.reason)}"
    yield ""
    yield cell(f"{first.sentence} {first.limits}".strip())
    yield from (f"- {cell(line)}" for line in first.scale)
    yield ""
    if found := scores.score_text(judgement):
        yield f"**{cell(found.headline)}**"
        yield ""
        yield from (f"- {cell(name)}: {cell(value)}" for name, value in found.facts)
        for explained in found.tables:
            yield ""
            yield from table(explained.header, explained.rows, right_from=explained.text_columns)
        yield ""
    for title, rows in (("", judgement.solos), (figures.HOSTED, judgement.hosted)):
        if title and rows:
            yield ""
            yield cell(title)
            yield ""
        if rows or not title:
            yield from table(COLUMNS, [_row(row, names, figures.energy_parts(rows)) for row in rows], right_from=5)
    for source in filter(None, (tables.matrix(judgement), tables.ceilings(judgement))):
        yield ""
        yield from table(source.header, source.rows, right_from=source.text_columns)
    yield ""
    for severity, about, message in figures.merged(result, judgement.findings):
        subject = "" if about == "run" else f"{about}: "
        yield f"- **{severity}** {cell(subject + message)}"
    for absent in result.absent:
        yield f"- **absent** {cell(f'{absent.label}: {absent.reason}')}"


def _machine(system: System) -> str:
    return f"{system.cpu_model or 'CPU'}, {system.kernel}"


def _row(row: Solo, names: dict[str, str], energy_parts: int) -> Sequence[str]:
    route = row.route
    return (
        figures.name(route.suite),
        names[route.device],
        figures.name(route.adapter),
        figures.scenario(row),
        route.precision,
        UNKNOWN if row.feeds is None else str(row.feeds),
        ", ".join(figures.throughput(row)),
        figures.typical(row.latency),
        figures.tail(row.latency),
        figures.typical(row.first_unit),
        figures.typical(row.time_per_unit),
        figures.roofline(row.roofline_fraction),
        ", ".join(figures.spent(row.energy)[:energy_parts]),
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right_from: int) -> Iterator[str]:
    """The lines of a table. right_from: the index of the first column that is aligned to the right."""
    yield f"| {' | '.join(map(cell, header))} |"
    yield f"|{'|'.join('---' if column < right_from else '---:' for column in range(len(header)))}|"
    for row in rows:
        yield f"| {' | '.join(cell(text) for text in row)} |"


def cell(text: str) -> str:
    """The text with escapes, so that no part of it counts as a table's bar, as HTML or as markup."""
    for mark in "\\|`*_[]#~":
        text = text.replace(mark, f"\\{mark}")
    return plain(text, figures.LONGEST).replace("<", "&lt;")
