"""What a reader should know before trusting a result: a tuple of small rules, each Result -> findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from harness import stats
from harness.schema import Finding, Result

DRIFT = 0.10  # a probe that moves further than this between its records: the machine changed speed
ABOVE_CEILING = 1.05  # the probe's own scatter may put an honest record a little above its ceiling


def finished(result: Result) -> Iterator[Finding]:
    """A failed attempt is invalid; refused or unsupported is a note; an interrupted run is a warning."""
    if not result.finished:
        yield Finding(rule="finished", severity="warning", about="run", message="interrupted; --resume goes on")
    for record in result.records:
        if error := record.error:
            hint = f" ({error.hint})" if error.hint else ""
            yield Finding(
                rule="finished",
                severity="invalid" if error.attempted else "note",
                about=record.key,
                message=f"{error.kind}: {error.message}{hint}",
            )


def energy_known(result: Result) -> Iterator[Finding]:
    yield Finding(
        rule="energy_known",
        severity="note",
        about="run",
        message="energy not measured: this version reads no meter, so there is no efficiency",
    )


def quality_audited(result: Result) -> Iterator[Finding]:
    yield Finding(
        rule="quality_audited",
        severity="note",
        about="run",
        message="quality not audited: this version does not compare the timed outputs with a reference",
    )


def enough_feeds(result: Result) -> Iterator[Finding]:
    """No tail percentile where the sample does not carry the lowest of them."""
    needed = stats.sample_needed(stats.LOWEST_TAIL)
    for record in result.records:
        if record.completions and record.route.suite != stats.PROBE and len(record.completions) < needed:
            yield Finding(
                rule="enough_feeds",
                severity="note",
                about=record.key,
                message=f"no tail percentile: p{stats.LOWEST_TAIL * 100:g} needs {needed} feeds",
            )


def ceiling_known(result: Result) -> Iterator[Finding]:
    """Why a record has no share of the roofline, or whose ceiling it was compared with."""
    known = stats.ceilings(result.records)
    for record in result.records:
        if record.completions and record.route.suite != stats.PROBE and (note := stats.achieved(record, known).note):
            yield Finding(rule="ceiling_known", severity="note", about=record.key, message=f"roofline: {note}")


def below_ceiling(result: Result) -> Iterator[Finding]:
    """A record faster than the roofline: the probe is too slow, or the record did not do its work."""
    known = stats.ceilings(result.records)
    for record in result.records:
        fraction = stats.achieved(record, known).fraction
        if fraction is not None and fraction > ABOVE_CEILING and record.route.suite != stats.PROBE:
            yield Finding(
                rule="below_ceiling",
                severity="warning",
                about=record.key,
                message=f"{fraction * 100:.0f} % of the roofline: the probe misses the ceiling, or work was left out",
            )


def speed_held(result: Result) -> Iterator[Finding]:
    """The same probe, before and after, within 10 %."""
    probed: dict[stats.CeilingKey, list[stats.Ceiling]] = defaultdict(list)
    for record in result.records:
        for key, ceiling in stats.ceilings([record]).items():
            probed[key].append(ceiling)
    for (device, adapter, precision), seen in probed.items():
        for rate, what in (("flops_per_s", "flop/s"), ("bytes_per_s", "byte/s")):
            rates = [value for ceiling in seen if (value := getattr(ceiling, rate)) is not None]
            if rates and max(rates) > min(rates) * (1 + DRIFT):
                yield Finding(
                    rule="speed_held",
                    severity="warning",
                    about=device,
                    message=f"the machine's speed drifted during the run: the probe by {adapter} in {precision} "
                    f"moved by {(max(rates) / min(rates) - 1) * 100:.0f} % in {what}",
                )


RULES: tuple[Callable[[Result], Iterator[Finding]], ...] = (
    finished,
    below_ceiling,
    speed_held,
    ceiling_known,
    enough_feeds,
    energy_known,
    quality_audited,
)


def findings(result: Result) -> tuple[Finding, ...]:
    return tuple(finding for rule in RULES for finding in rule(result))
