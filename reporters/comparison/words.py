"""The words, rows and notes of a comparison. Each format lays them out in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mixmark.harness.contracts.schema import NoiseFloor
from mixmark.harness.contracts.text import Reason, days_between, plain
from mixmark.harness.judge.compare.machines import BestRoute, BestRoutes, Machine, Quotient, SideBySide, Work
from mixmark.harness.judge.compare.solo import LEAST_DELTA, Comparison
from mixmark.harness.judge.mixed_run import Figure
from mixmark.reporters import figures
from mixmark.reporters.figures import UNKNOWN, significant

SHORT_ID = 8  # letters of a UUID that are enough to recognise a device
MOST_NAMED = 3  # things that a note names; the others are counted


@dataclass(frozen=True)
class Note:
    """A remark on figures of the tables, or the reason why a figure is missing."""

    labels: str
    """The results that the note is about: B, C."""
    about: str
    """The figures or solo measurements that the note is about."""
    text: str


def heading(found: SideBySide) -> str:
    return f"Mixmark: {len(found.machines)} results side by side. {found.machines[0].label} is the baseline."


def column(machine: Machine) -> str:
    """The header of a result's column: B, or B (3 results) for a folder with several."""
    return machine.label if machine.results == 1 else f"{machine.label} ({machine.results} results)"


def machines(found: SideBySide) -> list[tuple[str, list[str]]]:
    """(row name, its value for each result). A row that is unknown for every result is left out."""
    rows: dict[str, Callable[[Machine], str]] = {
        "folder": lambda machine: figures.name(machine.name),
        "processor": lambda machine: figures.name(machine.cpu or UNKNOWN),
        "devices": lambda machine: ", ".join(map(figures.name, machine.devices)) or "the processor alone",
        "memory": lambda machine: figures.gibibytes(machine.memory_bytes),
        "measured": lambda machine: date(machine.created_utc),
        "Mixmark": lambda machine: figures.name(machine.mixmark),
        "tier, preset": lambda machine: f"{machine.tier}, {figures.name(machine.preset)}",
        "verdict": lambda machine: machine.verdict,
        "mix": lambda machine: machine.mix or UNKNOWN,
        "grade": lambda machine: machine.grade or UNKNOWN,
        "weights": lambda machine: f"{machine.weight_class} bit" if machine.weight_class else UNKNOWN,
        "MX": lambda machine: figure(machine.mixes_per_kj, "mix/kJ"),
        "boundary": lambda machine: machine.boundary or UNKNOWN,
        "TX": lambda machine: figure(machine.mixes_per_s, "mix/s"),
        "time of a mix": lambda machine: _number(machine.s_per_mix, "s"),
        "energy of a mix": lambda machine: _number(machine.kj_per_mix, "kJ"),
        "mean power": lambda machine: figures.prefixed(machine.watts, "W"),
    }
    relatives = {"MX": found.mixes_per_kj, "TX": found.mixes_per_s}
    table = []
    for name, value in rows.items():
        table.append((name, [value(machine) for machine in found.machines]))
        if any(relatives.get(name, ())):
            others = [UNKNOWN if quotient is None else relative(quotient) for quotient in relatives[name][1:]]
            table.append((f"{name} / {name} of {found.machines[0].label}", ["baseline", *others]))
    return [(name, values) for name, values in table if any(value != UNKNOWN for value in values)]


def _number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{significant(value)} {unit}"


def date(created_utc: str) -> str:
    """2026-11-22 04:13 for 2026-11-22T04:13:13+00:00. A text that is not a time stays as it is."""
    text = figures.name(created_utc)
    return text[:16].replace("T", " ") if days_between(created_utc, created_utc) is not None else text


def figure(value: Figure | None, unit: str) -> str:
    """0.395 ±1.5 % mix/kJ."""
    if value is None:
        return UNKNOWN
    half = "" if value.half_width is None else f" ±{figures.percent(value.half_width)}"
    return f"{significant(value.estimate)}{half} {unit}"


def relative(quotient: Quotient) -> str:
    """2.00× (1.97 to 2.04), or 2.00×, no interval."""
    if quotient.low is None or quotient.high is None:
        return f"{significant(quotient.estimate)}×, no interval"
    return f"{significant(quotient.estimate)}× ({significant(quotient.low)} to {significant(quotient.high)})"


def title(row: BestRoutes, rows: Sequence[BestRoutes]) -> str:
    """llm, single-stream, 16-bit weights. If several rows have this title, with the facts in which they differ."""
    text = _title(row.work)
    namesakes = [namesake.work for namesake in rows if _title(namesake.work) == text]
    facts: dict[str, Callable[[Work], object]] = {
        "tier": lambda work: work.tier,
        "version": lambda work: work.suite_version,
        "options": lambda work: dict(work.suite_options),
        "weights": lambda work: work.weights,
        "unit": lambda work: work.unit,
    }
    differing = [
        f"{name} {figures.name(str(fact(row.work)))}"
        for name, fact in facts.items()
        if len({str(fact(work)) for work in namesakes}) > 1
    ]
    return ", ".join((text, *differing))


def _title(work: Work) -> str:
    return f"{figures.name(work.suite)}, {work.scenario}, {work.weight_class}-bit weights"


def rate(best: BestRoute, row: BestRoutes) -> tuple[str, ...]:
    """(7.04 tok/s, ±2.3 %), the second only if it is known."""
    half = () if best.half_width is None else (f"±{figures.percent(best.half_width)}",)
    return (figures.rate(best.units_per_s, row.names.short), *half)


