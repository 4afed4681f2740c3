"""Results side by side as one document, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from mixmark.harness.capabilities.compare.machines import MachineComparison, Row, Side
from mixmark.harness.capabilities.compare.noise_floor import days_between
from mixmark.harness.capabilities.compare.solo import LEAST_DELTA, Comparison, SuiteWork
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import NoiseFloor
from mixmark.harness.contracts.text import Reason, plain
from mixmark.harness.judge.score import Score
from mixmark.harness.judge.solo import Solo
from mixmark.reporters import document, figures
from mixmark.reporters.data import written
from mixmark.reporters.document import Block, Document, Heading, Notes, Paragraph, Table
from mixmark.reporters.figures import UNKNOWN, significant

SHORT_ID = 8  # letters of a UUID that are enough to recognise a device
MOST_NAMED = 3  # things that a note names; the others are counted
WIDEST = 160  # columns
FOOTER = (
    "Every figure is computed from the raw timestamps of the result folders. A figure without an interval says how "
    "fast one measurement was, and not how certain that is."
)


def console(found: MachineComparison) -> str:
    return document.console(report(found), WIDEST if sys.stdout.isatty() else document.WIDTH)


def markdown(found: MachineComparison) -> str:
    return document.markdown(report(found))


def html(found: MachineComparison) -> str:
    return document.html(report(found))


def json(found: MachineComparison) -> str:
    """The keys are the fields and properties of `MachineComparison`, sorted; docs/json.md lists them."""
    return written(found)


def report(found: MachineComparison) -> Document:
    baseline = found.machines[0].label
    blocks: list[Block] = [*tables(found)]
    for source in verdicts(found):
        blocks += [Heading(source.title), replace(source, title="")]
    if delta := minimal_difference(found):
        blocks.append(Paragraph(delta, style="quiet"))
    for title, notes in (("Remarks", remarks(found)), ("Not compared", uncompared(found))):
        if notes:
            blocks += [Heading(title, title.lower().replace(" ", "-")), Notes(notes)]
    return Document(f"{len(found.machines)} results side by side", f"{baseline} is the baseline.", blocks, FOOTER)


def column(machine: Side) -> str:
    """The header of a result's column: B, or B (3 results) for a folder with several."""
    return machine.label if machine.results == 1 else f"{machine.label} ({machine.results} results)"


def tables(found: MachineComparison) -> Iterator[Table]:
    """The machines, and the best routes if there are any: a column for each result. A cell may have several lines."""
    labels = [column(machine) for machine in found.machines]
    yield Table("Machines", ("", *labels), [(name, *values) for name, values in machines(found)])
    if found.rows:
        rows = [(title(row, found.rows), *map(_lines, row.solos, row.relatives)) for row in found.rows]
        yield Table("Best routes", ("suite", *labels), rows)


def _lines(solo: Solo | None, ratio: Estimate | None) -> str:
    """The rate, the route, and the relative speed, each on its line."""
    if solo is None:
        return UNKNOWN
    return "\n".join((rate(solo), route(solo), *([relative(ratio)] if ratio else [])))


def machines(found: MachineComparison) -> list[tuple[str, list[str]]]:
    """(row name, its value for each result). A row that is unknown for every result is left out, and instructions
    that all have are."""
    flags = {side.label: {*side.typical.result.machine.cpu_flags} for side in found.machines}
    shared = set[str].intersection(*flags.values())
    own = {label: ", ".join(sorted(each - shared)) for label, each in flags.items()}
    of_side: dict[str, Callable[[Side], str]] = {
        "folder": lambda side: figures.name(side.name),
        "processor": lambda side: figures.name(side.provenance.cpu_model or UNKNOWN),
        "instructions": lambda side: figures.name(own[side.label] or UNKNOWN),
        "CPU quota": lambda side: f"{side.provenance.cpu_quota:g} CPUs" if side.provenance.cpu_quota else UNKNOWN,
        "devices": lambda side: figures.name(side.provenance.devices, figures.LONGEST) or "the processor alone",
        "memory": lambda side: figures.gibibytes(side.provenance.memory_bytes),
        "measured": lambda side: date(side.provenance.created_utc),
        "Mixmark": lambda side: figures.name(side.provenance.mixmark),
        "tier, preset": lambda side: f"{side.provenance.tier}, {figures.name(side.provenance.preset)}",
        "verdict": lambda side: side.verdict.word,
        "mix": lambda side: figures.name(side.typical.result.mix.name if side.typical.result.mix else UNKNOWN),
    }
    of_score: dict[str, Callable[[Score], str]] = {
        "grade": lambda score: score.grade,
        "weights": lambda score: f"{score.weight_class} bit",
        "MX": lambda score: figures.estimate(score.mixes_per_kwh, "mix/kWh"),
        "boundary": lambda score: score.boundary or UNKNOWN,
        "TX": lambda score: figures.estimate(score.mixes_per_hour, "mix/h"),
        "mean power": lambda score: figures.prefixed(score.watts, "W"),
    }
    scores = [None if side.no_score else side.score for side in found.machines]
    table = [(name, [value(side) for side in found.machines]) for name, value in of_side.items()]
    relatives = {"MX": found.mixes_per_kwh, "TX": found.mixes_per_hour}
    for name, of in of_score.items():
        table.append((name, [of(score) if score else UNKNOWN for score in scores]))
        if any(relatives.get(name, ())):
            others = [UNKNOWN if ratio is None else relative(ratio) for ratio in relatives[name][1:]]
            table.append((f"{name} / {name} of {found.machines[0].label}", ["baseline", *others]))
    return [(name, values) for name, values in table if any(value != UNKNOWN for value in values)]


