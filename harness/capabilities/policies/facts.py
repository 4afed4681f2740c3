"""What a run keeps of the policies that its mix is also run by."""

from __future__ import annotations

from mixmark.harness.contracts.schema import Fact
from mixmark.harness.plugins.experiments import Facts


class Policies(Fact):
    """The policies that are compared with the plan: the mix is also run by each of them."""

    policies: tuple[str, ...]


class ByPolicy(Fact):
    """The policy that assigned the work of a phase."""

    policy: str


FACTS = Facts(of_run=Policies, of_phase=ByPolicy)
