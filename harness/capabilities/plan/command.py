"""The command plan."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from mixmark.harness.cli.options import JSON, Number, Placed
from mixmark.harness.cli.printing import print_json
from mixmark.harness.cli.show import form_of, result_or_newest
from mixmark.harness.contracts.errors import MixmarkError, UsageError, choose_by_name
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.capabilities.plan.catalogue import MeasuredMachine
    from mixmark.harness.capabilities.plan.machine import Constraints, Kind, Retained
    from mixmark.harness.capabilities.plan.outlook import Box, Outlook
    from mixmark.harness.capabilities.plan.prices import Declared, Prices
    from mixmark.harness.contracts.schema import Mix
    from mixmark.harness.judge.assessment import Assessment
    from mixmark.reporters.document import Document


POSITIVE = Number(min=0, min_open=True)
MOST = 1_000_000
"""Devices or hosts of a machine."""


@dataclass(frozen=True)
class Source:
    """A result to plan with."""

    name: str
    assessment: Assessment
    owned: bool
    price: Any = None
    """The declared price of an entry, with `amount` and `currency`. None if none is declared."""


Machine: TypeAlias = "tuple[Source, MeasuredMachine]"


@click.command(cls=Placed, section="Read results")
@click.argument("results", nargs=-1, metavar="[RESULTS]...", type=click.Path(path_type=Path))
@click.option(
    "--entries",
    multiple=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Entries of a board, or results, whose devices can be bought. Repeatable.",
)
@click.option(
    "--prices",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file with prices and more, and with devices that nobody measured.",
)
@click.option(
    "--fraction",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=0.5,
    show_default=True,
    help="Part of a datasheet's bounds that a device is assumed to reach.",
)
@click.option("--mix", "asked", metavar="NAME|FILE", help="Mix to plan for.  [default: the first of the results' tier]")
@click.option(
    "--per-hour",
    multiple=True,
    metavar="SUITE=N",
    help="Work of an hour instead of a mix, in units of the suite: resnet50=500. Repeatable.",
)
@click.option("--mixes-per-hour", type=POSITIVE, metavar="N", help="The least that the machine must do.")
@click.option(
    "--bits", type=click.Choice(["16", "8", "4"]), default="16", show_default=True, help="Fewest bits of a weight."
)
@click.option("--budget", type=POSITIVE, metavar="MONEY", help="The most that may be spent.")
@click.option("--power", type=POSITIVE, metavar="WATTS", help="The most that the machine may draw.")
@click.option("--hosts", type=click.IntRange(1, MOST), metavar="N", help="The most hosts.")
@click.option("--at-most", multiple=True, metavar="KIND=N", help="The most devices of a kind. Repeatable.")
@click.option("--add", multiple=True, metavar="KIND[=N]", help="What if there were one more, or N? Repeatable.")
@click.option("--without", multiple=True, metavar="KIND[=N]", help="What if all, or N, were gone? Repeatable.")
@click.option("--tariff", type=Number(min=0), metavar="MONEY", help="Price of a kilowatt-hour.")
@click.option(
    "--years", type=POSITIVE, default=3.0, show_default=True, help="Years of electricity that --tariff pays for."
)
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    type=click.Choice(["console", "markdown", "html", "json"]),
    help="Form of the plan: console, markdown, html or json.  [default: console]",
)
@JSON
def plan(
    results: tuple[Path, ...],
    entries: tuple[Path, ...],
    asked: str | None,
    bits: str,
    fraction: float,
    format_: str | None,
    as_json: bool,
    **more: Any,
) -> None:
    """Predict what to buy, what to add and what to switch off, from measured solo rates.

    The devices of RESULTS (by default the newest result) are owned and cost only electricity; the devices of --entries
    can be bought. A host brings its processors and takes as many accelerators as it was measured with. One program
    finds whole numbers of devices; each answer says whether it is proved to be the best.

    A device that nobody measured can be asked about, too: from a datasheet that Mixmark ships (an unknown name lists
    them), or from the file of prices. Such a device is called assumed everywhere.

    Every figure is a prediction at full load, and none is ranked. The devices' names are in the output. The file of
    prices is shown in docs/capabilities/plan/plan.md.

    \b
    Examples: mixmark plan results/mine --without "Acme Topaz"
              mixmark plan results/mine --add "NVIDIA L4"
              mixmark plan --entries DIR --prices FILE --mixes-per-hour 300
              mixmark plan results/mine --format html > plan.html
    """
    from mixmark.harness.capabilities.plan import text
    from mixmark.reporters import summary

    form = form_of(format_, False, as_json)
    left_out: list[tuple[str, str]] = []
    sources = list(_sources(results, entries, left_out))
    if not sources:
        raise _nothing(left_out)
    mix, own_work = _mix(asked, more["per_hour"], sources[0].assessment.result.tier, sources)
    machines = list(_measured(sources, mix, int(bits), left_out))
    if not machines:
        raise _nothing(left_out)
    outlook = replace(
        _outlook(machines, mix, own_work, bits, fraction, left_out, more), mix=mix.name, own_work=own_work
    )
    names = {suite.name: suite.unit_names for source in sources for suite in source.assessment.result.suites}
    work = summary.work(mix, {suite: each.work for suite, each in names.items()})
    shown = text.plan(outlook, work, {suite: each.short for suite, each in names.items()})
    _print(form, asdict(outlook), shown)


def _outlook(
    machines: Sequence[Machine],
    mix: Mix,
    own_work: bool,
    bits: str,
    fraction: float,
    left_out: Sequence[tuple[str, str]],
    more: Mapping[str, Any],
) -> Outlook:
    """The answers for these machines. left_out: (name, reason) of the other results. more: the other options."""
    from mixmark.harness.capabilities.plan import assumed, outlook, prices
    from mixmark.harness.capabilities.plan.machine import Tariff
    from mixmark.harness.capabilities.plan.program import Planner

    unused: list[tuple[str, str]] = []
    listed = prices.load(more["prices"]) if more["prices"] else prices.Prices()
    measured = _kinds(machines, listed.devices, unused)
    named = [text.split("=")[0].strip() for option in ("add", "at_most") for text in more[option]]
    asked_about = {name: own for name, own in listed.devices.items() if name in named or not more["add"]}
    workloads = {suite: assumed.workload(suite, mix.tier, int(bits)) for suite in mix.units}
    known = [kind.unmarked for kind in measured]
    kinds = [*measured, *assumed.kinds(named, asked_about, workloads, known, fraction)]
    used = {kind.unmarked for kind in kinds}
    unused += [(name, "no device of this question has this name") for name in listed.devices if name not in used]
    offered = {kind.unmarked for source, machine in machines if not source.owned for kind in machine.kinds}
    limits = _limits(kinds, offered, own_work, more)
    kinds = _with_slots(kinds, limits)
    energy = None if more["tariff"] is None else Tariff(more["tariff"], more["years"])
    planner = Planner(kinds, mix.units, _retained(machines, mix, bits), energy)
    found = outlook.answered(planner, limits, left_out, _boxes(machines, kinds))
    without = ((plain(name), why) for name, why in unused)
    return replace(found, currency=_currency(machines, listed), left_out=(*found.left_out, *without))


def _print(form: str, facts: object, shown: Document) -> None:
    """Prints the facts as JSON, or the document in another form."""
    from mixmark.reporters import document

    renderers = {"console": document.console, "markdown": document.markdown, "html": document.html}
    if form == "json":
        print_json(facts)
    else:
        click.echo(renderers[form](shown), nl=False)


def _nothing(left_out: Sequence[tuple[str, str]]) -> UsageError:
    reasons = "; ".join(f"{name}: {why}" for name, why in left_out)
    return UsageError("there is no measured device to plan with", reasons or "name results or entries")


def _sources(results: Sequence[Path], entries: Sequence[Path], left_out: list[tuple[str, str]]) -> Iterator[Source]:
    """The results at these paths. Of entries, those that their check rejects are left out by name."""
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.plugins import registry
    from mixmark.harness.record import store

    service = registry.find("services").get("entries")
    entries_at = service.load() if service else lambda paths: {}
    if not results and not entries:
        results = (result_or_newest(None),)
    offers = [(True, path, entries_at([path]).get(path)) for path in results]
    together = entries_at(entries)  # a copied run is found whichever paths hold it
    offers += [(False, path, together.get(path)) for path in entries]
    for owned, path, offered in offers:
        for entry in offered or ():
            if entry.problem:
                left_out.append((plain(entry.name), entry.problem))
            else:
                yield Source(entry.name, judge_stored(store.open(entry.result)), owned, entry.price)
        for folder in (store.results_below(path) or [path]) if offered is None else ():
            assessment = judge_stored(store.open(folder))
            yield Source(assessment.result.system.cpu_model or folder.name, assessment, owned)


def _mix(asked: str | None, per_hour: Sequence[str], tier: Any, sources: Sequence[Source]) -> tuple[Mix, bool]:
    """The mix, and whether it is the work of an hour that the user named."""
    from mixmark.harness.contracts.schema import Mix
    from mixmark.harness.plan import mixes

    facts = {suite.name: suite for source in sources for suite in source.assessment.result.suites}
    if not per_hour:
        run = next((source.assessment.result.mix for source in sources if source.assessment.result.mix), None)
        return (run if asked is None and run else mixes.load(asked, tier, facts)), False
    if asked:
        raise UsageError("--mix and --per-hour both name the work", "leave one of them away")
    units: dict[str, float] = {**_numbers("--per-hour", per_hour, "suite", facts)}
    if not all(units.values()):
        raise UsageError("--per-hour 0 is no work", f"for example: --per-hour {next(iter(facts))}=10000")
    first = next((mix for mix in mixes.frozen().values() if mix.tier == tier), None)
    kept = {suite: limits for suite, limits in (first.limits if first else {}).items() if suite in units}
    return Mix(name="work-of-an-hour", tier=tier, units=units, limits=kept), True


def _measured(sources: Sequence[Source], mix: Mix, bits: int, left_out: list[tuple[str, str]]) -> Iterator[Machine]:
    """The machines that can be planned with. The others are left out by name."""
    from mixmark.harness.capabilities.plan.catalogue import measured_machine

    newest: Mapping[str, str] = {}
    seen: dict[str, int] = {}
    for source in sorted(sources, key=lambda each: each.assessment.result.created_utc, reverse=True):
        seen[source.name] = seen.get(source.name, 0) + 1
        name = source.name if seen[source.name] == 1 else f"{source.name} ({seen[source.name]})"
        result = source.assessment.result
        try:
            if source.assessment.contradiction:
                raise UsageError(f"its facts contradict each other: {source.assessment.contradiction}")
            if result.tier != mix.tier:
                raise UsageError(f"it was measured at the tier {result.tier}, and the mix is of {mix.tier}")
            machine = measured_machine(name, source.assessment, mix, bits)
            newest = newest or machine.versions
            if other := [suite for suite in mix.units if machine.versions.get(suite) != newest.get(suite)]:
                raise UsageError(f"it ran another version of {', '.join(other)} than newer results")
        except MixmarkError as error:
            left_out.append((plain(name), str(error)))
            continue
        yield source, machine


def _retained(machines: Sequence[Machine], mix: Mix, bits: str) -> Retained:
    """What the mixed runs of these machines and of published ones retained."""
    from mixmark.harness.capabilities.plan import catalogue
    from mixmark.harness.judge import references

    found = {machine.created_utc: machine.retained for _, machine in machines}
    for published in references.published():
        if published.mix.startswith(f"{mix.tier}-") and published.weight_class == int(bits):
            found.setdefault(published.created_utc, published.retained)
    return catalogue.of_runs(found.values())


def _currency(machines: Sequence[Machine], listed: Prices) -> str:
    """The currency of all prices. Empty if none is named."""
    found = {source.price.currency for source, _ in machines if source.price} | {listed.currency} - {""}
    if len(found) > 1:
        raise UsageError(f"the prices are in {' and '.join(sorted(found))}", "name entries and prices of one currency")
    return "".join(found)


def _kinds(machines: Sequence[Machine], declared: Mapping[str, Declared], unused: list[tuple[str, str]]) -> list[Kind]:
    """The kinds of all machines, each once, with what is declared of them."""
    from mixmark.harness.capabilities.plan.prices import declare

    found: dict[str, Kind] = {}
    for source, machine in sorted(machines, key=lambda each: bool(each[1].mark)):  # then the newest first
        whole = source.price and len(machine.kinds) > 1
        if whole:
            unused.append((f"the price of {machine.name}", "it covers the host and its accelerators"))
        for kind in machine.kinds:
            name, own = kind.unmarked, replace(kind, owned=kind.owned if source.owned else 0)
            if source.price and not whole:
                own = replace(own, price=float(source.price.amount), declared=frozenset({"price"}))
            if name in found:
                own = replace(found[name], owned=found[name].owned + own.owned)
                unused.append((f"{kind.name} in {machine.name}", "another result of the same kind counts"))
            found[name] = own
    return declare(found.values(), declared)


def _boxes(machines: Sequence[Machine], kinds: Sequence[Kind]) -> list[Box]:
    """The devices of each measured machine, and the price of the whole machine if its entry declares one."""
    names = {kind.unmarked: kind.name for kind in kinds}
    return [
        (
            {names[kind.unmarked]: kind.owned for kind in machine.kinds},
            float(source.price.amount) if source.price and len(machine.kinds) > 1 else None,
        )
        for source, machine in machines
    ]


def _limits(kinds: Sequence[Kind], offered: set[str], own_work: bool, more: Mapping[str, Any]) -> Constraints:
    """The limits that the options state. Of what is owned and not offered there is no more."""
    from mixmark.harness.capabilities.plan.machine import Constraints

    owned = {kind.name: kind.owned for kind in kinds}
    at_least: dict[str, int] = {}
    at_most = {kind.name: kind.owned for kind in kinds if not (kind.assumption or kind.unmarked in offered)}
    at_most |= _counts("--at-most", more["at_most"], kinds)
    for name, count in _counts("--add", more["add"], kinds, 1).items():
        at_least[name] = at_most[name] = owned[name] + count
    for name, gone in _counts("--without", more["without"], kinds, 0).items():
        at_most[name] = max(0, owned[name] - gone) if gone else 0
    return Constraints(
        mixes_per_hour=more["mixes_per_hour"] or (1.0 if own_work else None),
        budget=more["budget"],
        watts=more["power"],
        hosts=more["hosts"],
        at_least=at_least,
        at_most=at_most,
    )


def _with_slots(kinds: Sequence[Kind], limits: Constraints) -> list[Kind]:
    """The kinds with room for the accelerators that --add asks for, in equal parts in the hosts."""
    added = sum(limits.at_least.get(kind.name, 0) for kind in kinds if not kind.is_host)
    hosts = sum(kind.owned or limits.at_least.get(kind.name, 0) for kind in kinds if kind.is_host)
    slots = math.ceil(added / hosts) if hosts else 0
    return [
        replace(kind, slots=slots, declared=kind.declared | {"slots"})
        if kind.is_host and kind.slots < slots and "slots" not in kind.declared
        else kind
        for kind in kinds
    ]


def _counts(option: str, texts: Sequence[str], kinds: Sequence[Kind], default: int | None = None) -> dict[str, int]:
    """The number of each kind in texts such as KIND=2. default: the number of a text without one."""
    tagged = {kind.unmarked: kind.name for kind in kinds}
    counts = _numbers(option, texts, "kind of device", tagged, default)
    return {tagged[name]: count for name, count in counts.items()}


def _numbers(
    option: str, texts: Sequence[str], what: str, known: Collection[str], default: int | None = None
) -> dict[str, int]:
    """The numbers in texts such as NAME=2, by their names. default: the number of a text without one."""
    found = {}
    for text in texts:
        name, equals, count = text.rpartition("=") if text not in known else (text, "", "")
        choose_by_name(what, [name or text], known)
        if (not equals and default is None) or (equals and not re.fullmatch(r"\s*[0-9]{1,12}\s*", count)):
            raise UsageError(f"{option} {text} has no whole number", f"for example: {option} '{name or text}=2'")
        found[name or text] = int(count) if equals else default or 0
    return found
