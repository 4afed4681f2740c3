"""Simulated hosts on a fake clock: each dispatches its own devices, and a coordinator keeps their sums."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from mixmark.harness.capabilities.hosts.coordinator import EVERY_S, Coordinator
from mixmark.harness.capabilities.hosts.dispatcher import HostDispatcher
from mixmark.harness.measure.dispatch import Pair
from mixmark.harness.plan.placement import place
from tests.fakes.machine import SECOND, Machine, Rates, device, solo


class Cluster:
    """Hosts that report their progress every EVERY_S seconds, over links that take link_s each way."""

    def __init__(
        self,
        mix_units: Mapping[str, float],
        rates: Rates,
        quanta: Mapping[Pair, int],
        host_of: Mapping[str, str],
        link_s: float = 0.001,
        actual: Callable[[Pair, float], float] | None = None,
    ) -> None:
        devices = [device(id) for id in host_of]
        self.link_s, self.mix_units, self.now_s = link_s, mix_units, 0.0
        self.placement = place(mix_units, solo(rates), devices)
        self.coordinator = Coordinator(
            mix_units, self.placement, quanta, dict.fromkeys(host_of, 1), host_of, partial(place, devices=devices)
        )
        self.messages = 0
        self.cut: set[str] = set()
        """The hosts whose links are cut."""
        grants = self.coordinator.grants(0)
        self.hosts: dict[str, Machine] = {}
        devices_of = {host: [each for each in devices if host_of[each.id] == host] for host in host_of.values()}
        for host in devices_of:
            own = {pair: rate for pair, rate in rates.items() if host_of[pair[1]] == host}
            self.hosts[host] = Machine(
                grants[host].units,
                own,
                {pair: quanta[pair] for pair in own},
                actual or (lambda pair, at_s: rates[pair]),
                may_wait=True,
                source=partial(
                    HostDispatcher,
                    plan=partial(place, devices=[device(id) for id in dict.fromkeys(id for _, id in own)]),
                ),
            )
            self.hosts[host].dispatcher.granted(grants[host], 0)

    def lose(self, host: str) -> None:
        """The host dies. Its reported work is kept."""
        self.coordinator.remove(host)
        del self.hosts[host]

    @property
    def mixes(self) -> float:
        """The mixes that all hosts together have reported."""
        return self.coordinator.mixes

    def run(self, until_s: float) -> float:
        """Mixes per second from now to then."""
        begin_s, before = self.now_s, self.mixes
        while self.now_s < until_s:
            self.now_s += EVERY_S
            self._advance(self.now_s)
            reached = [host for host in self.coordinator.hosts if host not in self.cut]
            for host in reached:
                self.coordinator.update(host, self.hosts[host].dispatcher.tally(self.hosts[host].now_ns))
            grants = self.coordinator.grants(self.now_s + self.link_s)
            self._advance(self.now_s + 2 * self.link_s)
            for host in reached:
                self.hosts[host].dispatcher.granted(grants[host], self.hosts[host].now_ns)
            self.messages += 2 * len(reached)
        return (self.mixes - before) / (self.now_s - begin_s)

    def _advance(self, to_s: float) -> None:
        for machine in self.hosts.values():
            machine.run(to_s)
            machine.now_ns = int(to_s * SECOND)


def many(
    hosts: int,
    devices: int,
    suites: int,
    seed: int,
    actual: Callable[[Pair, float], float] | None = None,
    link_s: float = 0.001,
) -> Cluster:
    """Hosts with devices of random rates, each a feed in a second or so."""
    rates = drawn(hosts, devices, suites, seed)
    host_of = {device: host(device) for _, device in rates}
    slowed = None if actual is None else (lambda pair, at_s: rates[pair] * actual(pair, at_s))
    mix_units = {f"s{suite}": float(hosts) for suite in range(suites)}
    return Cluster(mix_units, rates, dict.fromkeys(rates, 1), host_of, link_s, slowed)


def drawn(hosts: int, devices: int, suites: int, seed: int) -> Rates:
    draw = random.Random(seed)
    return {
        (f"s{suite}", f"gpu:h{host}.{device}"): draw.lognormvariate(0, 1)
        for host in range(hosts)
        for device in range(devices)
        for suite in range(suites)
    }


def host(device: str) -> str:
    """The host of a device of `drawn`."""
    return device.removeprefix("gpu:").partition(".")[0]
