"""The command export."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from mixmark.harness.cli.options import CONFIG, JSON, TIER, Placed
from mixmark.harness.cli.printing import plugins_print_to_stderr, print_json, print_table
from mixmark.harness.contracts.numbers import filesize
from mixmark.harness.contracts.text import plain


@click.command(cls=Placed, section="Files and shell")
@click.argument("suite")
@TIER
@click.option(
    "--format",
    "format_name",
    default="safetensors",
    show_default=True,
    metavar="NAME",
    help="safetensors (weights and the JSON files beside them), or another that is installed.",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "fp16", "int8", "int4"]),
    default="fp32",
    show_default=True,
    help="What the weights are held in; only some formats hold int8 and int4.",
)
@click.option(
    "--bits",
    type=click.Choice(["16", "8", "4"]),
    help="The weight class, for an engine that quantises what it reads.  [default: the precision's]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A folder that is new.  [default: SUITE-TIER-FORMAT-PRECISION]",
)
@CONFIG
@JSON
def export(
    suite: str,
    tier: str,
    format_name: str,
    precision: str,
    bits: str | None,
    out: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Write a suite's weights to a folder, in files that other programs read.

    An engine that reads such files needs no converter for Mixmark. The folder appears when all of it is written, with
    the size and the SHA-256 of each file in mixmark.json. docs/capabilities/export.md says how to load it.

    \b
    Examples: mixmark export llm --tier edge --out llama
              mixmark export resnet50 --precision fp16
              mixmark export llm --tier edge --precision bf16 --bits 4
    """
    from mixmark.harness.capabilities.export import folder as exported
    from mixmark.harness.contracts.errors import UsageError, choose_by_name
    from mixmark.harness.contracts.schema import WeightClass, weight_class
    from mixmark.harness.machine import config as configuration
    from mixmark.harness.plugins import registry

    held = weight_class(precision)
    chosen = cast(WeightClass, int(bits)) if bits else held
    if chosen > held:
        raise UsageError(f"{precision} cannot hold weights of {chosen} bits", f"give --bits {held} or none")
    folder = out or Path(f"{suite}-{tier}-{format_name}-{precision}" + (f"-{chosen}-bit" if chosen < held else ""))
    suites, formats = registry.find("suites"), registry.find("formats")
    choose_by_name("suite", [suite], suites)
    choose_by_name("format", [format_name], formats)
    request = exported.ExportRequest(
        suite=suites[suite],
        tier=tier,
        options=configuration.load(config).suites.get(suite, {}),
        format=formats[format_name],
        precision=precision,
        weight_class=chosen,
    )
    with plugins_print_to_stderr():
        manifest = exported.export(
            request, folder, lambda stage: click.echo(f"{suite}, {tier}: {plain(stage)}", err=True)
        )
    if as_json:
        print_json(manifest)
        return
    rows = [(file["path"], f"{file['bytes']:,}", file["sha256"][:16]) for file in manifest["files"]]
    print_table(("file", "bytes", "SHA-256 begins with"), rows, "Nothing was written.")
    total_bytes = sum(file["bytes"] for file in manifest["files"])
    click.echo(f"\n{filesize(total_bytes)} in {plain(str(folder))}")
