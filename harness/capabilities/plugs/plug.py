"""Asks a power plug on the local network, by a recipe of its kind.

    [meter.plug]
    kind = "shelly"                     # or tasmota, homeassistant, fritz, json
    url = "http://192.0.2.10"           # its path and query, if it has them, are asked as they stand
    accuracy = "1%"                     # that its maker declares, or your own estimate

    shelly          any generation and component; user and password_env, if it asks for a password
    tasmota         user and password_env, if it asks for a password
    homeassistant   url of the entity, …/api/states/sensor.plug_power; token_env
    fritz           url of the FRITZ!Box, ain of the plug, user and password_env
    json            any reply: power = "path.to.watts" or energy = "path.to.counter", with unit

A device with several readings is refused until power (or energy) names one of them, or url the component.
password_env and token_env name environment variables: a password is never written down. `read = "energy"` reads the
counter of a kind that has one in place of its power; a counter is worth it only if a window holds many of its steps.
Several plugs of one machine are sections such as [meter.plug.left] with `covers = "node/1-of-2"`.

A result holds neither the address nor the account. The recipes were written from their makers' documentation and tested
on a server in the tests, never on a real plug.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, cast
from urllib.parse import quote, urlencode

from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.capabilities.plugs import http
from mixmark.harness.capabilities.plugs.polled import Controller
from mixmark.harness.meters.common import all_ids, choice_option, number_option

OPTIONS = ("name", "kind", "url", "boundary", "covers", "accuracy", "verify")
ACCOUNT = ("user", "password_env")
CHOICE = ("read", "power", "energy")
UNITS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "J": 1.0, "kJ": 1e3, "Ws": 1.0, "Wmin": 60.0, "Wh": 3600.0, "kWh": 3.6e6}
POWER = ("W", "mW", "kW")
NO_SESSION = "0000000000000000"
LOGIN = "/login_sid.lua?version=2"


@dataclass(frozen=True)
class Recipe:
    """How plugs of one kind are asked.

    An address is a path with its query. A number is written as its address, a space, and its path in the reply.
    """

    every_ns: int
    """Between two questions: what the plug has a new value for, and can stand."""
    numbers: Mapping[str, str]
    """The unit of each number that is a reading, by a pattern of its path."""
    asks: Sequence[Sequence[str]] = ()
    """Groups of addresses for a url without one: the first group counts of which the plug knows any."""
    unit_at: str | None = None
    """The path of the unit in the reply, if the recipe does not know it."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each `path=value` beside a number that makes it unusable."""
    account_in: Literal["header", "query", "session"] = "header"
    options: Sequence[str] = (*CHOICE, *ACCOUNT)
    """Those of this kind alone."""


COMPONENTS = [f"/rpc/{name}.GetStatus?id={id}" for name in ("Switch", "PM1", "EM", "EM1", "Cover") for id in range(3)]
RECIPES = {
    # https://shelly-api-docs.shelly.cloud: Gen2+ counts watt-hours; of Gen1 a meter watt-minutes, an emeter watt-hours
    "shelly": Recipe(
        500_000_000,
        {
            r"\S+ (.+\.)?(apower|act_power|[abc]_act_power|total_act_power)": "W",
            r"\S*/status ((meters|emeters)\.\d+\.power|total_power)|\S*/(meter|emeter|roller)/\d+ power": "W",
            r"\S+ (.+\.)?(aenergy\.total|total_act_energy|[abc]_total_act_energy|total_act)": "Wh",
            r"\S*/status emeters\.\d+\.total|\S*/emeter/\d+ total": "Wh",
            r"\S*/status meters\.\d+\.total|\S*/meter/\d+ total": "Wmin",
        },
        # emulations of a Shelly mostly know single components only
        asks=(("/rpc/Shelly.GetStatus",), ("/status",), COMPONENTS, [f"/meter/{id}" for id in range(4)]),
        unusable={
            r"is_valid=False": "its value is not valid",
            r"errors\.\d+=(power_meter_failure|ct_type_not_set|out_of_range:.*power)": "its meter has failed",
        },
    ),
    # https://tasmota.github.io/docs/Commands: Status 10 shows the sensors; several phases or channels are a list
    "tasmota": Recipe(
        1_000_000_000,
        {r"\S+ (.+\.)?ENERGY\.Power(\.\d+)?": "W", r"\S+ (.+\.)?ENERGY\.Total(\.\d+)?": "kWh"},
        asks=(("/cm?cmnd=Status%2010",),),
        unusable={r"WARNING=.*password": "it wants an account: give user and password_env"},
        account_in="query",
    ),
    # https://developers.home-assistant.io/docs/api/rest: the state of an entity is a text
    "homeassistant": Recipe(
        1_000_000_000,
        {r"\S+ state": ""},
        unit_at="attributes.unit_of_measurement",
        unusable={r"state=(unavailable|unknown)": "Home Assistant has no value of it now"},
        options=("token_env",),
    ),
    # AVM's AHA-HTTP interface: its replies are a number each, and no JSON
    "fritz": Recipe(
        2_000_000_000,
        {"getswitchpower": "mW", "getswitchenergy": "Wh"},
        unusable={r"getswitch\w+=inval": "the box does not know this ain, or its plug is not connected"},
        account_in="session",
        options=("read", "ain", *ACCOUNT),
    ),
    "json": Recipe(500_000_000, {}, options=("power", "energy", "unit", "token_env", *ACCOUNT)),
}


