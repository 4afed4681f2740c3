"""Asks a power plug on the local network, by a recipe of its kind (`recipes.toml`).

    [meter.plug]
    kind = "shelly"                     # or tasmota, homeassistant, json
    url = "http://192.0.2.10"           # its path and query, if it has them, are asked as they stand
    accuracy = "1%"                     # that its maker declares, or your own estimate

    shelly          any generation and component; user and password_env, if it asks for a password
    tasmota         user and password_env, if it asks for a password
    homeassistant   url of the entity, …/api/states/sensor.plug_power; token_env
    json            any reply: power = "path.to.watts" or energy = "path.to.counter", with unit unless
                    the path names it

A device with several readings is refused until power (or energy) names one of them, or url the component.
password_env and token_env name environment variables: a password is never written down. `read = "energy"` reads the
counter of a kind that has one in place of its power; a counter is worth it only if a window holds many of its steps.
Several plugs of one machine are sections such as [meter.plug.left] with `covers = "node/1-of-2"`.

A result holds neither the address nor the account. The recipes were written from their makers' documentation and tested
on a server in the tests, never on a real plug.
"""

from __future__ import annotations

import pkgutil
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from mixmark.harness.capabilities.external_log import declared
from mixmark.harness.capabilities.external_log.declared import choice_option
from mixmark.harness.capabilities.external_log.units import POWER, UNITS, unit_of
from mixmark.harness.capabilities.plugs import http
from mixmark.harness.capabilities.plugs.polled import Found, Polled
from mixmark.harness.contracts.errors import MixmarkError, UsageError, refuse_options

OPTIONS = (*declared.OPTIONS, "kind", "url", "verify")
QUANTITIES = ("power", "energy")


@dataclass(frozen=True)
class Recipe:
    """How plugs of one kind are asked. `recipes.toml` describes the fields."""

    every_s: float
    options: Sequence[str]
    readings: Mapping[str, str] = field(default_factory=dict)
    asks: Sequence[str] = ()
    unit_at: str | None = None
    unusable: Mapping[str, str] = field(default_factory=dict)
    account: http.AccountIn = "header"
    needs_path: str = ""


RECIPES = {
    kind: Recipe(**recipe)
    for kind, recipe in tomllib.loads((pkgutil.get_data(__package__, "recipes.toml") or b"").decode()).items()
}


class Plug(Polled):
    name = "plug"
    needs_section = True
    method = "external"

    def __init__(self, options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        kind = choice_option("plug", options, "kind", RECIPES)
        if kind is None:
            raise UsageError("the meter plug needs kind", hint=f"it is one of {', '.join(RECIPES)}")
        self._kind, self._recipe, self._options = kind, RECIPES[kind], options
        refuse_options(f"a plug of the kind {kind}", options, (*OPTIONS, *self._recipe.options))
        self.declared = declared.declared("plug", options, ("wall", "node"))
        self.every_s = self._recipe.every_s
        given = [name for name in QUANTITIES if name in options]
        self._quantity = choice_option("plug", options, "read", QUANTITIES) or (given or ["power"])[0]
        if given not in ([], [self._quantity]):
            raise UsageError("the meter plug takes one of power and energy, and read as the same")
        if not self._recipe.readings:
            self._recipe = replace(self._recipe, readings=_named(options, given))
        self._client = http.Client("the plug", options, environment, account=self._recipe.account)
        at = self._client.at
        self._address = f"{at.path}?{at.query}" if at.query else at.path.rstrip("/") and at.path
        if self._recipe.needs_path and not self._address:
            raise UsageError(f"a plug of the kind {kind} needs {self._recipe.needs_path}")

    def find(self) -> Found:
        address, leaves = self._first_reply()
        units = {path: unit for path in leaves if (unit := self._unit(address, path, leaves)) is not None}
        if not units:
            self._refuse_unusable(leaves, "")
            raise MixmarkError(self._without(leaves))
        path = http.choose("reading", self._quantity, units, self._options.get(self._quantity))

        def ask() -> float:
            leaves = self._client.leaves(address)
            self._refuse_unusable(leaves, path)
            return http.number(leaves.get(path), path) * UNITS[units[path]]

        ask()
        quantity: Literal["power", "energy"] = "power" if units[path] in POWER else "energy"
        return Found(ask, f"{self._kind}, {path} in {units[path]}, as declared by its owner", quantity)

    def _first_reply(self) -> tuple[str, http.Leaves]:
        """The address and the reply of the url, or of the first address of the kind that the plug knows."""
        addresses = [self._address] if self._address else self._recipe.asks or [""]
        for address in addresses:
            with suppress(http.NoSuchPath):
                return address, self._client.leaves(address)
        asked = " and ".join(address.partition("?")[0] or "/" for address in addresses)
        raise MixmarkError(f"the plug answers 404 for {asked}: it is of another kind, or its reading has another path")

    def _unit(self, address: str, path: str, leaves: http.Leaves) -> str | None:
        """The unit of a number. None if it is no reading of the quantity that is wanted."""
        at = f"{address.partition('?')[0]} {path}"
        unit = next((unit for pattern, unit in self._recipe.readings.items() if re.fullmatch(pattern, at)), None)
        if unit is None or self._recipe.unit_at is None:
            return unit if unit and (unit in POWER) == (self._quantity == "power") else None
        self._refuse_unusable(leaves, path)
        if (named := str(leaves.get(self._recipe.unit_at))) not in UNITS:
            raise MixmarkError(f"the entity is in {named!a}, which is no unit of power or energy")
        return named

    def _without(self, leaves: http.Leaves) -> str:
        wanted = self._options.get(self._quantity, f"{self._quantity} that the kind {self._kind} knows")
        numbers = [repr(path) for path, value in leaves.items() if type(value) in (int, float)]
        named = ", ".join(numbers[: http.MOST_NAMED]) or "none"
        return f'the plug\'s reply has no {wanted}. Its numbers, which kind = "json" reads: {named}'

    def _refuse_unusable(self, leaves: http.Leaves, path: str) -> None:
        """Raises MixmarkError if the reply says that the number at a path must not be used."""
        beside = path.removesuffix(path.rpartition(".")[2])
        for name, value in leaves.items():
            for pattern, meaning in self._recipe.unusable.items():
                if name.startswith(beside) and re.search(rf"(^|\.){pattern}", f"{name}={value}"):
                    raise MixmarkError(f"the plug's reply says {name} = {ascii(value)[:60]}: {meaning}")


def _named(options: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """The reading that the section names, and its unit. Raises UsageError if they do not fit."""
    hint = 'such as power = "status.watts", or energy = "total" with unit = "kWh"'
    if len(given) != 1:
        raise UsageError("a plug of the kind json needs power or energy, the path of a number", hint)
    path = options[given[0]]
    try:
        unit = unit_of(path, options.get("unit"))
    except ValueError as error:
        raise UsageError(f"a plug of the kind json: {error}", hint) from None
    if (unit in POWER) != (given == ["power"]):
        raise UsageError(f"a plug of the kind json: {unit} is no unit of {given[0]}", hint)
    return {rf"\S* {re.escape(path)}": unit}
