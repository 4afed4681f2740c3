"""The options that name hosts: when they are asked for, what is kept of them, and what a resumed run needs again."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mixmark.harness.capabilities.hosts.several import SeveralHosts
from mixmark.harness.cli import show
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.machine import setup
from mixmark.harness.plugins.options import chosen_machines

NOTHING: dict[str, Any] = {"hosts": None, "launcher": None, "address": None}


def test_hosts_are_measured_if_one_of_their_options_is_given() -> None:
    options = {**NOTHING, "tier": "smoke"}
    assert (chosen_machines(options), options) == (None, {"tier": "smoke"})
    options = {**NOTHING, "launcher": "slurm", "tier": "smoke"}
    machines = chosen_machines(options)
    assert (type(machines), options) == (SeveralHosts, {"tier": "smoke"})


def test_a_launcher_without_hosts_is_refused_before_anything_is_waited_for() -> None:
    with pytest.raises(UsageError, match="the launcher local needs a list of hosts"):
        SeveralHosts({**NOTHING, "launcher": "local"}).check()


def test_an_address_is_in_no_result_and_a_resumed_run_needs_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "run --launcher ray --address 10.0.0.1:6379 --address=head:1 --hosts /home/me/x --suite llm"
    monkeypatch.setattr(sys, "argv", ["mixmark", *typed.split()])
    kept = "--launcher ray --address <address> --address=<address> --hosts <path>"
    assert setup.command_line() == ("run", *kept.split(), "--suite", "llm")
    assert [*show.of_devices(setup.command_line())] == kept.split()
