"""Whether a folder's facts can all be true of one run. A folder that contradicts itself is not shown.

It finds what was left out, doubled or relabelled in one place and not in the others. It cannot find what was changed
everywhere alike; docs/method.md says what that leaves to a forger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.schema import Record, Result


def contradictions(result: Result) -> Iterator[str]:
    """One sentence for each contradiction."""
    yield from _names(result)
    tiers = {each.route.tier for each in result.records} | ({result.mix.tier} if result.mix else set())
    for tier in sorted(tiers - {result.tier}):
        yield f"a run of the {result.tier} tier holds something of the {tier} tier"
    devices, domains = {each.id for each in result.devices}, {each.id for each in result.domains}
    for metering in result.meterings:
        for id in sorted((metering.samples.keys() | metering.lost.keys()) - domains):
            yield f"in {metering.phase} a meter read {id}, which is not among the domains"
    for record in result.records:
        if record.route.device not in devices:
            yield f"{record.key} ran on {record.route.device}, which is not among the devices"
        yield from _lacking(record)
        yield from _audit(record)
    yield from _plan(result)


def _names(result: Result) -> Iterator[str]:
    lists: dict[str, Sequence[str]] = {
        "devices": [each.id for each in result.devices],
        "domains": [each.id for each in result.domains],
        "phases": [each.name for each in result.phases],
        "meterings": [each.phase for each in result.meterings],
    }
    for what, names in lists.items():
        if len(set(names)) != len(names):
            yield f"two of the {what} have the same name"


def _lacking(record: Record) -> Iterator[str]:
    """The facts that every record with stamps has: without them the rules would find nothing."""
    if record.completions is None:
        return
    told = {"bracket_ns": record.bracket_ns, "feed_units": record.feed_units}
    if record.scenario == "mixed":
        told["skew_ns"] = record.skew_ns
    for name in (name for name, value in told.items() if value is None):
        yield f"{record.key} has stamps and no {name}"


def _audit(record: Record) -> Iterator[str]:
    """Each audited feed was finished, and is audited once."""
    audit, done = record.audit, len(record.completions) if record.completions is not None else 0
    if audit is None:
        return
    if audit.values and len(audit.values) != len(audit.feeds):
        yield f"{record.key} has {len(audit.values)} values of {len(audit.feeds)} audited feeds"
    if len(set(audit.feeds)) != len(audit.feeds) or len(audit.feeds) > audit.finished:
        yield f"{record.key} cannot have had the feeds {audit.feeds} drawn from {audit.finished}"
    if max((audit.finished, *(feed + 1 for feed in audit.feeds))) > done or min(audit.feeds, default=0) < 0:
        yield f"{record.key} finished {done} feeds, and others are said to be audited"


def _plan(result: Result) -> Iterator[str]:
    """Each record of a mixed phase was planned, and is there once: else its units would count twice."""
    planned = {
        (phase.name, share.key): share
        for phase in result.phases
        if phase.placement is not None
        for task in phase.tasks
        for share in task.shares
    }
    brackets: dict[str, tuple[int, int] | None] = {}
    played = set[tuple[str, str, str]]()
    for record in result.records:
        if record.scenario != "mixed":
            continue
        share, part = planned.get((record.phase, record.key)), (record.phase, record.route.suite, record.route.device)
        if share is None or (share.route, share.scenario, share.batch) != (record.route, "mixed", record.batch):
            yield f"{record.key} was not planned in {record.phase}"
        elif part in played:
            yield f"{record.route.suite} ran twice at once on {record.route.device} in {record.phase}"
        played.add(part)
        if record.completions is not None and brackets.setdefault(record.phase, record.bracket_ns) != record.bracket_ns:
            yield f"{record.key} did not begin and end with {record.phase}"
    runs = [max(share.run for task in each.tasks for share in task.shares) for each in result.phases if each.placement]
    if runs != list(range(1, len(runs) + 1)):
        yield f"the mixed runs are numbered {', '.join(map(str, runs))}: some were left out"
