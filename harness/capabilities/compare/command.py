"""The commands compare, history and selftest."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli.machine_lock import reserve
from mixmark.harness.cli.options import ADAPTER, CONFIG, JSON, TIER, WAIT_IDLE, Number, Placed
from mixmark.harness.cli.printing import plugins_print_to_stderr, print_json, print_table
from mixmark.harness.cli.run import progress
from mixmark.harness.cli.show import form_of
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import NoiseFloor
    from mixmark.harness.judge.assessment import Assessment


@click.command(cls=Placed, section="Read results")
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A B [C …]")
@click.option(
    "--gate",
    type=Number(0, 100),
    metavar="PCT",
    help="Exit with 1 if a solo measurement of A is proven slower by more than PCT %, or has no figure.",
)
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="Form of the comparison: console, markdown, html or json.  [default: console]",
)
@JSON
def compare(results: tuple[Path, ...], gate: float | None, format_: str | None, as_json: bool) -> None:
    """Compare two or more results, of one machine or of different ones. A is the baseline.

    A, B, … are result folders, or folders that hold several results of one machine and one plan, such as an entry of a
    board.

    The scores, and the best route of each suite, are shown side by side with their speed relative to A. Each solo
    measurement that both results hold of the same device model is tested: it is faster or slower if the whole
    confidence interval of the ratio lies beyond ±δ, same if the interval lies within ±δ, and ambiguous otherwise. δ is
    1 %. If a side has one result, the noise floor that `mixmark selftest` measured at this tier is in the error.

    What cannot be compared is listed with the reason. The exit code is 2 if nothing could be compared, or if --gate
    found nothing to test. --gate exits with 1 also if a result is invalid, or lacks a measurement of A or failed it,
    and names what it could not decide.

    \b
    Examples: mixmark compare results/main results/branch --gate 5
              mixmark compare results/a results/b results/c --format html > c.html
    """
    from mixmark.harness.capabilities.compare.machines import compare_machines
    from mixmark.harness.contracts.errors import UsageError, choose_by_name
    from mixmark.harness.plugins import registry

    if len(results) < 2:
        raise UsageError("compare needs at least two results", hint="for example: mixmark compare results/a results/b")
    forms = registry.find("comparisons")
    (name,) = choose_by_name("format", [form_of(format_, False, as_json)], forms)
    found = compare_machines([(str(path), _judged(path)) for path in results])
    lines = [] if gate is None else [*found.gate(gate / 100)]
    click.echo(forms[name].load()(found), nl=False)  # it may be of another package: all is judged before it runs
    for _, line in lines:
        click.echo(f"mixmark: {plain(line)}", err=True)
    if any(fails for fails, _ in lines):
        sys.exit(1)
    if not found.comparable:
        raise UsageError(
            "these results have nothing in common to compare", hint="the list of what is not compared says what differs"
        )
    if gate is not None and not any(found.verdicts.values()):
        raise UsageError(
            "--gate found no solo measurement to test",
            hint="it tests equal measurements on devices of the same model and settings",
        )


def _judged(path: Path) -> list[Assessment]:
    """The assessment of the result at a path, or of each result in the folders below it, such as an entry's."""
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.record import store

    return [judge_stored(store.open(folder)) for folder in store.results_below(path) or store.results_of(path)]