@dataclass(frozen=True)
class Reading:
    """One number of a plug."""

    address: str
    path: str
    unit: str


class Plug:
    name = "plug"
    needs_section = True

    def __init__(self, options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        kind = choice_option("plug", options, "kind", RECIPES)
        if kind is None:
            raise UsageError("the meter plug needs kind", hint=f"it is one of {', '.join(RECIPES)}")
        self._kind, self._recipe, self._options = kind, RECIPES[kind], options
        refuse_options(f"a plug of the kind {kind}", options, (*OPTIONS, *self._recipe.options))
        self._id = f"plug/{options['name']}" if "name" in options else "plug"
        http_account = self._recipe.account_in == "header"
        self._client = http.Client("the plug", options, environment, account_here=http_account)
        url = self._client.at
        query = f"?{url.query}" if url.query else ""
        self._address = f"{url.path}{query}" if url.path != "/" or query else ""
        boundary = choice_option("plug", options, "boundary", ("wall", "node")) or "wall"
        self._boundary = cast(Literal["wall", "node"], boundary)
        self._covers = tuple(filter(None, options.get("covers", "").replace(" ", "").split(",")))
        self._accuracy = number_option("plug", options, "accuracy")
        given = [name for name in ("power", "energy") if name in options]
        read = choice_option("plug", options, "read", ("power", "energy"))
        self._quantity = read or (given or ["power"])[0]
        if given not in ([], [self._quantity]):
            raise UsageError("the meter plug takes one of power and energy, and read as the same")
        self._query = ""
        if self._client.account and self._recipe.account_in == "query":
            self._query = "&" + urlencode(dict(zip(("user", "password"), self._client.account, strict=True)))
        self._check_kind(given)
        self._session = ""
        self._controller: Controller | None = None

    def _check_kind(self, given: Sequence[str]) -> None:
        """Raises UsageError if the section lacks what its kind needs."""
        unit = choice_option("plug", self._options, "unit", UNITS) or ("W" if given == ["power"] else None)
        if self._kind == "json":
            if len(given) != 1 or unit is None or (given == ["power"]) != (unit in POWER):
                raise UsageError(
                    "a plug of the kind json needs power or energy, the path of a number, and its unit",
                    hint='such as power = "status.watts", or energy = "total" with unit = "kWh"',
                )
            self._recipe = replace(self._recipe, numbers={rf"\S* {re.escape(self._options[given[0]])}": unit})
        if self._kind == "homeassistant" and not self._address:
            raise UsageError("a plug of the kind homeassistant needs the url of an entity", "…/api/states/sensor.NAME")
        if self._kind == "fritz" and (self._address or "ain" not in self._options or self._client.account is None):
            raise UsageError("a plug of the kind fritz needs the bare url of the box, ain, user and password_env")

    def domains(self, devices: Iterable[Device]) -> Iterator[Domain | Absent]:
        """Asks the plug once."""
        try:
            reading = self._found()
            ask = partial(self._fritz if self._kind == "fritz" else self._number, reading)
            ask()
        except (OSError, MixmarkError) as error:
            yield Absent(kind="meter", name=self._id, reason=str(error))
            return
        self._controller = Controller(ask, every_ns=self._recipe.every_ns)
        yield Domain(
            id=self._id,
            meter=self.name,
            covers=self._covers or all_ids(devices),
            boundary=self._boundary,
            quantity="power" if reading.unit in POWER else "energy",
            method="external",
            accuracy=self._accuracy,
            source=f"{self._kind}, {reading.path} in {reading.unit}, as declared by its owner",
        )

    def read(self, domain: Domain) -> Sequence[Sample]:
        assert self._controller is not None  # `domains` made it
        return self._controller.take()

    def _found(self) -> Reading:
        """The reading that the section means. Raises MixmarkError with the choice if there are several."""
        if self._kind == "fritz":
            command = f"getswitch{self._quantity}"
            return Reading("/webservices/homeautoswitch.lua", command, self._recipe.numbers[command])
        replies = self._replies()
        address = http.choose("component", "url", replies, None)
        leaves = replies[address]
        units = {path: unit for path in leaves if (unit := self._unit(address, path, leaves)) is not None}
        if not units:
            self._check(leaves, "")
            raise MixmarkError(self._without(leaves))
        path = http.choose("reading", self._quantity, units, self._options.get(self._quantity))
        return Reading(address, path, units[path])

    def _replies(self) -> dict[str, http.Leaves]:
        """The reply of the url, or those of the first group of addresses of which the plug knows any."""
        if self._address or not self._recipe.asks:
            return {self._address: self._client.leaves(self._address + self._query)}
        for group in self._recipe.asks:
            replies = {}
            for address in group:
                with suppress(http.NoSuchPath):
                    replies[address] = self._client.leaves(address + self._query)
            if replies:
                return replies
        asked = " and ".join(group[0].partition("?")[0] for group in self._recipe.asks)
        raise MixmarkError(f"the plug answers 404 for {asked}: it is of another kind, or its reading has another path")

    def _unit(self, address: str, path: str, leaves: http.Leaves) -> str | None:
        """The unit of a number. None if it is no reading of the quantity that is wanted."""
        at = f"{address.partition('?')[0]} {path}"
        unit = next((unit for pattern, unit in self._recipe.numbers.items() if re.fullmatch(pattern, at)), None)
        if unit is None or self._recipe.unit_at is None:
            return unit if unit and (unit in POWER) == (self._quantity == "power") else None
        self._check(leaves, path)
        if (named := str(leaves.get(self._recipe.unit_at))) not in UNITS:
            raise MixmarkError(f"the entity is in {named!a}, which is no unit of power or energy")
        return named

    def _without(self, leaves: http.Leaves) -> str:
        wanted = self._options.get(self._quantity, f"{self._quantity} that the kind {self._kind} knows")
        numbers = [path for path, value in leaves.items() if isinstance(value, int | float) and value is not True]
        numbers.sort(key=lambda path: not re.search("pow|watt|energy|total", path, re.IGNORECASE))
        named = ", ".join(map(repr, numbers[: http.MOST_NAMED])) or "none"
        return (
            f"the plug's reply has no {wanted}: it is of another kind, or has no meter. "
            f'Its numbers, which kind = "json" reads: {named}'
        )

    def _check(self, leaves: http.Leaves, path: str) -> None:
        """Raises MixmarkError if the reply says that the number at a path must not be used."""
        beside = path.removesuffix(path.rpartition(".")[2])
        for name, value in leaves.items():
            for pattern, meaning in self._recipe.unusable.items():
                if name.startswith(beside) and re.search(rf"(^|\.){pattern}", f"{name}={value}"):
                    raise MixmarkError(f"the plug's reply says {name} = {ascii(value)[:60]}: {meaning}")

    def _number(self, reading: Reading) -> float:
        leaves = self._client.leaves(reading.address + self._query)
        self._check(leaves, reading.path)
        return http.number(leaves.get(reading.path), reading.path) * UNITS[reading.unit]

    def _fritz(self, reading: Reading) -> float:
        if not self._session:
            self._session = self._login()
        ain = quote(self._options["ain"].replace(" ", ""))
        asked = f"{reading.address}?switchcmd={reading.path}&ain={ain}&sid={self._session}"
        try:
            text = self._client.text(asked).strip()
            self._check({reading.path: text}, reading.path)
            return http.number(text, reading.path) * UNITS[reading.unit]
        except MixmarkError:
            self._session = ""  # a session ends after a while: the next question logs in again
            raise

    def _login(self) -> str:
        """A session of the box, by AVM's login with PBKDF2 (FRITZ!OS 7.24 and later). Raises MixmarkError."""
        assert self._client.account is not None  # the kind needs it
        user, password = self._client.account
        challenge = re.search(r"<Challenge>2\$(\d+)\$([0-9a-f]+)\$(\d+)\$([0-9a-f]+)<", self._client.text(LOGIN))
        if challenge is None:
            raise MixmarkError("the box offers no login that is known: FRITZ!OS 7.24 or later is needed")
        first, salt, second, other_salt = challenge.groups()
        if max(int(first), int(second)) > 10_000_000:
            raise MixmarkError("the box asks for a login that would take minutes")
        inner = hashlib.pbkdf2_hmac("sha256", password.encode(), bytes.fromhex(salt), int(first))
        outer = hashlib.pbkdf2_hmac("sha256", inner, bytes.fromhex(other_salt), int(second))
        response = {"username": user, "response": f"{other_salt}${outer.hex()}"}
        session = re.search(r"<SID>([0-9a-f]{16})<", self._client.text(f"{LOGIN}&{urlencode(response)}"))
        if session is None or session[1] == NO_SESSION:
            raise MixmarkError(
                "the box refuses the login: check user, password_env, and the user's right to smart home"
            )
        return session[1]
