"""What a shell completes: names of plugins and mixes. What is heavy is imported when a name is completed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from mixmark.harness.plugins.registry import Kind

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(listed: Callable[[], Iterable[str]], or_file: bool = False) -> Completer:
    """Completes one of the names; with `or_file`, a word that looks like a path becomes the name of a file."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        if or_file and (begun.startswith(".") or "/" in begun):
            return [CompletionItem(begun, type="file")]
        return [CompletionItem(name) for name in listed() if name.startswith(begun)]

    return complete


def plugins(kind: Kind, or_file: bool = False) -> Completer:
    """Completes the name of an installed plugin."""

    def listed() -> Iterable[str]:
        from mixmark.harness.plugins import registry

        return registry.find(kind)

    return names(listed, or_file)


def _precisions() -> Iterable[str]:
    from mixmark.harness.contracts.schema import BITS_PER_WEIGHT

    return BITS_PER_WEIGHT


def _mixes() -> Iterable[str]:
    from mixmark.harness.plan import mixes
    from mixmark.harness.plugins.manifest import BUILT_IN

    return [*(name for name, mix in mixes.frozen().items() if mix.units.keys() <= BUILT_IN["suites"].keys()), "none"]


SUITE = plugins("suites")
ADAPTER = plugins("adapters", or_file=True)
METER = plugins("meters", or_file=True)
PRECISION = names(_precisions)
SCENARIO = names(lambda: ("single-stream", "offline", "server"))
MIX = names(_mixes, or_file=True)
