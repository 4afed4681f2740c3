"""A comparison in words and tables that each form lays out in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mixmark.harness.contracts.schema import NoiseFloor
from mixmark.harness.contracts.text import plain
from mixmark.harness.judge.compare.machines import Best, Machine, Quotient, Row, SideBySide, Work, days_between
from mixmark.harness.judge.compare.solo import LEAST_DELTA, Comparison
from mixmark.harness.judge.score import Figure
from mixmark.reporters import figures
from mixmark.reporters.figures import UNKNOWN, significant

SHORT_ID = 8  # letters that tell a device by its UUID
FEW = 3  # things that a list names one by one


@dataclass(frozen=True)
class Note:
    """Something to know of figures of the tables, or why there is none."""

    labels: str
    """The results that it is about: B, C."""
    about: str
    text: str


def heading(found: SideBySide) -> str:
    return f"Mixmark: {len(found.machines)} results side by side. {found.machines[0].label} is the baseline."


def column(machine: Machine) -> str:
    """The head of a result's column: B, or that of several results of one folder."""
    return machine.label if machine.results == 1 else f"{machine.label} ({machine.results} results)"


def machines(found: SideBySide) -> list[tuple[str, list[str]]]:
    """(what, its value of each result); what no result knows is left out."""
    looks: Sequence[tuple[str, Callable[[Machine], str]]] = (
        ("folder", lambda one: figures.name(one.name)),
        ("processor", lambda one: figures.name(one.cpu or UNKNOWN)),
        ("devices", lambda one: ", ".join(map(figures.name, one.devices)) or "the processor alone"),
        ("memory", lambda one: UNKNOWN if one.memory_bytes is None else f"{significant(one.memory_bytes / 2**30)} GiB"),
        ("measured", lambda one: date(one.created_utc)),
        ("Mixmark", lambda one: figures.name(one.mixmark)),
        ("tier, preset", lambda one: f"{one.tier}, {figures.name(one.preset)}"),
        ("verdict", lambda one: one.verdict),
        ("mix", lambda one: one.mix or UNKNOWN),
        ("grade", lambda one: one.grade or UNKNOWN),
        ("weights", lambda one: f"{one.weight_class} bit" if one.weight_class else UNKNOWN),
        ("MX", lambda one: figure(one.mixes_per_kj, "mix/kJ")),
        ("boundary", lambda one: one.boundary or UNKNOWN),
        ("TX", lambda one: figure(one.mixes_per_s, "mix/s")),
        ("time of a mix", lambda one: UNKNOWN if one.s_per_mix is None else f"{significant(one.s_per_mix)} s"),
        ("energy of a mix", lambda one: UNKNOWN if one.kj_per_mix is None else f"{significant(one.kj_per_mix)} kJ"),
        ("mean power", lambda one: figures.prefixed(one.watts, "W")),
    )
    rows = [(what, [look(one) for one in found.machines]) for what, look in looks]
    base = found.machines[0].label
    for name, relatives in (("MX", found.mixes_per_kj), ("TX", found.mixes_per_s)):
        if any(relatives):
            at = [what for what, _ in rows].index(name) + 1
            told = ["baseline", *(UNKNOWN if each is None else relative(each) for each in relatives[1:])]
            rows.insert(at, (f"{name} / {name} of {base}", told))
    return [(what, values) for what, values in rows if any(value != UNKNOWN for value in values)]


def date(created_utc: str) -> str:
    """2026-11-22T04:13:13+00:00 as 2026-11-22 04:13; whatever else a file says as it is."""
    told = figures.name(created_utc)
    return told[:16].replace("T", " ") if days_between(created_utc, created_utc) is not None else told


def figure(value: Figure | None, unit: str) -> str:
    """0.395 ±1.5 % mix/kJ."""
    if value is None:
        return UNKNOWN
    half = "" if value.half_width is None else f" ±{figures.percent(value.half_width)}"
    return f"{significant(value.estimate)}{half} {unit}"


def relative(each: Quotient) -> str:
    """2.00× (1.97 to 2.04), or 2.00×, no interval."""
    if each.low is None or each.high is None:
        return f"{significant(each.estimate)}×, no interval"
    low, high = significant(each.low), significant(each.high)
    return f"{significant(each.estimate)}× ({low} to {high})"


def title(row: Row, rows: Sequence[Row]) -> str:
    """llm, single-stream, 16-bit weights; where that does not tell a row from another one, with what does."""
    told = _title(row.work)
    namesakes = [each.work for each in rows if _title(each.work) == told]
    if len(namesakes) == 1:
        return told
    looks: Sequence[tuple[str, Callable[[Work], object]]] = (
        ("tier", lambda work: work.tier),
        ("version", lambda work: work.suite_version),
        ("options", lambda work: dict(work.suite_options)),
        ("weights", lambda work: work.weights),
        ("unit", lambda work: work.unit),
    )
    more = [
        f"{name} {figures.name(str(look(row.work)))}"
        for name, look in looks
        if len({str(look(each)) for each in namesakes}) > 1
    ]
    return ", ".join((told, *more))


def _title(work: Work) -> str:
    return f"{figures.name(work.suite)}, {work.scenario}, {work.weight_class}-bit weights"


def rate(best: Best, row: Row) -> tuple[str, ...]:
    """(7.04 tok/s, ±2.3 %), the latter where it is known."""
    half = () if best.half_width is None else (f"±{figures.percent(best.half_width)}",)
    return (figures.rate(best.units_per_s, row.names.short), *half)


