"""The command run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mixmark.harness.cli.machine_lock import reserve
from mixmark.harness.cli.options import (
    ADAPTER,
    CONFIG,
    JSON,
    TIER,
    WAIT_IDLE,
    AgainOption,
    SectionedCommand,
    arrival_rate,
    timeout,
)
from mixmark.harness.cli.printing import plugins_print_to_stderr
from mixmark.harness.cli.show import VERBOSE, form_of, print_end, with_next, write_page
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import plain
from mixmark.harness.plan import mixes
from mixmark.harness.plan.presets import PRESETS
from mixmark.harness.plugins.manifest import OPTIONS
from mixmark.harness.plugins.options import chosen_machines, of_machines
from mixmark.harness.plugins.options import options as of_plugins

if TYPE_CHECKING:
    from mixmark.harness.cli.progress import Progress
    from mixmark.harness.contracts.schema import Result
    from mixmark.harness.judge.assessment import Assessment
    from mixmark.harness.measure.executor import Executor

SECTIONS = {
    "Options": "--tier --preset --suite --device --adapter --bits --wait-idle --out --resume --verbose --help",
    "What else is measured": "--mix --objective --scenario --rate --precision --weights --all-routes --runs --seed",
    "A model of your own": " ".join(each.opts[0] for own in of_plugins("models").values() for each in own),
    "On which machine, and what is printed": " ".join(
        ["--split-cpu", *(each.opts[0] for each in of_machines()), "--config --timeout --json"]
    ),
}
"""The options of `mixmark run`, in the sections of its help: first what most runs need. Options of experiments have a
section of their own, the last."""
WHEN_RESUMED = frozenset({"resume", "devices", "adapters", "suites", "mix", "split_cpu", "weights"})
WHEN_RESUMED |= {"config", "timeout_s", "wait_idle_s", "verbose", "as_json"}
WHEN_RESUMED |= {option.name for option in of_machines()}
"""The options that may be given with --resume: where the machines, devices, suites and checkpoints are, how long to
wait, and what to print. The run that is resumed keeps all others."""


def _sections(given: dict[str, Any]) -> dict[str, Mapping[str, str]]:
    """The sections of suites that the options of a command and the models of its mix stand for, by the `sections` of
    the options' module. These options are removed from the others."""
    found: dict[str, Mapping[str, str]] = {}
    tables, folder = mixes.models(given["mix"]), Path(given["mix"] or "").parent
    for name, own in of_plugins("models").items():
        values = {option.name: given.pop(option.name) for option in own if option.name}
        found |= resolve_name(OPTIONS[name].partition(":")[0]).sections(values, tables, folder)
    return found


