"""Adaptability: what a device keeps of its roofline on a state-space model, relative to a transformer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mixmark.harness.capabilities.ssm import Ssm
from mixmark.harness.contracts.schema import Route
from mixmark.harness.judge.solo import Solo, best
from mixmark.suites.llm import Llm


@dataclass(frozen=True)
class DeviceAdaptability:
    """How much of its roofline a device keeps on a state-space model, relative to a transformer of about as many
    weights. Both are the fastest routes that count; their precisions may differ."""

    device: str
    """The id of the device."""
    llm: Route
    llm_fraction: float
    """The fraction of the roofline that the route of llm reached."""
    ssm: Route
    ssm_fraction: float
    """The fraction of the roofline that the route of ssm reached."""
    ratio: float
    """The fraction of ssm divided by the fraction of llm."""


@dataclass(frozen=True)
class Adaptability:
    """What each device keeps of its roofline on ssm, relative to llm."""

    devices: tuple[DeviceAdaptability, ...]
    """Empty if no device has a fraction on both."""


def adaptability(solos: Iterable[Solo]) -> tuple[DeviceAdaptability, ...]:
    """The adaptability of each device on which both suites have a fraction of the roofline."""
    found = best(solos, lambda solo: (solo.route.suite, solo.route.device))
    pairs = [(found[suite, id], found.get((Ssm.name, id))) for suite, id in found if suite == Llm.name]
    return tuple(
        DeviceAdaptability(
            device=llm.route.device,
            llm=llm.route,
            llm_fraction=llm.roofline_fraction,
            ssm=ssm.route,
            ssm_fraction=ssm.roofline_fraction,
            ratio=ssm.roofline_fraction / llm.roofline_fraction,
        )
        for llm, ssm in pairs
        if ssm and ssm.roofline_fraction is not None and llm.roofline_fraction
    )
