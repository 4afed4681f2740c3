"""The hosts of a run for a reader."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mixmark.harness.contracts.device_ids import host_of
from mixmark.harness.contracts.schema import Hosts, Result, System
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.solo import Solo, best, by_suite, matrix
from mixmark.reporters import figures
from mixmark.reporters.document import Table

MOST = 12  # hosts that are named; the others are in the JSON. Of more hosts, equal devices are one row
EQUAL = "Equal devices: the slowest and the fastest of each suite have rows of their own below; failed ones are named"


def subject(result: Result) -> str:
    """The subject of the sentence that says what was measured."""
    hosts, machines = len(result.systems), sum(group.count for group in result.groups)
    if hosts == 1 or machines == 1:
        return "This machine" if hosts == 1 else f"This machine, as {hosts} hosts,"
    return f"This cluster of {hosts} hosts" + ("" if machines == hosts else f" on {machines} machines")


def label(group: Hosts) -> str:
    """`2 hosts: host1, host2`, and `on 1 machine` if they share it; `machine` for the machine that led its own run."""
    names = [name for name in group.names if name]
    shared = "" if group.machines is None else f" on {figures.counted(group.machines, 'machine')}"
    return f"{figures.counted(len(names), 'host')}{shared}: {_first(names)}" if names else "machine"


def described(system: System) -> str:
    """Acme Quartz · 32 threads · 64.0 GiB · Example Linux 12 · 6.12.0 x86_64."""
    memory = None if system.memory_bytes is None else figures.gibibytes(system.memory_bytes)
    threads = None if system.cpu_threads is None else figures.counted(system.cpu_threads, "thread")
    parts = (system.cpu_model, threads, system.quota_in_words, memory, system.operating_system, system.kernel)
    return " · ".join(figures.name(part) for part in (*parts, system.virtualization, system.container) if part)


def models(result: Result) -> dict[str, tuple[object, ...]]:
    """What equal devices have in common, by the id of each device. Empty for up to `MOST` hosts."""
    cpu = {host: system.cpu_model for host, system in result.systems.items()}
    devices = result.devices if len(cpu) > MOST else ()
    return {it.id: (it.kind, it.name, cpu.get(host_of(it.id)), it.memory_bytes, len(it.cores)) for it in devices}


def equal(assessment: Assessment) -> list[list[Solo]]:
    """The rates of each route on equal devices, the slowest first. Empty for up to `MOST` hosts."""
    of, found = models(assessment.result), defaultdict[object, list[Solo]](list)
    for row in (row for row in assessment.solos if row.has_rate and row.route.device in of):
        found[of[row.route.device], row.route.suite, *row.route.key[2:], row.scenario, row.status].append(row)
    return [sorted(rows, key=lambda row: row.speed) for rows in found.values()]


def table(assessment: Assessment) -> Table:
    """A row for each route on equal devices. Empty for up to `MOST` hosts."""
    names, rows = figures.device_names(assessment.result), list[tuple[str, ...]]()
    for alike in equal(assessment):
        suite, device, *by = alike[0].route.key
        route = " ".join(map(figures.name, filter(None, (alike[0].device_name, *by, alike[0].scenario))))
        rates = (figures.throughput(row)[0] for row in (alike[0], alike[len(alike) // 2], alike[-1]))
        rows.append((figures.name(suite), route, names[device], f"{len(alike):,}", *rates))
    return Table(EQUAL, ("suite", "route", "slowest", "devices", "lowest", "median", "highest"), rows, 3)


def shown(assessment: Assessment) -> dict[str, str]:
    """The names of the devices with rows of their own, by id: of all devices of up to `MOST` hosts."""
    of, names = models(assessment.result), figures.device_names(assessment.result)
    behind = [(rows[0].speed / rows[len(rows) // 2].speed, rows[0].route.device) for rows in equal(assessment)]
    in_mix = [(part.retained or 1.0, part.device) for run in assessment.diagnoses.values() for part in run.parts]
    slowest = [{of.get(id): id for _, id in sorted(each, reverse=True)}.values() for each in (behind, in_mix)]
    fastest = (row.route.device for row in best(assessment.solos, by_suite).values())
    chosen = {*slowest[0], *slowest[1], *fastest}
    return {id: name for id, name in names.items() if not of or id in chosen}


def condensed(assessment: Assessment) -> Assessment:
    """Only the rows of the devices that are shown."""
    names = shown(assessment)
    runs = tuple(row for row in assessment.runs if row.route.device in names)
    solos = tuple(row for row in assessment.solos if row.route.device in names)
    ceilings = tuple(ceiling for ceiling in assessment.ceilings if ceiling.device in names)
    return replace(assessment, runs=runs, solos=solos, ceilings=ceilings, matrix=matrix(assessment.result, solos))


def folded(notes: Iterable[tuple[str, str, str]], result: Result) -> Iterator[tuple[str, str, str]]:
    """(state, subject, text). Of more than `MOST` hosts, notes that differ only in hosts and numbers are one."""
    alike, many = defaultdict[object, list[tuple[str, str, str]]](list), len(result.systems) > MOST
    varied = re.compile(rf"\b(?:{'|'.join(map(re.escape, filter(None, result.systems)))})\b(?:/[\w:.-]+)?|\d[\d.,]*")
    for number, note in enumerate(notes):
        alike[varied.sub("#", "\n".join(note)) if many else number].append(note)
    for (state, about, text), *others in alike.values():
        more = len({text, *(note[2] for note in others)}) - 1
        yield state, _first([about, *(note[1] for note in others)]), text + (f" (and {more:,} alike)" if more else "")


def _first(names: Iterable[str]) -> str:
    """The first names, each once, and how many more there are."""
    names = [*dict.fromkeys(names)]
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST:,} more" if len(names) > MOST else "")
