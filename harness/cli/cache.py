"""The command that shows the cache of converted models and empties it."""

from __future__ import annotations

import click

from mixmark.harness.cli.options import JSON
from mixmark.harness.cli.printing import print_json, print_table
from mixmark.harness.contracts.numbers import counted, filesize


@click.command()
@click.option("--clear", is_flag=True, help="Remove all models that no run uses at this moment.")
@JSON
def cache(clear: bool, as_json: bool) -> None:
    """List the converted models that adapters keep, with their sizes and ages, or remove them.

    A model that is needed again is converted again. The environment variable MIXMARK_CACHE names another folder, and
    MIXMARK_CACHE_GB another limit. When the limit is reached, the models that were not used for longest are removed.

    \b
    Examples: mixmark cache
              mixmark cache --clear
    """
    import time

    from mixmark.harness.plugins import model_cache as models

    kept = models.entries()
    if clear:
        removed = [entry for entry in kept if models.remove(entry)]
        kept = [entry for entry in kept if entry not in removed]
    now_s = time.time()
    total_bytes = sum(entry.size_bytes for entry in kept)
    if as_json:
        listed = [
            {
                "name": entry.path.name,
                "bytes": entry.size_bytes,
                "unused_s": max(0, round(now_s - entry.used_s)),
                "whole": entry.whole,
            }
            for entry in kept
        ]
        limit = {"bytes": total_bytes, "limit_bytes": models.limit_bytes()}
        print_json({"folder": str(models.root()), **limit, "entries": listed})
        return
    if clear:
        freed_bytes = sum(entry.size_bytes for entry in removed)
        click.echo(f"Removed {len(removed)} of {counted(len(removed) + len(kept), 'entry')}, {filesize(freed_bytes)}.")
    rows = [
        (
            entry.path.name if entry.whole else f"{entry.path.name} (not whole)",
            filesize(entry.size_bytes),
            _ago(now_s - entry.used_s),
        )
        for entry in kept
    ]
    print_table(("converted model", "size", "last used"), rows, f"The cache {models.root()} is empty.")
    if rows:
        total = f"{filesize(total_bytes)} of at most {filesize(models.limit_bytes())}"
        click.echo(f"\n{total} in {models.root()}")


def _ago(seconds: float) -> str:
    for unit, length_s in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if (count := int(seconds // length_s)) > 0:
            return f"{counted(count, unit)} ago"
    return "just now"
