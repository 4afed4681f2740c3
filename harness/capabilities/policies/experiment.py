from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.schema import BY_PLAN, Fact, Finding, Phase, Result
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.findings import found, in_full
from mixmark.harness.judge.mixed_run import run_of, slowdown
from mixmark.harness.judge.statistics.intervals import over_runs
from mixmark.harness.measure.executor import LocalExecutor, PhaseRequest, ServedByPolicy
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.stages import Outlook, RunState
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.experiments import Experiment, fact
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.worker.plugin_process import policy_of
from mixmark.reporters import figures as written
from mixmark.reporters.figures import UNKNOWN, significant

SLOW = 1.05
"""How many times slower a device must be in a run by a policy for the report to say so."""


class Policies(Fact):
    """The policies that are compared with the plan: the mix is also run by each of them."""

    policies: tuple[str, ...]


class ByPolicy(Fact):
    """The policy that assigned the work of a phase."""

    policy: str


@dataclass(frozen=True)
class PolicyRuns:
    """The mix run by another policy than the plan."""

    policy: str
    """The policy that assigned the work to devices."""
    mixes_per_hour: Estimate | None
    """If None, `problems` says why."""
    gain: Estimate | None
    """TX by the plan over TX by the policy, over the pairs of runs. TX by the policy counts as if no device had been
    slower than in the plan's run."""
    slowdown: float
    """How many times slower a device was in a run by the policy than in the plan's run, at most. 1: none was."""
    problems: tuple[Finding, ...]
    """Why the figures are not known. Empty if they are."""


def policy_runs(judged: Assessment) -> tuple[PolicyRuns, ...]:
    """The runs of each policy, beside the plan's runs in the same minutes."""
    result, score = judged.result, judged.score
    if score is None:
        return ()
    compared = []
    ran = [(phase, phase.told(ByPolicy).policy) for phase in result.phases if phase.experiment == "policies"]
    for policy in Policies.model_validate(result.experiments["policies"]).policies:
        phases = [phase for phase, own in ran if own == policy]
        runs = [run for phase in phases if (run := run_of(result, score.mix, phase, judged.doubts)) is not None]
        problems = [*score.problems, *(problem for run in runs for problem in run.problems)]
        ended = {run.phase for run in runs}
        names = [phase.name for phase in phases] or [policy]
        problems += [found("mix_complete.unfinished", phase=name) for name in names if name not in ended]
        figure = gain = None
        pairs = list(zip(score.runs, runs, strict=False))
        slower = [slowdown(result, planned.phase, run.phase) for planned, run in pairs]
        if not problems:
            figure = _over([run.mixes_per_hour.estimate for run in runs])
            ratios = [planned.mixes_per_hour.estimate / run.mixes_per_hour.estimate for planned, run in pairs]
            gain = _over([ratio / by for ratio, by in zip(ratios, slower, strict=True)])
        compared.append(PolicyRuns(policy, figure, gain, max(slower, default=1.0), tuple(problems)))
    return tuple(compared)


def _over(values: Sequence[float]) -> Estimate | None:
    return over_runs(values) if values and min(values) > 0 else None


class ComparedPolicies(Experiment):
    name = "policies"
    facts = (Policies, ByPolicy)
    takes_turns = True
    needs_mix = False

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> Mapping[str, Plugin]:
        """The policies that the run names. An error of their files comes before anything is measured."""
        names = given.get("policies", ())
        specs = {registry.name_of_spec(name): name for name in names if registry.is_spec(name)}
        known = registry.find("policies", specs.values())
        of_run = fact(run.resumed, self.name, "policies", ()) if run.resumed else names
        chosen = choose_by_name("policy", [*(each for each in of_run if each not in specs.values()), *specs], known)
        for each in chosen:
            policy_of(known[each])
        others = run.request.experiments.keys() - {self.name}  # may also serve by them
        if not run.resumed and (run.request.machines or not (run.mix or others)):
            lacks = "it needs a mix: leave --mix none away"
            if run.request.machines:
                lacks = "it does not run on several hosts"
            raise UsageError("--policy runs or serves a mix on this machine", hint=lacks)
        return {each: known[each] for each in chosen if each != BY_PLAN}

    def asked(self, run: PreparedRun, machine: MeasuredMachine, header: Result, given: Mapping[str, Any]) -> Policies:
        return Policies(policies=tuple(run.experiments[self.name]))

    def next(self, state: RunState) -> list[Phase]:
        """The mix by the first policy that ran it less often than the plan did."""
        runs = Counter(phase.told(ByPolicy).policy for phase in state.of(self.name))
        for policy in state.asked(self.name, Policies).policies:
            if runs[policy] < len(state.mixed):
                run = runs[policy] + 1
                return [
                    state.experiment(self.name, ByPolicy(policy=policy), state.phase(key_of(f"{policy}{run}"), run))
                ]
        return []

    def rounds(self, run: Outlook) -> int:
        return len(run.asked(self.name, Policies).policies) * run.preset.runs

    def prefix(self, phase: Phase) -> str:
        return f"in the mix by {phase.told(ByPolicy).policy}"

    def attendant(self, request: PhaseRequest, executor: LocalExecutor) -> ServedByPolicy:
        return ServedByPolicy(executor.prepared[self.name][request.phase.told(ByPolicy).policy], request)

    def figures(self, judged: Assessment) -> tuple[PolicyRuns, ...] | None:
        return policy_runs(judged) or None

    def lines(self, judged: Assessment, figures: Sequence[PolicyRuns]) -> Iterator[tuple[str, str]]:
        for each in figures:
            yield f"plan over {written.name(each.policy)}", _gain(each)


def _gain(policy: PolicyRuns) -> str:
    if policy.problems or policy.gain is None:
        return f"not known: {'; '.join(map(in_full, policy.problems)) or 'no pair of runs'}"
    within = f" {written.within(policy.gain)}" if policy.gain.half_width else "; one pair of runs has no interval"
    by = UNKNOWN if policy.mixes_per_hour is None else significant(policy.mixes_per_hour.estimate)
    slower = f"; its devices were up to {significant(policy.slowdown)} × slower, which is left out of the gain"
    return f"{significant(policy.gain.estimate)} × its {by} mixes per hour{within}" + slower * (policy.slowdown > SLOW)