@click.command(cls=Placed, section="Read results")
@click.argument("folder", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
def history(folder: Path | None) -> None:
    """List the results below a folder, by default ./results, the oldest first.

    The last column says by how much a machine's score changed since its result before, where `mixmark compare` finds
    that they differ.

    Example: mixmark history
    """
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.record import store

    judged = []
    for each in store.results_below(folder or store.RESULTS):
        try:
            judged.append(judge_stored(store.open(each)))
        except MixmarkError as error:  # the other results are not lost by it
            click.echo(f"mixmark: left out: {plain(str(error))}", err=True)
    judged.sort(key=lambda each: each.result.created_utc)
    print_table(
        ("when", "machine", "mix", "MX or TX", "verdict", "change"),
        [_in_history(each, judged[:at]) for at, each in enumerate(judged)],
        "There is no result here: mixmark run makes one.",
    )


def _in_history(found: Assessment, before: Sequence[Assessment]) -> tuple[str, ...]:
    """The row of a result. before: the older ones."""
    from mixmark.harness.capabilities.compare.machines import compare_machines
    from mixmark.harness.contracts.numbers import significant
    from mixmark.reporters import figures

    score, result, change = found.score, found.result, ""
    figure = (score.mixes_per_kwh or score.mixes_per_hour) if score else None
    alike = [each for each in before if _same(each) == _same(found) and each.score]
    if figure and alike:
        compared = compare_machines([("before", [alike[-1]]), ("now", [found])])
        ratio = (compared.mixes_per_kwh if score and score.mixes_per_kwh else compared.mixes_per_hour)[1]
        if ratio and ratio.low and ratio.high and not ratio.low <= 1 <= ratio.high:
            change = f"{significant(ratio.estimate)} ×"
    shown = figures.estimate(figure, "mix/kWh" if score and score.mixes_per_kwh else "mix/h")
    about = (result.created_utc[:16].replace("T", " "), plain(result.machine.cpu_model or "–"))
    return *about, plain(result.mix.name) if result.mix else "–", shown, found.verdict.word, change


def _same(found: Assessment) -> tuple[object, object]:
    """What two results have in common of which the scores compare."""
    return found.result.machine.cpu_model, found.result.mix


@click.command(cls=Placed, section="Measure")
@click.option(
    "--suite",
    "suites",
    multiple=True,
    default=["resnet50"],
    show_default=True,
    metavar="NAME",
    help="Measure this suite. Repeatable.",
)
@ADAPTER
@TIER
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder, new or empty.  [default: results/<time>-<tier>-selftest]",
)
@WAIT_IDLE
@CONFIG
@JSON
def selftest(
    suites: tuple[str, ...],
    adapters: tuple[str, ...],
    tier: Any,
    out: Path | None,
    wait_idle_s: float | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure the noise floor of this machine, with which `mixmark compare` tells a difference from noise.

    The same measurement is repeated in six pairs, each in a fresh process. The noise floor is the difference that 95 %
    of the pairs stay within.

    Example: mixmark selftest --adapter onnxruntime
    """
    from mixmark.harness.capabilities.compare import noise_floor
    from mixmark.harness.contracts.errors import ResultError
    from mixmark.harness.judge.assessment import judge
    from mixmark.harness.judge.findings import disturbs, remedy, words
    from mixmark.harness.machine import noise_floor as stored
    from mixmark.harness.measure.benchmark import interruptible
    from mixmark.harness.measure.request import RunRequest
    from mixmark.harness.measure.run import measure, opened, prepare

    request = RunRequest(
        suites=suites,
        adapters=adapters,
        tier=tier,
        scenarios=("single-stream",),
        runs=2 * noise_floor.LEAST_PAIRS,
        preset="selftest",
        mix="none",
        out=out,
        config=config,
    )
    prepared = prepare(request)
    with reserve(prepared.folder, tier, wait_idle_s), plugins_print_to_stderr(), ExitStack() as stack:
        result = measure(prepared, opened(prepared, stack), progress)
    interruptible()
    assessment = judge(result)
    floors = noise_floor.noise_floors(assessment)
    floor = noise_floor.machine_noise_floor(assessment) if result.finished else None
    path = problem = None
    reasons = assessment.verdict.reasons if assessment.verdict.word == "disturbed" else ()
    busy = [each for each in reasons if disturbs(each) in ("explains", "cause")]
    not_kept = "; ".join(f"{words(each)}: {remedy(each)}" for each in busy[:1])
    if floor and not not_kept:
        try:
            path = stored.keep(floor)
        except ResultError as error:
            problem, not_kept = error, str(error)
    if as_json:
        facts = {"tier": tier, "noise_floor": floor and floor.fraction, "by_measurement": floors}
        kept = {"kept_in": path and str(path), "not_kept": not_kept or None}
        print_json({**facts, **kept, "result": str(prepared.folder)})
    else:
        _print_floors(floors, floor, path, not_kept, prepared.folder)
    if problem:
        raise problem
    sys.exit(assessment.exit_code)


def _print_floors(
    floors: Mapping[str, float | None], floor: NoiseFloor | None, path: Path | None, not_kept: str, folder: Path
) -> None:
    rows = [(name, "–" if value is None else f"{value * 100:.2f} %") for name, value in floors.items()]
    print_table(("measurement", "95 % of the pairs differ by at most"), rows, "Nothing was measured.")
    if floor:
        click.echo(f"\nThe noise floor of the {floor.tier} tier is {floor.fraction * 100:.2f} %.")
        click.echo(f"It is stored in {path}." if path else f"It is not stored: {not_kept}.")
        click.echo(f"The measurements are in {folder}.")
    else:
        click.echo("\nThe noise floor was not measured: six pairs of a measurement must finish.")