def _experiments(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The experiments that are asked for, with the values of their options, which are removed from the others. Raises
    UsageError if an option is given that a run which is resumed keeps."""
    context = click.get_current_context()
    given = [
        each
        for each in context.command.params
        if context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE
    ]
    again = [each for each in given if each.name in WHEN_RESUMED or isinstance(each, AgainOption)]
    if options["resume"] and (kept := [each.opts[0] for each in given if each not in again]):
        raise UsageError(f"the run that is resumed keeps its own {', '.join(kept)}", f"leave {' and '.join(kept)} away")
    found: dict[str, dict[str, Any]] = {}
    for name, own in of_plugins("experiments").items():
        values = {option.name: options.pop(option.name) for option in own if option.name}
        if any(option in given for option in own):
            found[name] = values
    return found


@click.command(cls=SectionedCommand, sections=SECTIONS)
@click.argument("named", nargs=-1, metavar="[SUITE]...")
@click.option(
    "--suite",
    "suites",
    multiple=True,
    metavar="NAME",
    help="Run only this suite, as the argument does. Repeatable.  [default: the suites of the mix, and those of other "
    "packages]",
)
@click.option("--device", "devices", multiple=True, metavar="ID", help="Use only this device. Repeatable.")
@ADAPTER
@TIER
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="NAME",
    help="Number format to compute in: fp32, bf16, … Repeatable.  [default: the best of each device, by --bits]",
)
@click.option(
    "--bits",
    type=click.Choice(["16", "8", "4"]),
    callback=lambda context, option, given: given and int(given),
    help="Weight class: the fewest bits that a weight may have. 16 uses formats of 16 and 32 bits, 8 adds formats of 8 "
    "bits, and 4 adds all others.  [default: 16]",
)
@click.option(
    "--all-routes",
    is_flag=True,
    help="Measure every route. Without it, a run measures the likely fastest route of a suite on a device, and another "
    "one only if a quick check of seconds shows it to be faster.",
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    metavar="NAME",
    help="How feeds arrive: single-stream, offline or server. Repeatable.  [default: as the preset says]",
)
@click.option(
    "--rate",
    callback=arrival_rate,
    metavar="R|max",
    help="Arrival rate of the server scenario in feeds per second; max finds the highest rate that keeps the latency "
    "limits.  [default: max]",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of runs of each solo measurement, each in a fresh process.",
)
@click.option(
    "--preset",
    type=click.Choice([*PRESETS]),
    default="quick",
    show_default=True,
    help="How much is measured. quick: the native scenario of each suite, and the mix once; ranked: three runs of the "
    "mix, for a rank; standard: ranked with all closed-loop scenarios, at least 30 s and 3 feeds each; official: "
    "standard with five long runs of the mix.",
)
@click.option(
    "--mix",
    metavar="NAME|FILE|none",
    help="Mix that runs on all devices at once, in the end; without --suite, only its suites are measured.  "
    "[default: the ranked mix of the tier]",
)
@click.option(
    "--objective",
    type=click.Choice(["throughput", "efficiency"]),
    default="throughput",
    show_default=True,
    help="Optimise the mix for mixes per hour or for mixes per kWh.",
)
@click.option(
    "--split-cpu",
    metavar="N|numa|type",
    help="Split the CPU into several devices: N equal ones, one for each NUMA node, or one for each type of core.",
)
@click.option(
    "--weights",
    multiple=True,
    metavar="SUITE=PATH",
    help="Load a public checkpoint for a suite, in place of synthetic weights. Repeatable.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Result folder, new or empty.  [default: results/<time>-<tier>-<preset>]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Seed for the inputs. A score under a chosen seed is only indicative.  [default: each window draws its own]",
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Continue the interrupted run there.")
@timeout(600, "Seconds after which a worker that sends no reply counts as hung.")
@WAIT_IDLE
@VERBOSE
@CONFIG
@JSON
def run(verbose: bool, as_json: bool, wait_idle_s: float | None, named: tuple[str, ...], **options: Any) -> None:
    """Benchmark this machine: each suite on each device through each adapter, then all of them at once. With SUITE,
    those suites alone.

    \b
    Examples: mixmark run
              mixmark run llm
              mixmark run llm --adapter torch --preset standard
    """
    from mixmark.harness.judge import references
    from mixmark.harness.machine.suite_claims import judge_stored
    from mixmark.harness.measure.audit import clean_process
    from mixmark.harness.measure.benchmark import interruptible
    from mixmark.harness.measure.request import RunRequest
    from mixmark.harness.measure.run import measure, opened, prepare

    form = form_of(None, verbose, as_json)
    asked = _experiments(options)
    options["suites"] += named
    machines = chosen_machines(options)
    sections = _sections(options)
    request = RunRequest(**options, experiments=asked, machines=machines, sections=sections)
    with clean_process() as clean, ExitStack() as stack:
        prepared = prepare(request, clean, stack)
        request = prepared.request
        stack.enter_context(reserve(prepared.folder, request.tier, wait_idle_s))
        stack.enter_context(plugins_print_to_stderr())
        machine = opened(prepared, stack)
        result = measure(prepared, machine, progress)
    interruptible()
    assessment = judge_stored(result, references.published())
    _show(assessment, prepared.folder, form, () if request.resume else sys.argv[1:])  # a resumed run knows its options
    sys.exit(assessment.exit_code)


run.params += [*(each for own in of_plugins("models").values() for each in own), *of_machines()]
for _options in of_plugins("experiments").values():
    run.params += _options


def progress(header: Result, executor: Executor) -> Progress:
    """Shows a run while it goes on."""
    from mixmark.harness.cli.progress import Progress

    return Progress(header, executor.metered)


def _show(assessment: Assessment, folder: Path, form: str, words: Sequence[str]) -> None:
    """Prints the report and where the result lies. With JSON on stdout, the verdict goes to stderr. words: as in
    `with_next`."""
    from mixmark.harness.plugins import registry

    as_json = form == "json"
    shown = with_next(assessment, folder, words)
    write_page(shown, folder)  # first: the terminal may be gone
    click.echo(registry.find("reporters")[form].load()(assessment), nl=False)
    if as_json:
        click.echo(plain(str(assessment.verdict)), err=True)
    print_end(shown, folder, err=as_json)