def date(created_utc: str) -> str:
    """2026-11-22 04:13 for 2026-11-22T04:13:13+00:00. A text that is not a time stays as it is."""
    text = figures.name(created_utc)
    return text[:16].replace("T", " ") if days_between(created_utc, created_utc) is not None else text


def relative(ratio: Estimate) -> str:
    """2.00× (1.97 to 2.04), or 2.00×, not proven."""
    if ratio.low is None or ratio.high is None:
        return f"{significant(ratio.estimate)}×, not proven"
    return f"{significant(ratio.estimate)}× ({significant(ratio.low)} to {significant(ratio.high)})"


def title(row: Row, rows: Sequence[Row]) -> str:
    """llm, single-stream, 16-bit weights. If several rows have this title, the facts that differ follow."""
    text = _title(row.work)
    namesakes = [namesake.work for namesake in rows if _title(namesake.work) == text]
    differing = [
        f"{name} {figures.name(str(fact))}"
        for name, fact in row.work.facts().items()
        if len({str(work.facts()[name]) for work in namesakes}) > 1
    ]
    return ", ".join((text, *differing))


def _title(work: SuiteWork) -> str:
    return figures.name(work.label, figures.LONGEST)


def rate(solo: Solo) -> str:
    """7.04 tok/s ± 2.3 %, with the half-width only if it is known."""
    per_s = figures.rate(solo.units_per_s, solo.names.short)
    half = figures.within(solo.units_per_s) if solo.units_per_s else ""
    return f"{per_s} {half}".strip()


def route(solo: Solo) -> str:
    """bf16 by torch on cpu:0, batch 1024."""
    route = solo.route
    is_cpu = route.device.startswith("cpu:")
    device = short(route.device) if is_cpu or not solo.device_name else figures.name(solo.device_name)
    batch = f", batch {solo.batch}" if (solo.batch or 1) > 1 else ""
    runs = f", {solo.runs} runs" if solo.runs > 1 else ""
    return f"{route.precision} by {figures.name(route.adapter)} on {device}{batch}{runs}"


def short(device: str) -> str:
    """gpu:GPU-5d1cae40-… -> gpu:5d1cae40."""
    kind, _, part = plain(device).partition(":")
    part = part.removeprefix("GPU-")
    return figures.name(f"{kind}:{part[:SHORT_ID]}" if part else kind)


def measurement(test: Comparison) -> str:
    """llm on cpu:0 by torch in bf16, single-stream."""
    route, device = test.route, short(test.route.device)
    suite, adapter = figures.name(route.suite), figures.name(route.adapter)
    return f"{suite} on {device} by {adapter} in {route.precision}, {test.scenario}"


def verdicts(found: MachineComparison) -> Iterator[Table]:
    """The tests of each result that was tested against the baseline."""
    header = ("solo measurement", "relative speed", "interval", "verdict", "runs")
    for label, tests in found.verdicts.items():
        if tests:
            title = f"Solo measurements of {label} tested against {found.machines[0].label}"
            yield Table(title, header, [_verdict(test) for test in tests], text_columns=len(header))


