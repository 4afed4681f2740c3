"""Reads the node's power from its management controller with `ipmitool dcmi power reading`, without a network.

A controller reports whole watts, filtered by a rule that its vendor seldom documents.

This meter was written from the DCMI specification and tested on a script that replies like ipmitool, never on a
real controller.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mixmark.harness.capabilities.external_log.declared import Declared
from mixmark.harness.capabilities.plugs.polled import PATIENCE_S, Found, Polled
from mixmark.harness.contracts.errors import MixmarkError, refuse_options
from mixmark.harness.contracts.text import plain

ROOT = Path("/")
DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
COMMAND = ("ipmitool", "dcmi", "power", "reading")
POWER = re.compile(r"Instantaneous power reading\s*:\s*(.*)", re.IGNORECASE)
WATTS = re.compile(r"(\d+(?:\.\d+)?)\s*W(?:atts?)?\b", re.IGNORECASE)


class Ipmi(Polled):
    """root: the file system that is searched for the controller's device."""

    name = "ipmi"
    declared = Declared(name)

    def __init__(self, options: Mapping[str, str], root: Path = ROOT) -> None:
        refuse_options("the meter ipmi", options)
        self._root = root

    def find(self) -> Found:
        """Raises MixmarkError if the controller cannot be asked, with the command that changes it."""
        device = next((path for name in DEVICES if (path := self._root / name).exists()), None)
        if device is None:
            raise MixmarkError("there is no /dev/ipmi0: sudo modprobe ipmi_si ipmi_devintf, if this machine has a BMC")
        if not os.access(device, os.R_OK | os.W_OK):
            allow = f"sudo setfacl -m u:$USER:rw {device}; that lets you do all that a BMC can"
            raise MixmarkError(f"only root may use it: {allow}, switching the machine off included")
        if shutil.which(COMMAND[0]) is None:
            raise MixmarkError("ipmitool is not installed: sudo apt install ipmitool")
        if _ask() <= 0:
            raise MixmarkError("the controller says 0 W: try sudo ipmitool dcmi power activate")
        return Found(_ask, "IPMI DCMI 1.5, Get Power Reading, by ipmitool")


def _ask() -> float:
    """The power in watts. Raises OSError or MixmarkError."""
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise MixmarkError(f"ipmitool did not answer within {PATIENCE_S:g} s") from None
    power = POWER.search(done.stdout)
    if done.returncode != 0 or power is None:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = plain(lines[-1], 200) if lines else f"exit status {done.returncode}"
        advice = ": this controller has no power reading by DCMI: try the meter redfish, or a plug"
        raise MixmarkError(f"ipmitool: {said}{advice if 'invalid command' in said.lower() else ''}")
    reading = WATTS.match(power[1])
    if reading is None:
        raise MixmarkError(f"ipmitool: the power reading is not in watts: {plain(power[1], 60)!r}")
    return float(reading[1])
