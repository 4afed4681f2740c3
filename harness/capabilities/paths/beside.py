"""The phase of the mix beside copies: which path they take, and who copies."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from operator import itemgetter

from mixmark.harness.capabilities.paths.facts import NAME, CopyWork
from mixmark.harness.capabilities.paths.figures import paths
from mixmark.harness.capabilities.paths.measuring import HELD, Data, SteadyCopies
from mixmark.harness.capabilities.paths.process import PathProcess
from mixmark.harness.contracts.errors import MixmarkError, Unsupported
from mixmark.harness.contracts.schema import HOST_POOL, Absent, Fact, Phase, Record
from mixmark.harness.measure.stages import RunState, Steps
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.experiments import Attendant
from mixmark.harness.resources.memory import available_bytes

BESIDE = "copies beside the mix"


def planned(state: RunState) -> Steps:
    """The mix once more, while copies take a path between memories."""
    if not state.mixed or state.of(NAME) or state.is_absent(BESIDE, "path"):
        return ()
    if state.result.hosts:
        return (_absent("a run over several hosts makes no copies beside the mix"),)
    if (work := _slowest(state)) is None:
        return (_absent("no direct path between memories in use was measured"),)
    return (state.experiment(NAME, work, state.phase("path")),)


def _absent(reason: str) -> Absent:
    return Absent(kind="path", name=BESIDE, reason=reason)


def _slowest(state: RunState) -> CopyWork | None:
    """Copies on the slowest direct path between two memories that the plan uses, by Mixmark's own code; between devices
    and the host, if such a path was measured. Their size is the smallest that reaches memory, or else the largest."""
    used = {device for parts in state.plan.fractions.values() for device, part in parts.items() if part}
    memories = {HOST_POOL, *used, *(device.memory_pool for device in state.result.devices if device.id in used)}
    found: list[tuple[bool, float, CopyWork]] = []
    for figures in paths(state.result):
        path = figures.path
        direct = path.route == "direct" and not path.converts and {path.source, path.destination} <= memories
        if figures.sizes and direct and not figures.opposing and not figures.own_code:
            size = next((each for each in figures.sizes if each.memory == "memory"), figures.sizes[-1])
            work = CopyWork(path=path.id, size_bytes=size.size_bytes)
            found.append((path.source != path.destination, 1 / size.bytes_per_s, work))
    return max(found, key=itemgetter(0, 1))[2] if found else None


@contextmanager
def beside(work: CopyWork) -> Iterator[tuple[SteadyCopies, int]]:
    """Copies that can go on beside a phase, and the process that makes them. Raises MixmarkError."""
    plugin = registry.find("paths").get(work.path.partition("/")[0])
    if plugin is None:
        raise Unsupported(f"the plugin of the path {work.path} is no longer here", "start a new run")
    if work.size_bytes * HELD > available_bytes():
        raise Unsupported(f"copies of {work.size_bytes} bytes do not fit into the memory that the mix leaves free")
    with closing(PathProcess(plugin)) as process:
        yield SteadyCopies(work, process, Data(secrets.randbits(64))), process.pid


class Copying(Attendant):
    """Copies while the window of a phase is open. Copies that cannot begin are absent, and the phase counts."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase.name
        self.work = phase.told(CopyWork)
        self.copies: SteadyCopies | None = None
        self.why = ""

    def ready(self, stack: ExitStack, pids: list[int]) -> None:
        try:
            self.copies, pid = stack.enter_context(beside(self.work))
            pids.append(pid)
        except MixmarkError as error:
            self.why = str(error)

    def window(self) -> AbstractContextManager[object]:
        return self.copies.going_on() if self.copies else nullcontext()

    def found(self, records: Sequence[Record]) -> Iterable[Fact | Absent]:
        window_ns = next((each.parent_window_ns for each in records if each.parent_window_ns), None)
        if self.why:
            yield _absent(self.why)
        elif self.copies and window_ns:
            yield self.copies.record(self.phase, *window_ns)
