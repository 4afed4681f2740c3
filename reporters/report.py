"""The report of a result as one document: short for a run's end, in full, or as a page with charts.

The long forms begin with the short one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal

from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.schema import Result, System, digest_of_code
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import in_full
from mixmark.harness.judge.solo import Relative, Solo
from mixmark.harness.plugins.experiments import facts
from mixmark.reporters import document, experiments, figures, hosts, measurements, scores
from mixmark.reporters.document import Block, Bullets, Document, Facts, Heading, Notes, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN
from mixmark.reporters.summary import Summary, summary

FULL_WIDTH = 120  # columns of the tables with every figure
FOOTER = (
    "Every figure follows from the raw timestamps in the result folder; – is unknown, never zero. Latencies count from "
    "when a feed was due; in a closed loop that is when it was issued."
)
Depth = Literal["brief", "full", "page", "summary"]
"""`summary`: the first screen of the page."""


def console(assessment: Assessment) -> str:
    """The answer in about fifteen lines. A run prints it last."""
    return document.console(report(assessment, "brief"))


def full(assessment: Assessment) -> str:
    """All figures, findings and absences as plain text."""
    return document.console(report(assessment, "full"), FULL_WIDTH)


def markdown(assessment: Assessment) -> str:
    """All figures, findings and absences for GitHub."""
    return document.markdown(report(assessment, "full"))


def html(assessment: Assessment) -> str:
    """All figures with charts, and the conditions of each measurement."""
    return document.html(report(assessment, "page"))


def summary_page(assessment: Assessment) -> str:
    """The first screen of the page alone, for a notebook."""
    return document.html(report(assessment, "summary"))


def report(assessment: Assessment, depth: Depth) -> Document:
    result, found = assessment.result, summary(assessment)
    tier = f"{result.tier} tier{' (never ranked)' if result.tier == 'smoke' else ''}"
    state = "finished" if result.finished else "UNFINISHED"
    about = (_date(result.created_utc), tier, result.preset, f"Mixmark {result.system.mixmark}", state)
    blocks: list[Block] = [Paragraph(found.reason, word=found.verdict, lead=found.advice)]
    if assessment.contradiction is None:
        blocks += _brief(assessment, found, depth in ("page", "summary"))
    if depth in ("full", "page"):
        whole = assessment.contradiction is None
        blocks += _full(assessment, depth == "page") if whole else [Bullets([*map(in_full, assessment.findings)])]
    return Document(found.system, " · ".join(map(figures.name, about)), blocks, FOOTER)


def _brief(assessment: Assessment, found: Summary, is_page: bool) -> Iterator[Block]:
    """Whether the figures can be relied on, what the machine does, how it compares with others, what next.

    The first screen of a page answers all of it, on a telephone too; on a console the command prints `next` last.
    """
    kwh = ["mixes per kWh"] if assessment.score and assessment.score.mixes_per_kwh else []
    header = ("where it stands", "log scale", "mixes per hour", *kwh, "beside this one")
    good = [("is that good", found.is_good)] if found.is_good else []
    standing = Table("", header, found.standing, text_columns=len(header))
    yield Paragraph(found.score, style="strong")
    yield Paragraph(found.sentence, style="sentence")
    if is_page:
        yield Facts([*good, *([("next", assessment.next)] if assessment.next else [])])
        yield standing
    own = [*experiments.shown(assessment)]
    yield Facts([line for section, found in own for line in section.lines(assessment, found)])
    if is_page:
        yield from experiments.pictures("mix", assessment)
    for title, lines in (("", found.suites), (figures.HOSTED, found.hosted)):
        rows = [(line.suite, line.rate, line.route, line.others) for line in lines]
        yield Table(title, ("suite", "throughput", "best route", "against other routes"), rows, text_columns=4)
    yield from filter(None, (section.table(assessment, found) for section, found in own))
    yield Facts([("energy", found.energy), *([] if is_page else good)])
    if not is_page:
        yield standing


def _full(assessment: Assessment, is_page: bool) -> Iterator[Block]:
    """Everything that is known, section by section."""
    few = hosts.condensed(assessment)
    if explained := list(scores.explained(assessment)):
        yield Heading("The score and what explains it", "score")
        yield from explained
    yield Heading("Each suite alone", "results")
    if assessment.solos:
        yield hosts.table(assessment)
        if is_page:
            yield from experiments.pictures("routes", few)
        yield measurements.table(few.solos, few)
    else:
        yield Paragraph("No suite was measured alone.", style="quiet")
    if scope := figures.scope(assessment.runs):
        yield Paragraph(f"Energy {scope}.", style="quiet")
    if assessment.hosted:
        yield Heading(figures.HOSTED, "hosted")
        yield measurements.table(assessment.hosted, assessment)
    yield from _matrix(few)
    yield from _ceilings(few)
    for section, found in experiments.shown(assessment):
        yield from section.section(assessment, found)
    yield from _findings(assessment)
    if is_page and (each := list(measurements.each(few))):
        yield Heading("Measurements", "records")
        yield from each
    yield from _system(assessment.result, hosts.shown(assessment))
    if is_page:
        yield Facts([*_systems(assessment.result), *_environments(assessment.result)], folded="Disclosure")
        yield Facts(list(_run(assessment.result)), folded="The run")


def _matrix(assessment: Assessment) -> Iterator[Block]:
    """Every device relative to the first. Nothing if fewer than two were measured."""
    found, names = assessment.matrix, figures.device_names(assessment.result)
    if found is None:
        return
    solos = {row.key: row for row in assessment.solos}
    rows = [
        (figures.name(suite), *(_relative(each, solos.get(each.row)) for each in relatives))
        for suite, relatives in found.rows
    ]
    yield Heading(f"Devices relative to {names[found.baseline]}", "matrix")
    yield Table("", ("suite", *(names[device] for device in found.devices)), rows)
    yield Paragraph(
        "Each device's best throughput of each suite in a solo measurement, as a multiple of the baseline's.",
        style="quiet",
    )


def _relative(found: Relative, row: Solo | None) -> str:
    return f"{figures.ratio(found)}\n{figures.rate(row.speed, row.names.short)}" if row else UNKNOWN


def _ceilings(assessment: Assessment) -> Iterator[Block]:
    """The best rates of the probe with the kernels that reached them. Nothing if no probe ran."""
    names = figures.device_names(assessment.result)
    rows = [
        (
            names[ceiling.device],
            figures.name(ceiling.adapter) + ("" if ceiling.witnessed else ", own ceiling"),
            ceiling.precision,
            f"{figures.prefixed(ceiling.flops_per_s, 'FLOP/s')} {figures.name(ceiling.flops_kernel or '')}".strip(),
            f"{figures.prefixed(ceiling.bytes_per_s, 'B/s')} {figures.name(ceiling.bytes_kernel or '')}".strip(),
        )
        for ceiling in assessment.ceilings
    ]
    if rows:
        yield Heading("Ceilings", "ceilings")
        yield Table("", ("ceiling of", "adapter", "type", "compute", "memory"), rows, text_columns=3)
        own = "" if all(each.witnessed for each in assessment.ceilings) else " None is relative to an own ceiling."
        yield Paragraph(
            f"The best rates that the probe reached; roofline fractions are of a device's best.{own}", style="quiet"
        )


def _findings(assessment: Assessment) -> Iterator[Block]:
    result, verdict = assessment.result, assessment.verdict
    failed = {record.key for record in result.records if record.error}  # listed under "Not measured"
    found = [finding for finding in assessment.findings if finding.rule != "finished" or finding.about not in failed]
    yield Heading("Findings", "findings")
    yield Paragraph(f"Why the verdict is {verdict.word}:")
    why = (("", "", f"{reason} ({remedy})" if remedy else reason) for reason, remedy in verdict.in_words)
    yield Bullets([text for _, _, text in hosts.folded(why, result)])
    yield Notes([*hosts.folded(figures.merged(found, figures.labels(result)), result)])
    yield Heading("Not measured", "missing")
    missing = list(hosts.folded(_missing(result), result))
    yield Notes(missing) if missing else Paragraph("All that was planned has a figure.", style="quiet")


def _missing(result: Result) -> Iterator[tuple[str, str, str]]:
    """(state, name, reason) of everything that was planned or asked for and has no figure."""
    names = figures.device_names(result)
    for record in result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            state = "failed" if error.attempted else error.kind
            yield state, figures.label(record, names), f"{error.kind}: {error.message}{hint}"
    reached = {record.key for record in result.records}
    mixed = {record.phase for record in result.records if record.scenario == "mixed"}  # its plan names no single turn
    for phase in (phase for phase in result.phases if phase.name not in mixed):
        for share in (share for task in phase.tasks for share in task.shares if share.key not in reached):
            measurement = f"{figures.route_label(share.route, names)}, {share.scenario}"
            yield "not reached", measurement, "the run ended before its turn"
    for absent in result.absent:
        yield "absent", absent.label, absent.reason
    for name in result.experiments.keys() - facts().keys():
        yield "absent", f"experiment {name}", "it is not installed here: its facts are kept, and not shown"


def _system(result: Result, names: dict[str, str]) -> Iterator[Block]:
    header = ("device", "kind", "model", "memory pool", "native types", "memory")
    rows = [
        (
            names[device.id],
            device.kind,
            figures.name(device.name) or UNKNOWN,
            "its own" if device.memory_pool == device.id else figures.name(device.memory_pool),
            ", ".join(device.precisions) or UNKNOWN,
            figures.gibibytes(device.memory_bytes),
        )
        for device in result.devices
        if device.id in names
    ]
    yield Heading("System", "system")
    yield Facts([(hosts.label(group), hosts.described(group.system)) for group in result.groups])
    yield Table("", header, rows, text_columns=5)


def _systems(result: Result) -> Iterator[tuple[str, str]]:
    """The disclosure of each group of equal hosts."""
    for group in result.groups:
        yield "system of", hosts.label(group)
        yield from _disclosed(group.system)


def _disclosed(system: System) -> Iterator[tuple[str, str]]:
    """(name, value) of each field of the disclosure, in the schema's order; "not disclosed" if it is unknown."""
    for field in System.model_fields:
        value = getattr(system, field)
        if field.endswith("_bytes"):
            yield field.removesuffix("_bytes").replace("_", " "), _gib(value)
        elif field.endswith("_mhz"):
            yield field.removesuffix("_mhz").replace("_", " "), f"{value:,.0f} MHz" if value else "not disclosed"
        else:
            yield field.replace("_", " "), _written(value)


