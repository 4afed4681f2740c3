"""The commands of the kit: check adapter, check meter, check suite, new."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli.options import CONFIG, JSON, WAIT_IDLE, Check, Placed, timeout
from mixmark.harness.cli.printing import plugins_print_to_stderr, print_json, print_table
from mixmark.harness.contracts.errors import UsageError, explained
from mixmark.harness.plugins.manifest import BUILT_IN

if TYPE_CHECKING:
    from mixmark.harness.capabilities.kit.report import Report
    from mixmark.harness.contracts.schema import Result

STARTERS = ("session", "runner", "meter", "suite", *(("policy",) if "policies" in BUILT_IN else ()))
"""The kinds of starter packages. That of policies has its contract in a capability."""
REPORT = click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="Write the report to a file.")


def _installed(kind: str) -> Callable[[str], bool]:
    """Whether a plugin of a kind is installed under a name."""

    def recognises(word: str) -> bool:
        from mixmark.harness.plugins import registry

        return word in registry.find(kind)

    return recognises


@click.command(cls=Check, recognises=_installed("adapters"))
@click.argument("name", metavar="NAME|FILE:CLASS")
@timeout(60, "How long a worker may be silent, which is loading or compiling, before it counts as hung.")
@click.option("--device", metavar="ID", default="", help="Check this device only. By default one of each kind.")
@click.option(
    "--record",
    "recording",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write what the devices, their driver and the first steps told, without what looks like a name, a path or a "
    "serial number: the file to send of new silicon.",
)
@REPORT
@WAIT_IDLE
@CONFIG
@JSON
def check_adapter(
    name: str,
    timeout_s: float,
    device: str,
    recording: Path | None,
    out: Path | None,
    wait_idle_s: float | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Check whether an adapter keeps to its contract, by running all that it claims at the smoke tier.

    Each check is described in docs/capabilities/kit/conformance.md. The exit code is 1 if any of them failed.

    \b
    Examples: mixmark check acme
              mixmark check adapter ./acme.py:Acme --out conformance.json
              mixmark check torch --device gpu:xpu0 --record xpu.json
    """
    from mixmark.harness.capabilities.kit import adapter
    from mixmark.harness.plugins import registry

    redactor = None
    if recording is not None:
        if not recording.parent.is_dir():
            raise UsageError(f"there is no folder {recording.parent}", "give --record a file in a folder that exists")
        services = registry.find("services")
        if "redactor" not in services:
            raise UsageError("nothing that is installed removes private texts from a recording", "leave out --record")
        redactor = services["redactor"].load()()

    recorded = ""

    def keep(report: Report, result: Result | None) -> None:
        nonlocal recorded
        recorded = _recorded(report, result, redactor) if redactor else ""

    code = _run(
        lambda on_check: adapter.report(name, config, timeout_s, on_check, device, keep), out, wait_idle_s, as_json
    )
    if recording is not None:
        with explained(f"cannot write {recording}", "give --record another file"):
            recording.write_text(recorded, "utf-8")  # the report is shown by now: a full disk loses no result
        click.echo(f"The recording is in {recording}. Look into it before you send it.", err=as_json)
    sys.exit(code)


def _recorded(report: Report, result: Result | None, redactor: Any) -> str:
    """The recording of a first contact as JSON, without private texts."""
    from mixmark.harness.capabilities.kit.report import recording

    recorded = recording(report, result and redactor.result(result))
    content = redactor.content(recorded.model_dump(mode="json"))
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@click.command(cls=Placed, section="Check and extend")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(STARTERS),
    default="session",
    show_default=True,
    help="What it connects: a compiler or runtime that takes graphs, an engine or a server with a network of its own, "
    "or a source of energy readings; or what it adds: a workload, or a way to assign requests to devices.",
)
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="A folder that is new or empty; by default mixmark-NAME, and for a meter, a suite or a policy "
    "mixmark-NAME-KIND.",
)
def new(name: str, kind: Any, out: Path | None) -> None:
    """Write a package with an adapter, meter, suite or policy that runs: its test, its README and its checks for every
    commit.

    Example: mixmark new acme --kind session
    """
    from mixmark.harness.capabilities.kit import template

    folder = out or Path(template.package(kind, name))
    for path in template.write(kind, name, folder):
        click.echo(folder / path)


@click.command(cls=Check, recognises=_installed("meters"))
@click.argument("name", metavar="NAME|FILE:CLASS")
@REPORT
@WAIT_IDLE
@CONFIG
@JSON
def check_meter(name: str, out: Path | None, wait_idle_s: float | None, config: Path | None, as_json: bool) -> None:
    """Check whether a meter keeps to its contract, by reading it at rest and while all CPUs are busy.

    Each check is described in docs/capabilities/kit/conformance.md. The exit code is 1 if any of them failed.

    Example: mixmark check meter ./acme_power.py:AcmePower
    """
    from mixmark.harness.capabilities import kit

    sys.exit(_run(partial(kit.check_meter, name, config), out, wait_idle_s, as_json))


@click.command(cls=Check, recognises=_installed("suites"))
@click.argument("name", metavar="NAME|FILE:CLASS")
@REPORT
@WAIT_IDLE
@CONFIG
@JSON
def check_suite(name: str, out: Path | None, wait_idle_s: float | None, config: Path | None, as_json: bool) -> None:
    """Check whether a suite keeps to its contract, by running it with torch on the CPU at the smoke tier.

    Each check is described in docs/capabilities/kit/conformance.md. The exit code is 1 if any of them failed.

    Example: mixmark check suite ./acme.py:Acme
    """
    from mixmark.harness.capabilities import kit

    sys.exit(_run(partial(kit.check_suite, name, config), out, wait_idle_s, as_json))


def _run(
    kit: Callable[[Callable[[str], None]], Report], out: Path | None, wait_idle_s: float | None, as_json: bool
) -> int:
    """Runs a kit, which calls its argument with the name of each check, prints its report and returns the exit code."""
    from rich.console import Console

    from mixmark.harness.capabilities.kit.report import PAGE
    from mixmark.harness.cli.machine_lock import reserve

    if out is not None and not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}", "give --out a file in a folder that exists")
    console = Console(stderr=True)
    status = console.status("")  # shown on a terminal only
    show = status.update if console.is_terminal else console.print
    with reserve(Path.cwd(), "smoke", wait_idle_s), plugins_print_to_stderr(), status:
        report = kit(lambda name: show(f"checking {name}"))
    if out is not None:
        with explained(f"cannot write {out}", "give --out another file"):
            out.write_text(json.dumps(report.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n", "utf-8")
    if as_json:
        print_json({"passed": report.passed, **report.model_dump(mode="json")})
    else:
        rows = [(result.state, result.check, result.message) for result in report.verdicts]
        print_table(("result", "check", "observation"), rows, "There is nothing to check.")
        click.echo(f"\n{report.headline}. {PAGE} describes each check under its name.")
        if out is not None:
            click.echo(f"The report is in {out}.")
    return 0 if report.passed else 1
