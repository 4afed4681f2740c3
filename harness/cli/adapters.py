"""The commands about adapters: `mixmark adapters` lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixmark.harness.cli import complete
from mixmark.harness.cli.options import (
    ADAPTER,
    CONFIG,
    JSON,
    REPORT,
    WAIT_IDLE,
    SectionedGroup,
    refuse_before_subcommand,
    timeout,
)
from mixmark.harness.cli.printing import print_absent, print_json, print_table, run_kit
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from mixmark.harness.contracts.schema import Result
    from mixmark.harness.measure.conformance.report import Report


@click.group(cls=SectionedGroup, invoke_without_command=True)
@ADAPTER
@CONFIG
@JSON
@click.pass_context
def adapters(context: click.Context, adapters: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """List the adapters, where each was installed from and which devices it reaches.

    If an adapter that was named by --adapter fails before it lists its devices, the exit code is 1.

    Example: mixmark adapters --adapter ./acme.py:Acme
    """
    if context.invoked_subcommand:
        refuse_before_subcommand(context)
        return
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.discover import setup

    configured = configuration.load(config)
    chosen = setup.choose_adapters(adapters, configured)
    found = setup.find_devices(adapters, configured)
    failed = bool(adapters) and not chosen.keys() <= found.environments.keys()
    listed: list[dict[str, Any]] = [
        {
            "name": plugin.name,
            "spec": plugin.spec or (environment.spec if environment else ""),
            "origin": environment.origin if environment else plugin.origin,
            "python": configured.adapter(plugin.name).python,
            "options": dict(configured.adapter(plugin.name).options),
            "devices": [target.device.id for target in found.targets if target.adapter == plugin.name],
            "environment": environment.model_dump(mode="json") if environment else None,
        }
        for plugin in chosen.values()
        for environment in (found.environments.get(plugin.name),)
    ]
    if as_json:
        print_json({"adapters": listed, "absent": [source.model_dump() for source in found.absent]})
        context.exit(int(failed))
    rows = [
        [plain(row[key]) or "–" for key in ("name", "origin", "spec")] + [", ".join(row["devices"]) or "–"]
        for row in listed
    ]
    print_table(("adapter", "installed from", "class", "devices"), rows, "There is no adapter.")
    print_absent(found.absent)
    context.exit(int(failed))


@adapters.command()
@click.argument("name", metavar="NAME|FILE:CLASS", shell_complete=complete.ADAPTER)
@click.option(
    "--kind",
    type=click.Choice(["adapter", "suite"]),
    default="adapter",
    show_default=True,
    help="Check an adapter, or a suite that adapters run.",
)
@timeout(60, "How long a worker may be silent, which is loading or compiling, before it counts as hung.")
@click.option("--device", metavar="ID", default="", help="Check this device only. By default one of each kind.")
@click.option(
    "--record",
    "recording",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write what the devices, their driver, the meters and the first steps told, without names, paths and serial "
    "numbers: the file to send of new silicon.",
)
@REPORT
@WAIT_IDLE
@CONFIG
@JSON
def check(
    name: str,
    kind: str,
    timeout_s: float,
    device: str,
    recording: Path | None,
    out: Path | None,
    wait_idle_s: float | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Check whether an adapter or a suite keeps to its contract, by running all that it claims at the smoke tier.

    Each check is described in docs/vendors/conformance.md. The exit code is 1 if any of them failed.

    \b
    Examples: mixmark adapters check acme
              mixmark adapters check ./acme.py:Acme --out conformance.json
              mixmark adapters check torch --device gpu:xpu0 --record xpu.json
              mixmark adapters check resnet50 --kind suite
    """
    import sys

    from mixmark.harness.cli.machine_lock import reserve
    from mixmark.harness.measure.conformance import adapter, check_suite

    if kind == "suite":
        if device or recording:
            raise UsageError("a suite is checked on the CPU alone", "leave out --device and --record")
        with reserve(Path.cwd(), "smoke", wait_idle_s):
            sys.exit(run_kit(lambda on_check: check_suite(name, config, on_check), out, as_json))
    if recording is not None and not recording.parent.is_dir():
        raise UsageError(f"there is no folder {recording.parent}", "give --record a file in a folder that exists")

    recorded = ""

    def keep(report: Report, result: Result | None) -> None:
        nonlocal recorded
        recorded = _recorded(report, result, config) if recording else ""

    with reserve(Path.cwd(), "smoke", wait_idle_s):
        code = run_kit(lambda on_check: adapter.report(name, config, timeout_s, on_check, device, keep), out, as_json)
    if recording is not None:
        try:
            recording.write_text(recorded, "utf-8")  # the report is shown by now: a full disk loses no result
        except OSError as error:
            raise UsageError(
                f"{recording} cannot be written: {error.strerror}", "give --record another file"
            ) from error
        click.echo(f"The recording is in {recording}. Look into it before you send it.", err=as_json)
    sys.exit(code)


def _recorded(report: Report, result: Result | None, config: Path | None) -> str:
    """The recording of a first contact as JSON, without private texts."""
    from mixmark.harness.discover import config as configuration
    from mixmark.harness.measure.conformance import first_contact
    from mixmark.submissions import redact

    redactor = redact.Redactor(redact.own_names())
    sources, absent = first_contact.read_meters(report.devices, report.name, configuration.load(config))
    recorded = first_contact.record(report, result and redact.redacted(result, redactor), sources, absent)
    content = redactor.content(recorded.model_dump(mode="json"))
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@adapters.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["session", "runner", "endpoint", "meter", "suite", "policy"]),
    default="session",
    show_default=True,
    help="What it connects: a compiler or runtime that takes graphs, an engine with a network of its own, a server, or "
    "a source of energy readings; or what it adds: a workload, or a way to assign requests to devices.",
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

    Example: mixmark adapters new acme --kind session
    """
    from mixmark.harness.cli import template

    folder = out or Path(template.package(kind, name))
    for path in template.write(kind, name, folder):
        click.echo(folder / path)
