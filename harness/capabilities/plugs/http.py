"""Asks devices on the local network over HTTP: a plug, or a controller. The client is httpx2.

A redirect is followed; httpx2 gives no account to another host, nor to http from https. The proxies, the certificates
and the .netrc of the environment are not used, because the device is in the local network.
"""

from __future__ import annotations

import json
import math
import os
import ssl
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, urlencode, urlsplit

from mixmark.harness.capabilities.plugs.polled import PATIENCE_S
from mixmark.harness.contracts.errors import MixmarkError, UsageError, explained
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    import httpx2

MOST_NAMED = 12

Leaves = dict[str, object]
"""The values of a JSON text, each by its path: names and positions, with dots between them."""


AccountIn = Literal["header", "query"]


class NoSuchPath(MixmarkError):
    """The device knows no such path."""


class Client:
    """A device behind HTTP.

    what: `the plug`. options: its section; url, user, password_env, token_env and verify are used. environment: None
    means the process's own. account: where the account goes. Raises UsageError for an option that cannot be used.

    The account is given by digest if the device asks for that, and over http only if it asks. The errors of a reply
    name neither the address nor the account, because they are stored in a result.
    """

    def __init__(
        self,
        what: str,
        options: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        account: AccountIn = "header",
    ) -> None:
        import httpx2  # 0.2 s, which a machine without such a device does not spend

        self._what, self.at = what, _address(what, options)
        user, secret = _account(what, options, os.environ if environment is None else environment)
        self._account = (user, secret) if user and account == "header" else None
        self._query = f"&{urlencode({'user': user, 'password': secret})}" if user and account == "query" else ""
        token = {"Authorization": f"Bearer {secret}"} if secret and not user else {}
        # NotImplementedError: the library knows no digest with auth-int.
        self._errors = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, NotImplementedError)
        self._client = httpx2.Client(
            verify=_verified(options.get("verify", "yes")),
            auth=self._account if self.at.scheme == "https" else None,  # some do not ask, but show a login page
            headers={"Accept": "application/json", **(headers or {}), **token},
            timeout=PATIENCE_S,
            trust_env=False,
            follow_redirects=True,
            limits=httpx2.Limits(max_keepalive_connections=0),  # a plug has few connections, for others too
        )

    def leaves(self, path: str) -> Leaves:
        """The values of the JSON at a path. Raises MixmarkError; NoSuchPath if the device answers 404."""
        try:
            reply = self._get(path)
        except self._errors as error:
            said = plain(str(error), 160).replace(str(self.at.hostname), "it") or type(error).__name__
            raise MixmarkError(f"{self._what} gives no answer for {_bare(path)}: {said}") from None
        if not reply.is_success:
            code, reason = reply.status_code, plain(reply.reason_phrase, 60)
            advice = ": check user and password_env, or token_env" if code in (401, 403) else ""
            kind = NoSuchPath if code == 404 else MixmarkError
            raise kind(f"{self._what} answers {code} {reason} for {_bare(path)}{advice}")
        text = reply.content.decode("utf-8-sig", "replace")
        try:
            return dict(_leaves(json.loads(text)))
        except (ValueError, RecursionError):
            html = "HTML: it has another address, or wants a login: " if "<" in text[:200] else ""
            raise MixmarkError(f"{self._what} answers {_bare(path)} with no JSON: {html}{text[:40]!a}") from None

    def _get(self, path: str) -> httpx2.Response:
        """Raises one of `_errors` if there is no reply."""
        url = f"{self.at.scheme}://{self.at.netloc}{path}{self._query}"
        reply = self._client.get(url)
        return self._client.get(url) if reply.status_code == 401 and self._takes_scheme(reply) else reply

    def _takes_scheme(self, refusal: httpx2.Response) -> bool:
        """Whether there is an account to give in the scheme that the device asks for, in which it was not given yet."""
        from httpx2 import BasicAuth, DigestAuth

        scheme = DigestAuth if "digest" in refusal.headers.get("WWW-Authenticate", "").lower() else BasicAuth
        if self._account is None or isinstance(self._client.auth, scheme):
            return False
        self._client.auth = scheme(*self._account)
        return True


def number(value: object, what: str) -> float:
    """A number, also in a text, as JSON writes it. Raises MixmarkError."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
        if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
            return float(found)
    except (ValueError, OverflowError, RecursionError):
        pass
    raise MixmarkError(f"there is no number for {what}: {ascii(value)[:40]}")


def choose(what: str, option: str, names: Collection[str], wanted: str | None) -> str:
    """The wanted name, or the only one. Raises MixmarkError with the names if the wanted one is unknown, or none is
    wanted and there are several."""
    known = ", ".join(f'{option} = "{plain(name, 80)}"' for name in list(names)[:MOST_NAMED])
    if wanted is not None and wanted not in names:
        raise MixmarkError(f"there is no {what} {wanted!a}; known: {known or 'none'}")
    if wanted is None and len(names) != 1:
        raise MixmarkError(f"there is more than one {what}: choose {known}" if names else f"there is no {what}")
    return next(iter(names)) if wanted is None else wanted


def _address(what: str, options: Mapping[str, str]) -> SplitResult:
    try:
        found = urlsplit(options.get("url", ""))
        complete = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:  # of the port, or the brackets of IPv6
        complete = False
    if not complete:
        hint = 'such as url = "https://192.0.2.10" in its section of mixmark.toml'
        raise UsageError(f"{what} needs url, which begins with http:// or https://", hint)
    if found.username or found.password:
        raise UsageError(f"{what} takes no account inside of url", hint="give user and password_env")
    if found.fragment:
        raise UsageError(f"{what} takes no # in url", hint="a browser does not send what follows it")
    return found


def _account(what: str, options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str]:
    """The user and the password, or an empty user and a token; both empty if none is declared."""
    given = [name for name in ("password_env", "user", "token_env") if name in options]
    if not given:
        return "", ""
    if given not in (["password_env", "user"], ["token_env"]):
        raise UsageError(f"{what} needs user with password_env, or token_env, not {' and '.join(given)}")
    variable = options[given[0]]
    if not (secret := environment.get(variable, "")):
        raise UsageError(f"{what} finds no password: {given[0]} names {variable}", hint=f"export {variable}=…")
    return options.get("user", ""), secret


def _verified(verify: str) -> ssl.SSLContext | bool:
    if verify in ("yes", "no", "true", "false"):
        return verify in ("yes", "true")
    with explained(f"cannot read the certificate {verify}", "give the file of the plug's certificate"):
        return ssl.create_default_context(cafile=verify)


def _leaves(value: object, at: str = "") -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict | list):
        yield at, value
        return
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(inner, f"{at}.{name}" if at else str(name))


def _bare(path: str) -> str:
    """A path without its query, which may hold a password."""
    return path.partition("?")[0] or "/"
