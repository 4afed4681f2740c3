"""What an experiment calls on hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

from mixmark.harness.capabilities.hosts import agents
from mixmark.harness.capabilities.hosts.agents import Agents
from mixmark.harness.capabilities.hosts.messages import AgentCalls
from mixmark.harness.contracts.errors import MixmarkError
from mixmark.harness.contracts.schema import Fact
from mixmark.harness.worker import calls
from tests.capabilities.hosts.stand_ins import StandIn, StandInLauncher


class Named(Fact):
    ids: ClassVar = ("device",)
    device: str


class OnHost(Protocol):
    def turn(self, *, given: Named) -> Named: ...

    def told(self) -> tuple[str, ...]: ...


class Own(AgentCalls, OnHost, Protocol): ...


class Turning(StandIn):
    interface = Own

    def __init__(self, turn: Callable[[Named], Any]) -> None:
        super().__init__()
        self.turned, self.given = turn, list[str]()

    def turn(self, *, given: Named) -> Any:
        self.given.append(given.device)
        return self.turned(given)

    def told(self) -> tuple[str, ...]:
        return tuple(self.given)


@pytest.mark.usefixtures("jumping_clock")
def test_a_call_and_its_reply_have_the_names_of_the_run_and_a_host_that_breaks_the_protocol_is_lost(
    tmp_path: Path,
) -> None:
    def odd(given: Named) -> object:
        stand_ins["odd"].write(b'{"reply": "turn", "value": 7}\n')
        return calls.Later()

    stand_ins = {
        "fine": Turning(lambda given: Named(device=given.device[::-1])),
        "odd": Turning(odd),
        "silent": Turning(lambda given: calls.Later()),
    }
    launcher = StandInLauncher(tmp_path, stand_ins)
    with Agents(launcher, launcher.hosts, tmp_path) as started:
        assert started.ask(OnHost.turn, "fine", given=Named(device="fine/npu")) == Named(device="fine/upn")
        assert started.ask(OnHost.told, "fine") == ("npu",)
        for host, why in (
            ("odd", "its agent broke the protocol: the reply to turn has a wrong field"),
            ("silent", f"no reply came within {agents.REPLIES_WITHIN_S:.0f} s"),
        ):
            with pytest.raises(MixmarkError, match=f"the host {host} sent no reply: {why}"):
                started.ask(OnHost.turn, host, given=Named(device="npu"))
        assert started.present == ["fine"]
    assert len(stand_ins["odd"].given) == 1
