"""An entry as a document: its page with score, classes, runs and the whole disclosure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from mixmark.reporters import figures, hosts
from mixmark.reporters.document import Block, Bullets, Document, Facts, Heading, Link, Notes, Paragraph, Table
from mixmark.submissions.board import formats, rank, row
from mixmark.submissions.board.rank import Metric
from mixmark.submissions.board.row import Standing, Website
from mixmark.submissions.entry import Entry, MixedRun, Reproduction
from mixmark.submissions.verdict import classes


def page(
    entry: Entry,
    site: Website,
    standings: Sequence[Standing],
    reports: Sequence[str],
    history: Sequence[Entry],
    reproduced: Iterable[tuple[Reproduction, Entry | None]],
) -> Document:
    """The page of an entry.

    reports: the files with the report of each result, in the entry's permanent folder. history: the entries of the same
    system, mix and weight class, with this one. reproduced: see `row.reproductions`.
    """
    declared = entry.declaration
    classes = (row.hardware(entry), declared.organisation, entry.mix, entry.standing, entry.division, entry.tuning)
    blocks = [*_summary(entry, site, standings, history), *_measured(entry, reports), *_disclosed(entry)]
    blocks += [*_history(entry, history), *_checks(entry, site, reproduced)]
    return Document(declared.system, " · ".join(classes), blocks)


def _summary(entry: Entry, site: Website, standings: Sequence[Standing], history: Sequence[Entry]) -> Iterator[Block]:
    if stale := rank.stale(entry, site.today, site.versions):
        yield Paragraph(f"{'; '.join(stale)}.", word="stale")
    if entry.replaced:
        yield Paragraph("the system was entered again, so this entry is on no board.", word="replaced")
    warned = "do not rely on these figures: " if entry.verdict == "disturbed" else ""
    yield Paragraph(f"{warned}{'; '.join(entry.reasons.get('verdict', ()))}.", word=entry.verdict)
    metric: Metric = "MX" if entry.mixes_per_kwh else "TX"
    yield Paragraph(row.whole(rank.figure_of(entry, metric), metric), style="strong")
    yield Paragraph(row.sentence(entry, site), style="sentence")
    yield Facts([(name, ", ".join(filter(None, parts))) for name, *parts in _headline(entry)])
    root = "../" * row.page_of(entry).count("/")
    links = [
        Link(f"{each.words[:1].upper()}{each.words[1:]}: {each.key.title}", root + row.board_page(each.key))
        for each in standings
    ]
    if entry.replaced and any(not other.replaced for other in history):
        links.append(Link("The entry that counts now", row.beside(entry.path)))
    if links:
        yield Bullets(links)


def _measured(entry: Entry, reports: Sequence[str]) -> Iterator[Block]:
    yield Heading("Classes", "classes")
    yield Table(
        "", ("class", "this entry", "why"), [each for each in classes(entry) if each[0] != "verdict"], text_columns=3
    )
    yield Heading("Runs of the mix", "runs")
    yield _runs(entry)
    linked = [row.beside(entry.permanent, name) for name in reports]
    yield Bullets([Link(f"Report of result {number}", link) for number, link in enumerate(linked, start=1)])
    if entry.solos:
        yield Heading("Each suite alone", "suites")
        yield Table("", ("suite", "route", "rate, energy"), list(_solos(entry)), text_columns=2)
    yield Heading("Findings", "findings")
    found = figures.merged([each for each in entry.findings if each.rule != "score_graded"], {})  # the grade says it
    yield Notes(found) if found else Paragraph("No rule found anything.")


def _disclosed(entry: Entry) -> Iterator[Block]:
    yield Heading("System", "system")
    yield Facts(list(_machine(entry)))
    yield Heading("Declared, not measured", "declared")
    yield Facts(list(_declared(entry)))


def _history(entry: Entry, entries: Sequence[Entry]) -> Iterator[Block]:
    """What the system got each time that it was entered, the newest first."""
    if len(entries) < 2:
        return
    yield Heading("History", "history")
    rows = [
        (
            other.ended_utc[:10] if other is entry else Link(other.ended_utc[:10], row.beside(other.permanent)),
            f"{'this entry' if other is entry else 'replaced' if other.replaced else 'counts now'}, {other.standing}, "
            f"{other.verdict}, Mixmark {other.mixmark}",
            _scores(other),
        )
        for other in sorted(entries, key=lambda other: other.ended_utc, reverse=True)
    ]
    yield Table("", ("measured", "entry", "MX and TX"), rows, text_columns=2)


def _checks(entry: Entry, site: Website, reproduced: Iterable[tuple[Reproduction, Entry | None]]) -> Iterator[Block]:
    """How a reader measures the same, checks this entry, and quotes it."""
    yield Heading("Reproduce it", "reproduce")
    yield Paragraph("On such a machine, this is what was measured:")
    for command in dict.fromkeys(shlex.join(("mixmark", *command)) for command in entry.commands):
        yield Paragraph(command, style="code")
    yield Paragraph(
        "With the folder of this entry, without its hardware: compute every figure again from raw samples, and compare "
        "its outputs with the reference."
    )
    for action in ("check", "audit"):
        yield Paragraph(f"mixmark {action} {entry.permanent if entry.replaced else entry.path}", style="code")
    repeated = []
    for run, other in reproduced:
        words = f"{run.by}, {run.date}"
        if other is None:
            repeated.append(("Reproduced, as declared", _link(run.url, f"{words}; no entry confirms it")))
        else:
            address = "../" * row.page_of(entry).count("/") + row.page_of(other)
            repeated.append(("Reproduced by", Link(f"{words}; its entry confirms it", address)))
    hashes = [(f"SHA-256 of SHA256SUMS of result {n}", hash) for n, hash in enumerate(entry.results, start=1)]
    yield Facts([*repeated, *hashes])
    yield Heading("Quote it", "quote")
    yield Paragraph(formats.citation(entry, site), style="code")
    url = site.url + row.page_of(entry)
    always = Link(
        f"This address never shows other results: {site.url}{row.permanent_page(entry)}", row.beside(entry.permanent)
    )
    yield Bullets(
        [always, *([] if entry.replaced else [Link(f"The newest entry of this system: {url}", row.beside(entry.path))])]
    )


def _link(url: str, words: str) -> str:
    """A link as an entry declares it. A text that is no address stays text."""
    return Link(words, url) if url.startswith(row.SCHEMES) else words


def _headline(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """(name, figure, remark)."""
    if entry.mixes_per_kwh is None:
        yield "MX, mixes per kWh", "not measured", entry.unmeasured
    else:
        remark = f"{figures.within(entry.mixes_per_kwh)}, energy of the {entry.boundary}".lstrip(", ")
        yield "MX, mixes per kWh", f"{figures.number(entry.mixes_per_kwh)} mix/kWh", remark
    yield "TX, mixes per hour", f"{figures.number(entry.mixes_per_hour)} mix/h", figures.within(entry.mixes_per_hour)
    if entry.watts:
        yield "Power", row.watts(entry), f"mean of {figures.counted(len(entry.runs), 'run')}, idle included"


def _runs(entry: Entry) -> Table:
    """The score of each run and of all runs."""
    rows = [
        (
            figures.name(f"result {run.result}, {run.phase}" if len(entry.results) > 1 else run.phase),
            _scores(run),
            f"{run.seconds:,.0f} s\n{figures.prefixed(run.watts, 'W')}",
        )
        for run in entry.runs
    ]
    rows.append(("all runs", _scores(entry), row.watts(entry)))
    return Table("", ("run", "MX and TX", "window, power"), rows, text_columns=1)


def _scores(of: Entry | MixedRun) -> str:
    return f"{row.whole(of.mixes_per_kwh, 'MX')}\n{row.whole(of.mixes_per_hour, 'TX')}"


def _solos(entry: Entry) -> Iterator[tuple[str, ...]]:
    """The solo measurements of each suite, in the order of the mix, the fastest first."""
    for solo in sorted(entry.solos, key=lambda solo: (row.position(entry, solo.route.suite), -solo.speed)):
        route, within = solo.route, figures.within(solo.units_per_s) if solo.units_per_s else ""
        named = (row.device_name(entry, route.device), figures.name(route.adapter), route.precision)
        joules = figures.prefixed(solo.energy.joules_per_unit, "J") if solo.energy else ""
        rate = f"{figures.rate(solo.speed, solo.names.short)} {within}".rstrip()
        yield (
            f"{figures.name(route.suite)}, version {figures.name(route.suite_version)}",
            " · ".join((*named, figures.scenario(solo))),
            f"{rate}\n{joules} a {figures.name(solo.unit, 16)}" if joules else rate,
        )


def _machine(entry: Entry) -> Iterator[tuple[str, str]]:
    machine = entry.machine
    yield from ((hosts.label(group).capitalize(), hosts.described(group.system)) for group in machine.hosts)
    for device in machine.devices:
        memory = f", {figures.gibibytes(device.memory_bytes)}" if device.memory_bytes else ""
        yield f"Device {device.id}", f"{device.kind}: {device.name or figures.UNKNOWN}{memory}"
    for adapter, environment in machine.environments.items():
        versions = {**environment.packages, **environment.vendor}
        packages = ", ".join(f"{name} {version}" for name, version in versions.items()) or "no packages reported"
        yield f"Adapter {adapter}", f"{environment.origin}; {environment.python}; {packages}"
    yield "Suites", row.suite_versions(entry)
    yield "Mixmark", entry.mixmark
    yield (
        "Runs",
        f"{figures.counted(len(entry.runs), 'mixed run')} of {entry.started} begun, "
        f"{figures.counted(entry.begun, 'window')} begun in all, resumed {figures.counted(entry.resumed, 'time')}, "
        f"from {entry.began_utc} to {entry.ended_utc}",
    )
    signed = {"none": "no", "not verified": "yes, not verified by this board", "good": f"by {entry.signed.signer}"}
    yield "Signed", signed[entry.signed.state]


def _declared(entry: Entry) -> Iterator[tuple[str, str]]:
    declared = entry.declaration
    yield "Availability", declared.availability
    yield "Form", declared.form_factor
    yield "Origin", declared.origin
    if declared.meter:
        yield "Meter", declared.meter
    if declared.licence:
        yield "Licence", declared.licence
    if declared.provisioned_watts:
        yield "Provisioned power", f"{declared.provisioned_watts:,} W"
    if declared.price:
        yield "Price", f"{declared.price} on {declared.price.date}, {row.worth(entry)} per mix/h"
        yield "Source of the price", _link(declared.price.source, declared.price.source)
    for line in declared.notes.split("\n"):
        if line:
            yield "Notes", line