def route(best: Best) -> str:
    """bf16 by torch on cpu:0, batch 1024: what a rate was reached with."""
    on = (
        short(best.device) if best.device.startswith("cpu:") or not best.device_name else figures.name(best.device_name)
    )
    batch = f", batch {best.batch}" if (best.batch or 1) > 1 else ""
    runs = f", {best.runs} runs" if best.runs > 1 else ""
    return f"{best.precision} by {figures.name(best.adapter)} on {on}{batch}{runs}"


def short(device: str) -> str:
    """gpu:GPU-5d1cae40-… -> gpu:5d1cae40."""
    kind, _, part = plain(device).partition(":")
    part = part.removeprefix("GPU-")
    return figures.name(f"{kind}:{part[:SHORT_ID]}" if part else kind)


def cell(each: Comparison) -> str:
    """llm on cpu:0 by torch in bf16, single-stream."""
    record = (each.b or each.a)[0].record
    of, where = record.route, short(record.route.device)
    return f"{figures.name(of.suite)} on {where} by {figures.name(of.adapter)} in {of.precision}, {record.scenario}"


VERDICTS = ("cell", "relative speed", "interval", "verdict", "runs")


def verdicts(found: SideBySide) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """(title, rows under VERDICTS) of each result that has cells alike those of the baseline."""
    base = found.machines[0].label
    for label, compared in found.verdicts.items():
        rows = [_verdict(each) for each in compared]
        if rows:
            yield f"{label} tested against {base}, cell by cell", rows


def _verdict(each: Comparison) -> tuple[str, ...]:
    assert each.ratio is not None and each.verdict is not None  # as all of them have
    interval = f"{each.ratio.low:.3f} to {each.ratio.high:.3f}"
    return cell(each), f"{each.ratio.estimate:.3f}", interval, each.verdict, f"{len(each.a)} : {len(each.b)}"


def delta(found: SideBySide) -> str:
    """δ of the verdicts, and where it comes from; empty where there is no verdict."""
    compared = [each for told in found.verdicts.values() for each in told]
    if not compared:
        return ""
    told = [f"δ is {share * 100:.2f} %" for share in sorted({each.delta for each in compared})]
    last = max(found.machines, key=lambda one: one.created_utc)
    floors = [_floor(each, last) for each in found.floors.values()]
    why = "; ".join(floors) or f"no noise floor of this tier is known, so it is the least one, {LEAST_DELTA * 100:g} %"
    return (
        f"{' and '.join(told)}: {why}. Faster or slower: the whole interval lies beyond ±δ; same: within; ambiguous: "
        "neither."
    )


def _floor(floor: NoiseFloor, last: Machine) -> str:
    days = days_between(floor.created_utc, last.created_utc)
    age = f"{days} day{'' if days == 1 else 's'} before {last.label}" if days is not None else "on an unknown day"
    return f"the noise floor of the {floor.tier} tier is {floor.share * 100:.2g} %, measured {age}"


def uncompared(found: SideBySide) -> list[Note]:
    """What was held against nothing, with the reason; what has the same reason is said once. Of what is not alike in
    several ways, only the first is named."""
    return _merged(
        (
            each.label,
            _about(each.about),
            f"not alike in {each.differing[0]}{' and more' if each.differing[1:] else ''}"
            if each.differing
            else each.reason,
        )
        for each in found.uncompared
    )


def _about(label: str) -> str:
    return " ".join(
        short(word) if word.startswith(("gpu:", "npu:", "asic:")) else word for word in plain(label).split()
    )


def remarks(found: SideBySide) -> list[Note]:
    """Why figures of the tables have no interval, what their intervals leave out, and what is doubtful of a result."""
    told: list[tuple[str, str, str]] = []
    for one in found.machines:
        if one.verdict not in ("solid", "fair"):
            told.append((one.label, f"is {one.verdict}", one.verdict_reason))
        if one.copy_of:
            told.append((one.label, f"is the same measurement as {one.copy_of}", "nothing is learned from its speed"))
        if (why := one.no_score or one.no_efficiency) and any(each.mix for each in found.machines):
            told.append((one.label, "has no score" if one.no_score else "has no MX", why))
    for name, relatives in (("TX", found.mixes_per_s), ("MX", found.mixes_per_kj)):
        for one, each in zip(found.machines, relatives, strict=True):
            if each is not None and each.reason:
                told.append((one.label, name, each.reason))
    for row in found.rows:
        for best in row.known:
            if best.relative is not None and best.relative.reason:
                told.append((best.label, figures.name(row.work.suite), best.relative.reason))
        precisions = {best.precision for best in row.known}
        if len(precisions) > 1:
            of = ", ".join(f"{best.label} in {best.precision}" for best in row.known)
            told.append(("", figures.name(row.work.suite), f"the number formats differ: {of}"))
    for label, compared in found.verdicts.items():
        told += [(label, cell(each), each.reason) for each in compared if each.reason]
    return _merged(told)


def _merged(told: Iterable[tuple[str, str, str]]) -> list[Note]:
    """One note for a reason and the things that it is given for; the results for which these are the same share it."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for label, about, reason in told:
        reasons.setdefault(reason, {}).setdefault(label, []).append(about)
    found = []
    for reason, by_label in reasons.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for label, abouts in by_label.items():
            same.setdefault(tuple(dict.fromkeys(abouts)), []).append(label)
        for things, labels in same.items():
            named = "; ".join(things[:FEW]) + (f"; and {len(things) - FEW} more" if len(things) > FEW else "")
            found.append(Note(", ".join(filter(None, labels)), named, plain(reason, figures.LONGEST)))
    return found
