"""Reads the node's power from the web service of its management controller.

    [meter.redfish]
    url = "https://192.0.2.7"
    user = "reader"                     # an account that may only read is enough
    password_env = "BMC_PASSWORD"       # the name of an environment variable: the password itself is never written down
    power = "Self/PowerControl.1.PowerConsumedWatts"    # CHASSIS/READING, if there are several
    verify = "no"                       # or the path of a certificate: BMCs mostly sign their own

A result holds neither the address nor the account.

This meter was written from DMTF's schemas and tested on a server in the tests, never on a real controller.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from mixmark.harness.capabilities.external_log.declared import Declared
from mixmark.harness.capabilities.plugs import http
from mixmark.harness.capabilities.plugs.polled import Found, Polled
from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.text import plain

OPTIONS = ("url", "user", "password_env", "power", "verify")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MOST_CHASSIS = 32
RESOURCES = ("EnvironmentMetrics", "Power")
WATTS = re.compile(r"PowerWatts\.Reading|PowerControl\.\d+\.PowerConsumedWatts")
WHOLE = ("", "Chassis")
"""The PhysicalContext of the power of a whole chassis; another one is a part's, such as a CPU's."""


class Redfish(Polled):
    name = "redfish"
    declared = Declared(name)
    needs_section = True

    def __init__(self, options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        refuse_options("the meter redfish", options, OPTIONS)
        self._client = http.Client("the controller", options, environment, {"OData-Version": "4.0"})
        url = self._client.at
        if url.scheme != "https" and url.hostname not in LOOPBACK:
            raise UsageError("the meter redfish needs an https:// address")
        if url.path.strip("/") or url.query:
            raise UsageError("the meter redfish takes the bare address, https://HOST[:PORT], as url")
        self._power = options.get("power")

    def find(self) -> Found:
        """A chassis that gives no answer does not hide another."""
        found: dict[str, tuple[str, str]] = {}
        reasons = []
        members = self._leaves("/redfish/v1/Chassis")
        links = [str(value) for name, value in members.items() if re.fullmatch(r"Members\.\d+\.@odata\.id", name)]
        for link in links[:MOST_CHASSIS]:
            chassis = plain(link.rstrip("/").rpartition("/")[2], 80)
            try:
                found |= self._readings(chassis, link)
            except MixmarkError as error:
                reasons.append(f"{chassis}: {error}")
        if not found:
            why = "; ".join(reasons) or "there is no chassis"
            raise MixmarkError(f"no chassis has {self._power or 'a power reading above 0 W'}; {why}")
        name = http.choose("power reading", "power", found, self._power)
        resource, path = found[name]

        def ask() -> float:
            return http.number(self._leaves(resource).get(path), path)

        return Found(ask, f"Redfish {name}, DMTF DSP0268")

    def _readings(self, chassis: str, link: str) -> dict[str, tuple[str, str]]:
        """The wanted readings of a chassis, as the address of a resource and the path in it, by their names. Raises
        MixmarkError if it has none."""
        links = self._leaves(link)
        reasons = []
        for resource in RESOURCES:
            if not (address := str(links.get(f"{resource}.@odata.id", ""))):
                continue
            try:
                leaves = self._leaves(address)
            except MixmarkError as error:
                reasons.append(str(error))
                continue
            powers = {f"{chassis}/{path}": path for path, value in leaves.items() if _is_power(path, value)}
            parts = {
                name: str(leaves.get(f"{path.rpartition('.')[0]}.PhysicalContext") or "")
                for name, path in powers.items()
            }
            wanted = [name for name, part in parts.items() if (name == self._power if self._power else part in WHOLE)]
            if wanted:
                return {name: (address, powers[name]) for name in wanted}
            known = [f'power = "{name}" is of {plain(part or "the whole", 40)}' for name, part in parts.items()]
            reasons.append(f"{resource} has {' and '.join(known) or 'no power above 0 W'}")
        raise MixmarkError(", ".join(reasons) or "it has neither EnvironmentMetrics nor Power")

    def _leaves(self, path: str) -> http.Leaves:
        """The resource at a path. Raises MixmarkError, which names neither the address nor the account."""
        if not path.startswith("/") or path.startswith("//"):
            raise MixmarkError("the controller refers to another address")
        return self._client.leaves(path)


def _is_power(path: str, value: object) -> bool:
    """Whether it is a power above 0 W."""
    return bool(WATTS.fullmatch(path)) and isinstance(value, int | float) and value is not True and 0 < value < math.inf
