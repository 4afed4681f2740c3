"""Reads the node's power from the web service of its management controller.

    [meter.redfish]
    url = "https://192.0.2.7"
    user = "reader"                     # an account that may only read is enough
    password_env = "BMC_PASSWORD"       # the name of an environment variable: the password itself is never written down
    chassis = "Self"                    # if several have a power reading
    verify = "no"                       # or the path of a certificate: BMCs mostly sign their own

A result holds neither the address nor the account.

This meter was written from DMTF's schemas and tested on a server in the tests, never on a real controller.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters import http
from mixmark.harness.meters.bmc import Controller, node

OPTIONS = ("url", "user", "password_env", "chassis", "verify")
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MOST_CHASSIS = 32


class Redfish:
    name = "redfish"
    needs_section = True

    def __init__(self, options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        refuse_options("the meter redfish", options, OPTIONS)
        known = f"[meter.redfish] takes {', '.join(OPTIONS)}"
        self._url = options.get("url", "").rstrip("/")
        address = urlsplit(self._url)
        if self._url and address.scheme != "https" and not (address.scheme == "http" and address.hostname in LOOPBACK):
            raise UsageError("the meter redfish needs an https:// address", hint=known)
        if address.username or address.password or address.path or address.query:
            raise UsageError("the meter redfish takes the bare address, https://HOST[:PORT], as url", hint=known)
        self._chassis = options.get("chassis")
        headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if "user" in options:
            password = (os.environ if environment is None else environment).get(options.get("password_env", ""), "")
            headers["Authorization"] = http.basic(options["user"], password)
        self._client = http.Client("the controller", self._url, headers, options.get("verify", "yes"))
        self._path = ""
        self._controller = Controller(self._ask)

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        if not self._url:
            yield Absent(
                kind="meter", name="redfish", reason="no controller is named: [meter.redfish] url = … in mixmark.toml"
            )
            return
        try:
            found = self._found()
        except (OSError, MixmarkError) as error:
            yield Absent(kind="meter", name="redfish", reason=str(error))
            return
        if self._chassis is not None:
            found = {name: path for name, path in found.items() if name == self._chassis}
        if len(found) != 1:
            several = f"several chassis have one, say chassis = {' or '.join(sorted(found))}"
            yield Absent(
                kind="meter", name="redfish", reason=several if found else "no chassis has a power reading above 0 W"
            )
            return
        ((name, self._path),) = found.items()
        yield node(self.name, devices, f"Redfish {self._path.split('/')[-1]} of chassis {name}, DMTF DSP0268")

    def read(self, domain: Domain) -> Sequence[Sample]:
        return self._controller.take()

    def _found(self) -> dict[str, str]:
        """The path of each chassis' power resource: EnvironmentMetrics, or the older Power."""
        found = {}
        members = self._get("/redfish/v1/Chassis").get("Members", ())
        for member in members[:MOST_CHASSIS] if isinstance(members, list) else ():
            path = _link(member)
            chassis = self._get(path) if path else {}
            for target in ("EnvironmentMetrics", "Power"):
                link = _link(chassis.get(target))
                watts = _watts(self._get(link)) if link else None
                if watts:
                    found[path.rstrip("/").split("/")[-1]] = link.rstrip("/")
                    break
        return found

    def _ask(self) -> float:
        watts = _watts(self._get(self._path))
        if watts is None:
            raise MixmarkError("the controller's reply has no power reading any more")
        return watts

    def _get(self, path: str) -> dict[str, Any]:
        """The resource at a path. Raises MixmarkError, which names neither the address nor the account."""
        if not path.startswith("/") or path.startswith("//"):
            raise MixmarkError("the controller refers to another address")
        return self._client.json(path)


def _link(value: object) -> str:
    path = value.get("@odata.id") if isinstance(value, dict) else None
    return path if isinstance(path, str) else ""


def _watts(resource: Mapping[str, Any]) -> float | None:
    """The power in EnvironmentMetrics.PowerWatts.Reading, or in the first Power.PowerControl; None: there is none."""
    powers = resource.get("PowerWatts"), resource.get("PowerControl")
    first = powers[1][0] if isinstance(powers[1], list) and powers[1] else None
    for holder, name in ((powers[0], "Reading"), (first, "PowerConsumedWatts")):
        value = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            return float(value)
    return None
