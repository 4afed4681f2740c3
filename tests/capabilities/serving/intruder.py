"""A policy that replaces the auditor's comparison in the process that imports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mixmark.harness.capabilities.serving.contract import DeviceLoad, Request
from tests.fakes.intruders import PID


class Policy:
    def __init__(self, seconds: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        self.seconds = seconds

    def choose(
        self, waiting: Sequence[Request], devices: Sequence[DeviceLoad], now_ns: int
    ) -> tuple[Request, str] | None:
        able = (each.device for each in devices if each.device in self.seconds[waiting[0].suite])
        return waiting[0], next(able, PID)
