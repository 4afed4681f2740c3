from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mixmark.harness.capabilities.policies.facts import ByPolicy, Policies
from mixmark.harness.capabilities.serving.attendant import ServedByPolicy
from mixmark.harness.capabilities.serving.contract import BY_PLAN
from mixmark.harness.capabilities.serving.process import policy_of
from mixmark.harness.contracts.errors import UsageError, choose_by_name
from mixmark.harness.contracts.schema import Phase, Result
from mixmark.harness.measure.executor import PhaseRequest
from mixmark.harness.measure.experiments import Experiment
from mixmark.harness.measure.request import MeasuredMachine, PreparedRun
from mixmark.harness.measure.run_state import Outlook, RunState
from mixmark.harness.plan import mixes
from mixmark.harness.plan.phases import key_of
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin


class ComparedPolicies(Experiment):
    name = "policies"
    takes_turns = True
    needs_mix = False

    def prepare(self, run: PreparedRun, given: Mapping[str, Any]) -> Mapping[str, Plugin]:
        """The policies that the run names. An error of their files comes before anything is measured."""
        names = given.get("policies", ())
        specs = {registry.name_of_spec(name): name for name in names if registry.is_spec(name)}
        known = registry.find("policies", specs.values())
        if run.resumed:
            names = Policies.model_validate(run.resumed.experiments[self.name]).policies
        chosen = choose_by_name("policy", [*(each for each in names if each not in specs.values()), *specs], known)
        for each in chosen:
            policy_of(known[each])
        others = run.request.experiments.keys() - {self.name}  # may also serve by them
        if not run.resumed and (run.request.machines or not (run.mix or others)):
            lacks = mixes.remedy(run.request.mix)
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

    def attendant(
        self, request: PhaseRequest, asked: Mapping[str, Any], prepared: Mapping[str, Plugin]
    ) -> ServedByPolicy:
        return ServedByPolicy(prepared[request.phase.told(ByPolicy).policy], request)
