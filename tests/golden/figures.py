"""Every figure of a judged result under a name of its own, for the golden test of figures.

The names belong to this file, not to the judge: a redesign of the judge changes how a figure is read here, and the
values in figures.json stay.

    python -m tests.golden.figures    writes figures.json; only a change of a formula needs that
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mixmark.harness.contracts.schema import Failure, Result
from mixmark.harness.judge import catalogue
from mixmark.harness.judge.assessment import Assessment, judge
from mixmark.harness.judge.compare.machines import compare_machines
from mixmark.harness.judge.references import ReferenceScore, reference
from mixmark.harness.judge.solo import Solo
from mixmark.harness.plan import mixes
from mixmark.harness.record import store
from mixmark.submissions import references
from mixmark.submissions.references import ENTRIES
from tests.fakes.folders import Maker
from tests.fakes.hosts import cluster
from tests.fakes.machine import EDGE, one_run
from tests.golden import sample
from tests.judge import test_caps, test_load
from tests.measure import test_dispatch

FILE = Path(__file__).with_name("figures.json")


def interrupted() -> Result:
    """A finished run as it stood after half of its records."""
    whole = Maker().result()
    half = whole.records[: len(whole.records) // 2]
    return whole.model_copy(update={"records": half, "finished": False})


def failed_in_the_mix() -> Result:
    whole = one_run(600.0)
    gone = Failure(kind="crashed", message="the worker died")
    records = tuple(
        each.model_copy(update={"cut_short": gone})
        if (each.scenario, each.route.suite, each.route.device) == ("mixed", "llm", "cpu:0")
        else each
        for each in whole.records
    )
    return whole.model_copy(update={"records": records})


def policies() -> Result:
    """The mix by the plan at three levels, and by another policy at one."""
    base = one_run(600.0)
    levels = [test_load.level_of(base, level) for level in test_load.LEVELS]
    return test_load.with_ladder(base, *levels, test_load.level_of(base, 0.5, "greedy"), policies=("greedy",))


def made() -> Mapping[str, Result]:
    """Results that are made up, by name."""
    return {
        "sample": sample.sample(),
        "folder": Maker().result(),
        "three runs": Maker().result(3),
        "interrupted": interrupted(),
        "metered": one_run(600.0, runs=3),
        "unmetered": one_run(None),
        "failed in the mix": failed_in_the_mix(),
        "ladder": policies(),
        "caps": test_caps.capped(one_run(600.0), (0.8, 0.9, 400), (0.6, 0.5, 380)),
        "drill": test_dispatch.with_drill(test_dispatch.drilled()),
        "hosts": cluster(),
        "scaling": cluster(("host1", "host2", "host3"), parts={1: 1.0, 2: 0.8}),
    }


def published() -> Iterator[tuple[str, Result]]:
    for folder in sorted(ENTRIES.glob("*/*/*/results/*")):
        yield folder.parents[2].name, store.open(folder)


def estimate(figure: Any) -> list[Any] | None:
    """An estimate with its bounds."""
    return None if figure is None else [figure.estimate, figure.low, figure.high, figure.is_bracket]


def of_rows(judged: Assessment) -> dict[str, Any]:
    return {
        row.key: {
            "status": row.status,
            "feeds": row.feeds,
            "units": row.units,
            "per s": row.units_per_s and row.units_per_s.estimate,
            "half width": row.units_per_s and row.units_per_s.half_width,
            "latency": list(vars(row.latency).values()),
            "first unit": list(vars(row.first_unit).values()),
            "per unit": list(vars(row.time_per_unit).values()),
            "gaps": [row.gap_p99, row.gap_most],
            "roofline": row.roofline_fraction,
            "energy": row.energy and [row.energy.boundary, row.energy.joules, row.energy.joules_per_unit],
            "watts": row.energy and [row.energy.watts, *row.energy.idle_watts, row.energy.edge_uncertainty],
        }
        for row in judged.runs
    }


def of_rate(solo: Solo | None) -> list[float | None]:
    rate = solo.units_per_s if solo else None
    return [rate.estimate, rate.half_width] if rate else [None, None]


def of_solos(judged: Assessment) -> dict[str, Any]:
    """The solo measurements over their runs."""
    return {
        row.key: [*of_rate(row), row.runs, row.median_per_s, list(row.batches)]
        for row in (*judged.solos, *judged.hosted)
    }


def of_run(run: Any) -> dict[str, Any]:
    return {
        "window": [run.begin_ns, run.end_ns, run.clock_bound_ns],
        "mixes per hour": estimate(run.mixes_per_hour),
        "mixes per kWh": estimate(run.mixes_per_kwh),
        "mixes": [run.mixes, run.surplus, run.coarseness, run.steady],
        "energy": [run.total.boundary, run.total.joules, run.total.watts, run.total.edge_uncertainty],
        "suites": {
            each.suite: [each.units, each.mixes, each.mixes_begun, each.timestamps, each.feeds, each.late]
            for each in run.suites
        },
        "problems": len(run.problems),
    }


def of_score(judged: Assessment) -> dict[str, Any] | None:
    score = judged.score
    if score is None:
        return None
    return {
        "mixes per hour": estimate(score.mixes_per_hour),
        "mixes per kWh": estimate(score.mixes_per_kwh),
        "boundary": score.boundary,
        "watts": score.watts,
        "grade": [score.grade, score.weight_class, len(score.missing), len(score.unranked)],
        "left out": list(score.left_out),
        "median run": run.phase if (run := score.median_run()) else None,
        "problems": len(score.problems),
        "runs": {run.phase: of_run(run) for run in score.runs},
    }


def of_diagnoses(judged: Assessment) -> dict[str, Any]:
    return {
        phase: {
            "bound": [found.bound_per_hour.estimate, found.bound_per_hour.half_width, found.bound_is_estimate],
            "kappa": estimate(found.kappa),
            "busy": dict(found.busy),
            "parts": {
                f"{part.suite} {part.device}": [part.planned, part.units_per_s, part.solo_units_per_s, part.retained]
                for part in found.parts
            },
            "gain": [found.best_kind, found.heterogeneity_gain],
            "other plan": found.other_plan and found.other_plan.mixes_per_s,
            "faster": [f"{part.suite} {part.device}" for part in found.faster],
        }
        for phase, found in judged.diagnoses.items()
    }


def of_experiments(judged: Assessment) -> dict[str, Any]:
    ladder, drill, frontier = judged.ladder, judged.drill, judged.frontier
    return {
        "scaling": [
            [*step.hosts, estimate(step.mixes_per_hour), estimate(step.mixes_per_kwh), step.efficiency]
            for step in judged.scaling
        ],
        "ladder": ladder
        and {
            "watts": [ladder.watts, ladder.ready_watts, ladder.bare_watts, ladder.idle_over_full, ladder.departure],
            "mixes per kWh": [ladder.mixes_per_kwh, ladder.goodput],
            "levels": [
                [level.policy, level.target, level.actual, level.keeps_limits, level.delay_ns, len(level.problems)]
                + [[each.suite, each.arrived, each.answered, each.p50_ns, each.p99_ns] for each in level.responses]
                for level in ladder.levels
            ],
        },
        "policies": [[each.policy, estimate(each.mixes_per_hour), estimate(each.gain)] for each in judged.policies],
        "drill": drill
        and [
            *(drill.before_per_hour, drill.without_per_hour, drill.after_per_hour, drill.best_without_per_hour),
            *(drill.coped_after_ns, drill.lost_feeds, len(drill.problems)),
        ],
        "caps": frontier
        and [frontier.best, [[run.cap, run.binds, estimate(run.run.mixes_per_kwh)] for run in frontier.runs]],
    }


def of_assessment(judged: Assessment) -> dict[str, Any]:
    """The figures of one result. Findings count by severity, so that a rule may be renamed."""
    known = reference(judged.result, judged.score, "this", judged.solos)
    return {
        "verdict": [judged.verdict.word, judged.exit_code],
        "invalid": sorted({each.about for each in judged.findings if each.severity == "invalid"}),
        "rows": of_rows(judged),
        "solo measurements": of_solos(judged),
        "ceilings": [list(vars(each).values()) for each in judged.ceilings],
        "matrix": judged.matrix
        and {suite: [[each.ratio, each.per_s] for each in found] for suite, found in judged.matrix.rows},
        "score": of_score(judged),
        "runs": of_diagnoses(judged),
        "experiments": of_experiments(judged),
        "retained": list(catalogue.retained(judged)),
        "reference": known and {suite: rate.units_per_s for suite, rate in known.alone.items()},
    }


def of_machine(judged: Assessment) -> dict[str, Any]:
    """The speeds that the planner takes from a result."""
    assert judged.result.mix is not None
    machine = catalogue.measured_machine("this", judged, judged.result.mix, 16)
    return {
        kind.name: [
            [each.suite, each.units_per_s.estimate, each.units_per_s.half_width, each.extra_watts, each.memory_bytes]
            for each in kind.speeds
        ]
        + [kind.idle_watts, kind.owned, kind.threads, dict(kind.pool_bytes)]
        for kind in machine.kinds
    }


def of_comparison(judged: Mapping[str, Assessment]) -> dict[str, Any]:
    """The published machines side by side."""

    def ratio(found: Any) -> list[Any] | None:
        return None if found is None else [found.estimate, found.low, found.high]

    compared = compare_machines([(name, [each]) for name, each in judged.items()])
    return {
        "mixes per hour": [ratio(each) for each in compared.mixes_per_hour],
        "rows": [
            [row.work.suite, *([*of_rate(each.solo), ratio(each.relative)] for each in row.known)]
            for row in compared.rows
        ],
        "verdicts": {label: [test.verdict for test in tests] for label, tests in compared.verdicts.items()},
    }


def of_entries() -> dict[str, Any]:
    """The figures of the published entries: as their boards and the shipped references have them."""
    return {
        entry.path: {
            "reference": of_reference(references.reference(entry)),
            "division": [entry.division, entry.ranked, entry.grade],
            "solo": [
                [
                    each.route.suite,
                    each.route.device,
                    estimate(each.units_per_s),
                    each.energy and each.energy.joules_per_unit,
                ]
                for each in entry.solos
            ],
            "runs": [[run.phase, estimate(run.mixes_per_hour), run.watts] for run in entry.runs],
        }
        for entry in references.published()
    }


def of_reference(known: ReferenceScore) -> dict[str, Any]:
    mixes_per_hour, mixes_per_kwh = known.mixes_per_hour, known.mixes_per_kwh
    return known.model_dump(mode="json") | {
        "mixes_per_hour": mixes_per_hour.estimate,
        "interval": None if mixes_per_hour.half_width is None else list(mixes_per_hour.ends),
        "mixes_per_kwh": mixes_per_kwh and mixes_per_kwh.estimate,
    }


@cache
def figures() -> dict[str, Any]:
    """All figures, as JSON has them."""
    found: dict[str, Any] = {}
    with patch.object(mixes, "frozen", lambda: {"edge-9": EDGE}):
        found |= {name: of_assessment(judge(result)) for name, result in made().items()}
        found["machine"] = of_machine(judge(one_run(600.0)))
    entries = {name: judge(result) for name, result in published()}
    found |= {name: of_assessment(judged) | {"machine": of_machine(judged)} for name, judged in entries.items()}
    found["comparison"] = of_comparison(entries)
    found["entries"] = of_entries()
    data: dict[str, Any] = json.loads(json.dumps(found))
    return data


def written() -> str:
    """One line for each figure that has a name."""
    lines = [f"  {json.dumps(name)}: {json.dumps(values, ensure_ascii=False)}" for name, values in flat(figures())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield from flat(value, f"{path} / ")
        else:
            yield path, value


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