def _verdict(test: Comparison) -> tuple[str, ...]:
    low, high = test.ratio.ends
    interval = f"{low:.3f} to {high:.3f}"
    return measurement(test), f"{test.ratio.estimate:.3f}", interval, test.verdict, " : ".join(map(str, test.runs))


def minimal_difference(found: MachineComparison) -> Reason | None:
    """δ of the verdicts, and what their error holds. None if there is no verdict."""
    tests = [test for tests in found.verdicts.values() for test in tests]
    if not tests:
        return None
    last = max(found.machines, key=lambda side: side.provenance.created_utc)
    floors = "; ".join(_floor(floor, last) for floor in found.noise_floors.values())
    lacking = ""
    if not all(test.independent for test in tests):
        why = f"{floors}, and in the error" if floors else "no noise floor of this tier is known"
        lacking = f" Runs of one result do not show how results differ; {why}. Two results of each side show it."
    delta = f"δ is {LEAST_DELTA * 100:g} %. Faster or slower: the whole interval lies beyond ±δ; same: within;"
    return f"{delta} ambiguous: neither.{lacking}"


def _floor(floor: NoiseFloor, last: Side) -> str:
    days = days_between(floor.created_utc, last.provenance.created_utc)
    age = f"{figures.counted(days, 'day')} before {last.label}" if days is not None else "on an unknown day"
    return f"the noise floor of the {floor.tier} tier is {floor.fraction * 100:.2g} %, measured {age}"


def uncompared(found: MachineComparison) -> list[tuple[str, str, str]]:
    """Everything that was not compared, with the reason. Equal reasons share a note."""
    return _merged((missed.label, _about(missed.about), missed.reason) for missed in found.uncompared)


def _about(label: str) -> str:
    return " ".join(
        short(word) if word.startswith(("gpu:", "npu:", "asic:")) else word for word in plain(label).split()
    )


def remarks(found: MachineComparison) -> list[tuple[str, str, str]]:
    """Why figures have no interval, what their intervals leave out, and what is doubtful about a result."""
    return _merged((*_doubts(found), *_of_scores(found), *_of_routes(found), *_of_verdicts(found)))


def _doubts(found: MachineComparison) -> Iterator[tuple[str, str, str]]:
    any_mix = any(side.typical.result.mix for side in found.machines)
    for side in found.machines:
        if side.verdict.word not in ("solid", "fair"):
            yield side.label, f"is {side.verdict.word}", side.verdict.reason
        if any_mix and side.no_score:
            yield side.label, "has no score", side.no_score
        elif side.score and side.score.unmeasured:
            yield side.label, "has no MX", side.score.unmeasured


def _of_scores(found: MachineComparison) -> Iterator[tuple[str, str, str]]:
    for name, relatives in (("TX", found.mixes_per_hour), ("MX", found.mixes_per_kwh)):
        for machine, ratio in zip(found.machines, relatives, strict=True):
            if ratio is not None and ratio.reason:
                yield machine.label, name, ratio.reason


def _of_routes(found: MachineComparison) -> Iterator[tuple[str, str, str]]:
    labels = [side.label for side in found.machines]
    for row in found.rows:
        suite = figures.name(row.work.suite)
        for label, ratio in zip(labels, row.relatives, strict=True):
            if ratio is not None and ratio.reason:
                yield label, suite, ratio.reason
        known = [(label, solo.route.precision) for label, solo in zip(labels, row.solos, strict=True) if solo]
        if len({precision for _, precision in known}) > 1:
            formats = ", ".join(f"{label} in {precision}" for label, precision in known)
            yield "", suite, f"the number formats differ: {formats}"


def _of_verdicts(found: MachineComparison) -> Iterator[tuple[str, str, str]]:
    for label, tests in found.verdicts.items():
        yield from ((label, measurement(test), test.reason) for test in tests if test.reason)


def _merged(notes: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """One note for all (label, about, reason) with the same reason; labels with the same things share it."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for label, about, reason in notes:
        reasons.setdefault(reason, {}).setdefault(label, []).append(about)
    found = []
    for reason, by_label in reasons.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for label, abouts in by_label.items():
            same.setdefault(tuple(dict.fromkeys(abouts)), []).append(label)
        for things, labels in same.items():
            named = "; ".join(things[:MOST_NAMED])
            if len(things) > MOST_NAMED:
                named += f"; and {len(things) - MOST_NAMED} more"
            found.append((", ".join(filter(None, labels)), named, plain(reason, figures.LONGEST)))
    return found