def route(best: BestRoute) -> str:
    """bf16 by torch on cpu:0, batch 1024."""
    is_cpu = best.device.startswith("cpu:")
    device = short(best.device) if is_cpu or not best.device_name else figures.name(best.device_name)
    batch = f", batch {best.batch}" if (best.batch or 1) > 1 else ""
    runs = f", {best.runs} runs" if best.runs > 1 else ""
    return f"{best.precision} by {figures.name(best.adapter)} on {device}{batch}{runs}"


def short(device: str) -> str:
    """gpu:GPU-5d1cae40-… -> gpu:5d1cae40."""
    kind, _, part = plain(device).partition(":")
    part = part.removeprefix("GPU-")
    return figures.name(f"{kind}:{part[:SHORT_ID]}" if part else kind)


def measurement(test: Comparison) -> str:
    """llm on cpu:0 by torch in bf16, single-stream."""
    record = (test.b or test.a)[0].record
    route, device = record.route, short(record.route.device)
    suite, adapter = figures.name(route.suite), figures.name(route.adapter)
    return f"{suite} on {device} by {adapter} in {route.precision}, {record.scenario}"


VERDICTS = ("solo measurement", "relative speed", "interval", "verdict", "runs")


def verdicts(found: SideBySide) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """(title, rows with the columns VERDICTS) of each result that was tested against the baseline."""
    base = found.machines[0].label
    for label, tests in found.verdicts.items():
        if tests:
            yield f"Solo measurements of {label} tested against {base}", [_verdict(test) for test in tests]


def _verdict(test: Comparison) -> tuple[str, ...]:
    assert test.ratio is not None and test.verdict is not None  # as all tests in `verdicts`
    interval = f"{test.ratio.low:.3f} to {test.ratio.high:.3f}"
    runs = f"{len(test.a)} : {len(test.b)}"
    return measurement(test), f"{test.ratio.estimate:.3f}", interval, test.verdict, runs


def delta(found: SideBySide) -> Reason | None:
    """δ of the verdicts and its source. None: there is no verdict."""
    tests = [test for tests in found.verdicts.values() for test in tests]
    if not tests:
        return None
    deltas = " and ".join(f"δ is {delta * 100:.2f} %" for delta in sorted({test.delta for test in tests}))
    last = max(found.machines, key=lambda machine: machine.created_utc)
    floors = "; ".join(_floor(floor, last) for floor in found.noise_floors.values())
    why = floors or f"no noise floor of this tier is known, so it is the least one, {LEAST_DELTA * 100:g} %"
    return f"{deltas}: {why}. Faster or slower: the whole interval lies beyond ±δ; same: within; ambiguous: neither."


def _floor(floor: NoiseFloor, last: Machine) -> str:
    days = days_between(floor.created_utc, last.created_utc)
    age = f"{days} day{'' if days == 1 else 's'} before {last.label}" if days is not None else "on an unknown day"
    return f"the noise floor of the {floor.tier} tier is {floor.fraction * 100:.2g} %, measured {age}"


def uncompared(found: SideBySide) -> list[Note]:
    """Everything that was not compared, with the reason. Equal reasons share a note. If two measurements differ in
    several facts, the note names the first."""
    return _merged(
        (
            missed.label,
            _about(missed.about),
            f"not alike in {missed.differing[0]}{' and more' if missed.differing[1:] else ''}"
            if missed.differing
            else missed.reason,
        )
        for missed in found.uncompared
    )


def _about(label: str) -> str:
    return " ".join(
        short(word) if word.startswith(("gpu:", "npu:", "asic:")) else word for word in plain(label).split()
    )


def remarks(found: SideBySide) -> list[Note]:
    """Why figures have no interval, what their intervals leave out, and what is doubtful about a result."""
    return _merged((*_doubts(found), *_of_scores(found), *_of_routes(found), *_of_verdicts(found)))


def _doubts(found: SideBySide) -> Iterator[tuple[str, str, str]]:
    any_mix = any(machine.mix for machine in found.machines)
    for machine in found.machines:
        if machine.verdict not in ("solid", "fair"):
            yield machine.label, f"is {machine.verdict}", machine.verdict_reason
        if machine.copy_of:
            yield machine.label, f"is the same measurement as {machine.copy_of}", "nothing is learned from its speed"
        if (why := machine.no_score or machine.no_efficiency) and any_mix:
            yield machine.label, "has no score" if machine.no_score else "has no MX", why


def _of_scores(found: SideBySide) -> Iterator[tuple[str, str, str]]:
    for name, relatives in (("TX", found.mixes_per_s), ("MX", found.mixes_per_kj)):
        for machine, quotient in zip(found.machines, relatives, strict=True):
            if quotient is not None and quotient.reason:
                yield machine.label, name, quotient.reason


def _of_routes(found: SideBySide) -> Iterator[tuple[str, str, str]]:
    for row in found.rows:
        suite = figures.name(row.work.suite)
        for best in row.known:
            if best.relative is not None and best.relative.reason:
                yield best.label, suite, best.relative.reason
        if len({best.precision for best in row.known}) > 1:
            formats = ", ".join(f"{best.label} in {best.precision}" for best in row.known)
            yield "", suite, f"the number formats differ: {formats}"


def _of_verdicts(found: SideBySide) -> Iterator[tuple[str, str, str]]:
    for label, tests in found.verdicts.items():
        yield from ((label, measurement(test), test.reason) for test in tests if test.reason)


def _merged(notes: Iterable[tuple[str, str, str]]) -> list[Note]:
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
            found.append(Note(", ".join(filter(None, labels)), named, plain(reason, figures.LONGEST)))
    return found