def _run(result: Result) -> Iterator[tuple[str, str]]:
    yield "command", " ".join(result.command) or UNKNOWN
    yield "seed", str(result.seed)
    yield "created", result.created_utc
    yield "schema", str(result.schema_version)
    yield "code", f"{counted(len(result.code), 'file')} of Mixmark, SHA-256 {digest_of_code(result.code)}"


def _environments(result: Result) -> Iterator[tuple[str, str]]:
    """(adapter, the software of its workers)."""
    for name, environment in result.environments.items():
        origin = f"{environment.spec} ({environment.origin})"
        versions = _written({**environment.vendor, **environment.packages})
        sha256 = f"; SHA-256 of {environment.source}: {environment.sha256}" if environment.sha256 else ""
        yield f"adapter {name}", f"{origin}, {environment.python}, Mixmark {environment.mixmark}; {versions}{sha256}"


def _written(value: object) -> str:
    if value is None:
        return "not disclosed"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    if isinstance(value, tuple):
        return "; ".join(map(_written, value)) or "none"
    return str(value)


def _gib(size_bytes: int | None) -> str:
    return "not disclosed" if size_bytes is None else figures.gibibytes(size_bytes)


def _date(created_utc: str) -> str:
    """21 November 2026, 02:35 UTC. A text that is not a time stays as it is."""
    try:
        moment = datetime.fromisoformat(created_utc)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # no date, or beyond the first or the last year
        return created_utc
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
