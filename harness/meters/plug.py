"""Asks a power plug on the local network, by its name.

    [meter.plug]
    kind = "shelly"                     # or tasmota, homeassistant, fritz, json
    url = "http://192.0.2.10"
    accuracy = "1%"                     # that its maker declares, or your own estimate

    shelly          any generation; user and password_env, if it asks for a password
    tasmota         user and password_env, if it asks for a password
    homeassistant   url of the entity, …/api/states/sensor.plug_power; token_env
    fritz           url of the FRITZ!Box, ain of the plug, user and password_env
    json            any reply: power = "path.to.watts" or energy = "path.to.counter", with unit

password_env and token_env name environment variables: a password is never written down. `read = "energy"` reads the
counter of a kind that has one in place of its power; a counter is worth it only if a window holds many of its steps.
Several plugs of one machine are sections such as [meter.plug.left] with `covers = "node/1-of-2"`.

A result holds neither the address nor the account. The kinds were written from their makers' documentation and tested
on a server in the tests, never on a real plug.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import quote, urlencode, urlsplit

from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters import http
from mixmark.harness.meters.bmc import Controller
from mixmark.harness.meters.common import all_ids, choice_option, number_option

OPTIONS = (
    *("name", "kind", "url", "power", "energy", "unit", "read", "boundary", "covers", "accuracy"),
    *("user", "password_env", "token_env", "ain", "verify"),
)
UNITS = {
    "W": 1.0,
    "mW": 1e-3,
    "kW": 1e3,
    "J": 1.0,
    "kJ": 1e3,
    "Ws": 1.0,
    "Wmin": 60.0,
    "Wh": 3600.0,
    "kWh": 3.6e6,
}
POWER = ("W", "mW", "kW")
NO_SESSION = "0000000000000000"


@dataclass(frozen=True)
class Field:
    """Where a number stands in a reply. path: names and positions, with dots between them."""

    at: str
    """The path of the address."""
    path: str
    unit: str


@dataclass(frozen=True)
class Kind:
    """How plugs of one make are asked."""

    every_ns: int
    """Between two questions: what the plug has a new value for, and can stand."""
    power: Field
    energy: Field | None = None


KINDS = {
    # https://shelly-api-docs.shelly.cloud: Gen2+ Switch.GetStatus; Gen1 /meter/0, whose total counts watt-minutes
    "shelly": Kind(
        500_000_000,
        Field("/rpc/Switch.GetStatus?id=0", "apower", "W"),
        Field("/rpc/Switch.GetStatus?id=0", "aenergy.total", "Wh"),
    ),
    "shelly1": Kind(1_000_000_000, Field("/meter/0", "power", "W"), Field("/meter/0", "total", "Wmin")),
    # https://tasmota.github.io/docs/Commands: Status 10 shows the sensors
    "tasmota": Kind(
        1_000_000_000,
        Field("/cm?cmnd=Status%2010", "StatusSNS.ENERGY.Power", "W"),
        Field("/cm?cmnd=Status%2010", "StatusSNS.ENERGY.Total", "kWh"),
    ),
    # https://developers.home-assistant.io/docs/api/rest: the state of an entity is a text
    "homeassistant": Kind(1_000_000_000, Field("", "state", "")),
    # AVM's AHA-HTTP interface: getswitchpower in mW, getswitchenergy in Wh
    "fritz": Kind(2_000_000_000, Field("getswitchpower", "", "mW"), Field("getswitchenergy", "", "Wh")),
}
ASKED = ("shelly", "tasmota", "homeassistant", "fritz", "json")


class Plug:
    name = "plug"
    needs_section = True

    def __init__(self, options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        refuse_options("the meter plug", options, OPTIONS)
        self._options, self._environment = options, os.environ if environment is None else environment
        self._id = f"plug/{options['name']}" if "name" in options else "plug"
        kind = choice_option("plug", options, "kind", ASKED)
        address = urlsplit(options.get("url", ""))
        if kind is None or address.scheme not in ("http", "https") or not address.hostname:
            raise UsageError("the meter plug needs kind and url", hint=f"kind is one of {', '.join(ASKED)}")
        if address.username or address.password:
            raise UsageError("the meter plug takes no account inside of url", hint="give user and password_env")
        self._kind, self._address = kind, address
        boundary = choice_option("plug", options, "boundary", ("wall", "node")) or "wall"
        self._boundary = cast(Literal["wall", "node"], boundary)
        self._covers = tuple(filter(None, options.get("covers", "").replace(" ", "").split(",")))
        self._accuracy = number_option("plug", options, "accuracy")
        self._read = choice_option("plug", options, "read", ("power", "energy")) or "power"
        self._field = self._declared() if kind == "json" else None
        self._client = http.Client(
            "the plug",
            f"{address.scheme}://{address.netloc}",
            self._headers(),
            options.get("verify", "yes"),
            (options["user"], self._secret("password_env")) if kind == "shelly" and "user" in options else None,
        )
        self._session = ""
        self._controller: Controller | None = None

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Asks the plug once."""
        try:
            if self._controller is None:
                every_ns, ask = self._question()
                ask()
                self._controller = Controller(ask, every_ns=every_ns)
        except (OSError, MixmarkError) as error:
            yield Absent(kind="meter", name=self._id, reason=str(error))
            return
        field = self._field
        assert field is not None  # the question has one
        yield Domain(
            id=self._id,
            meter=self.name,
            covers=self._covers or all_ids(devices),
            boundary=self._boundary,
            quantity="power" if field.unit in POWER else "energy",
            method="external",
            accuracy=self._accuracy,
            source=f"{self._kind}, {field.path or field.at} in {field.unit}, as declared by its owner",
        )

    def read(self, domain: Domain) -> Sequence[Sample]:
        assert self._controller is not None  # `domains` made it
        return self._controller.take()

    def _declared(self) -> Field:
        """The field of the kind `json`. Raises UsageError."""
        given = [name for name in ("power", "energy") if name in self._options]
        unit = choice_option("plug", self._options, "unit", UNITS) or ("W" if given == ["power"] else None)
        if len(given) != 1 or unit is None or (given == ["power"]) != (unit in POWER):
            raise UsageError(
                "a plug of the kind json needs power or energy, the path of a number, and its unit",
                hint='such as power = "status.watts", or energy = "total" with unit = "kWh"',
            )
        return Field(self._path(), self._options[given[0]], unit)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if "token_env" in self._options:
            headers["Authorization"] = f"Bearer {self._secret('token_env')}"
        elif "user" in self._options and self._kind == "json":
            headers["Authorization"] = http.basic(self._options["user"], self._secret("password_env"))
        return headers

    def _secret(self, option: str) -> str:
        """The value of the environment variable that an option names. Raises UsageError if it has none."""
        variable = self._options.get(option, "")
        if not (value := self._environment.get(variable, "")):
            raise UsageError(
                f"the meter plug finds no password: {option} names {variable or 'nothing'}", f"export {variable}=…"
            )
        return value

    def _path(self) -> str:
        query = f"?{self._address.query}" if self._address.query else ""
        return f"{self._address.path}{query}"

    def _question(self) -> tuple[int, Callable[[], float]]:
        """How often the plug is asked, and how: a call returns watts or joules, or raises MixmarkError."""
        if self._kind == "json":
            return KINDS["shelly"].every_ns, self._number
        kind = KINDS[self._kind]
        if self._kind == "shelly" and "gen" not in self._client.json("/shelly"):
            kind = KINDS["shelly1"]
        self._field = kind.energy if self._read == "energy" else kind.power
        if self._field is None:
            raise MixmarkError(f"a plug of the kind {self._kind} has no counter: leave read away")
        if self._kind == "homeassistant":
            unit = _number_at(self._client.json(self._path()), "attributes.unit_of_measurement", text=True)
            if unit not in UNITS:
                raise MixmarkError(f"the entity is in {unit!a}, which is no unit of power or energy")
            self._field = Field(self._path(), "state", str(unit))
        if self._kind == "fritz":
            return kind.every_ns, self._fritz
        return kind.every_ns, self._number

    def _number(self) -> float:
        assert self._field is not None  # it was declared, or the question chose it
        account = ""
        if self._kind == "tasmota" and "user" in self._options:
            account = "&" + urlencode({"user": self._options["user"], "password": self._secret("password_env")})
        value = _number_at(self._client.json(self._field.at + account), self._field.path)
        return float(value) * UNITS[self._field.unit]

    def _fritz(self) -> float:
        assert self._field is not None
        if not self._session:
            self._session = self._login()
        ain = quote(self._options.get("ain", "").replace(" ", ""))
        path = f"/webservices/homeautoswitch.lua?switchcmd={self._field.at}&ain={ain}&sid={self._session}"
        try:
            return _finite(self._client.text(path).strip(), "its switch") * UNITS[self._field.unit]
        except MixmarkError:
            self._session = ""  # a session ends after a while: the next question logs in again
            raise

    def _login(self) -> str:
        """A session of the box, by AVM's login with PBKDF2 (FRITZ!OS 7.24 and later). Raises MixmarkError."""
        challenge = re.search(r"<Challenge>2\$(\d+)\$([0-9a-f]+)\$(\d+)\$([0-9a-f]+)<", self._client.text(LOGIN))
        if challenge is None:
            raise MixmarkError("the box offers no login that is known: FRITZ!OS 7.24 or later is needed")
        first, salt, second, other_salt = challenge.groups()
        if max(int(first), int(second)) > 10_000_000:
            raise MixmarkError("the box asks for a login that would take minutes")
        inner = hashlib.pbkdf2_hmac("sha256", self._secret("password_env").encode(), bytes.fromhex(salt), int(first))
        outer = hashlib.pbkdf2_hmac("sha256", inner, bytes.fromhex(other_salt), int(second))
        response = {"username": self._options.get("user", ""), "response": f"{other_salt}${outer.hex()}"}
        session = re.search(r"<SID>([0-9a-f]{16})<", self._client.text(f"{LOGIN}&{urlencode(response)}"))
        if session is None or session[1] == NO_SESSION:
            raise MixmarkError(
                "the box refuses the login: check user, password_env, and the user's right to smart home"
            )
        return session[1]


LOGIN = "/login_sid.lua?version=2"


def _number_at(content: Mapping[str, Any], path: str, text: bool = False) -> Any:
    """The number at a path, or the text. Raises MixmarkError."""
    value: Any = content
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise MixmarkError(f"the plug's reply has no {path}: it is of another kind, or has no meter")
    return str(value) if text else _finite(value, path)


def _finite(value: object, what: str) -> float:
    """A number, also in a text. Raises MixmarkError."""
    try:
        found = math.nan if isinstance(value, bool) else float(cast(Any, value))
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise MixmarkError(f"the plug gives no number for {what}: {ascii(value)[:40]}")
    return found
