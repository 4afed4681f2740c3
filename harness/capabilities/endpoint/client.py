"""HTTP to an endpoint by httpx2: streams of server-sent events, and errors in plain words.

A key is sent only to the endpoint: no redirect is followed, no proxy is used, and without TLS it goes to this machine
only. A server's text is shown only if no part of the key is in it.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from mixmark.harness.contracts.errors import MixmarkError, PluginError, UsageError
from mixmark.harness.contracts.text import plain

if TYPE_CHECKING:
    from httpx2 import Response

PATIENCE_S = 300.0  # longest time without an event: a prompt of 1,024 tokens takes a small processor a minute
GREETING_S = 10.0  # longest time of requests that need no model
LONGEST_LINE = 1 << 20  # bytes
LONGEST_PAGE = 16 << 20
LONGEST_TEXT = 200  # characters of a server's text that are shown
KEY_PART = 8  # so many characters of a key do not occur by chance
TRIES = 5  # measurements of the network's latency
MS = 1e3  # milliseconds in a second


@dataclass(frozen=True)
class Address:
    """The URL of an endpoint, without user, password, query and fragment. Raises UsageError for any other."""

    url: str

    def __post_init__(self) -> None:
        hint = "give it as http://127.0.0.1:8000/v1 or https://api.example.com/v1"
        try:
            known = bool(self.parts.hostname) and self.parts.scheme in ("http", "https") and self.port > 0
        except ValueError:
            known = False
        if not known or not re.fullmatch("[!-~]+", self.url):
            raise UsageError("adapter endpoint: url is not the address of a server", hint)
        if "@" in self.parts.netloc or self.parts.query or self.parts.fragment:  # may be a secret, so it is not shown
            message = "adapter endpoint: url has a user, a password, a query or a fragment"
            raise UsageError(message, f"{hint}; key_env names the environment variable that holds the key")

    @cached_property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def secure(self) -> bool:
        return self.parts.scheme == "https"

    @property
    def host(self) -> str:
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        return (443 if self.secure else 80) if self.parts.port is None else self.parts.port

    @property
    def is_local(self) -> bool:
        """Whether the address is on this machine's loopback."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Client:
    """Requests to one endpoint, from several threads at once.

    key: the API key; empty if the endpoint needs none. Raises UsageError if the key would cross a network unencrypted.
    """

    def __init__(self, address: Address, key: str = "") -> None:
        import httpx2  # 0.2 s, which the list of options does not spend

        if key and not address.secure and not address.is_local:
            message = "adapter endpoint: a key is sent only by https or to this machine"
            raise UsageError(message, "give url with https, or leave key_env away")
        self.address = address
        self.server = ""
        """The Server header of the endpoint's replies."""
        self._key = key
        self._http = httpx2.Client(
            verify=ssl.create_default_context(),  # with the certificates of the system
            headers={"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None),
            trust_env=False,
        )

    def close(self) -> None:
        self._http.close()

    def clean(self, value: object) -> str:
        """A server's text, cleaned for display; withheld if it contains a part of the key."""
        text, key = str(value), self._key
        if key and any(key[start : start + KEY_PART] in text for start in range(max(1, len(key) - KEY_PART + 1))):
            return "(not shown, because it contains a part of the key)"
        return plain(text, LONGEST_TEXT)

    def get(self, path: str) -> Any:
        """The JSON at a path below the URL; None if the server does not have the path. Raises MixmarkError."""
        with self._reply("GET", path, GREETING_S) as reply:
            page = _page(reply)
            if reply.status_code in (404, 405):
                return None
            if reply.status_code != 200:
                raise self._refusal(reply, page)
            try:
                return json.loads(page)
            except (ValueError, RecursionError):
                raise MixmarkError(f"the reply of {self.address.host} to GET {path} is not JSON") from None

    def events(self, path: str, body: Mapping[str, object]) -> Iterator[Any]:
        """The data of a stream's events, parsed, until the server ends the stream. Raises MixmarkError.

        The caller checks whether the stream is complete. If the caller stops early, the connection is closed, so the
        server stops too.
        """
        host = self.address.host
        with self._reply("POST", path, PATIENCE_S, body) as reply:
            if reply.status_code != 200:
                raise self._refusal(reply, _page(reply))
            pending, until, kind = b"", time.monotonic() + PATIENCE_S, b""
            for data in reply.iter_bytes():
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    field, _, value = line.partition(b":")
                    if field == b"event":
                        kind = value.strip()
                    elif field == b"error" or (field == b"data" and kind == b"error"):
                        raise self._broke_off(value.strip())
                    elif field == b"data":
                        yield self._parsed(value.strip())
                        until = time.monotonic() + PATIENCE_S
                if len(pending) > LONGEST_LINE:
                    raise MixmarkError(f"{host} sent a line of more than {LONGEST_LINE >> 20} MiB")
                if time.monotonic() > until:  # comments may keep a connection alive for ever
                    raise TimeoutError

    def latency_ms(self) -> float:
        """The network's median latency: the time of GET /models, which the server answers without running a model."""
        times = []
        for _ in range(1 + TRIES):
            begin = time.perf_counter()
            with self._reply("GET", "/models", GREETING_S) as reply:
                _page(reply)
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:]) * MS  # the first one may have had no open connection

    @contextmanager
    def _reply(
        self, method: str, path: str, patience_s: float, body: Mapping[str, object] | None = None
    ) -> Iterator[Response]:
        """The reply to a request. Network errors become MixmarkErrors that reveal nothing of it, also while the reply
        is read. A request is sent once more if the connection ends before its reply: the server may have closed a
        connection that was kept just when the request left."""
        import httpx2

        url = self.address.url.rstrip("/") + path
        request = partial(self._http.stream, method, url, json=body, timeout=patience_s)
        try:
            with ExitStack() as stack:
                try:
                    reply = stack.enter_context(request())
                except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
                    reply = stack.enter_context(request())
                self.server = self.clean(reply.headers.get("Server", ""))
                yield reply
        except (OSError, httpx2.HTTPError) as error:
            raise self._explained(error, patience_s) from None

    def _parsed(self, data: bytes) -> Any:
        """The data of an event; `[DONE]` unchanged. Raises MixmarkError for an error that the server reports."""
        if data == b"[DONE]":
            return data.decode()
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise MixmarkError(f"{self.address.host} sent an event that is not JSON") from None
        if isinstance(event, dict) and event.get("error"):
            raise self._broke_off(data)
        return event

    def _broke_off(self, data: bytes) -> MixmarkError:
        return MixmarkError(f"{self.address.host} broke off: {self._reason(data, data.decode(errors='replace'))}")

    def _refusal(self, reply: Response, page: bytes) -> MixmarkError:
        """The error for a reply without the requested content."""
        status, host = reply.status_code, self.address.host
        if 300 <= status < 400:
            target = self.clean(urlsplit(reply.headers.get("Location", "")).hostname or "elsewhere")
            return MixmarkError(f"{host} redirects to {target}, which is not followed", "give the final address as url")
        if status in (401, 403):
            return PluginError(f"{host} refuses the key (HTTP {status})", "key_env names the variable that holds it")
        if status == 429:
            return MixmarkError(f"{host} refuses more requests (HTTP 429)", "lower concurrency, or wait")
        return MixmarkError(f"{host} answers with HTTP {status}: {self._reason(page, reply.reason_phrase)}")

    def _reason(self, text: bytes, otherwise: str) -> str:
        """The message of an error in a server's reply, which may be no JSON."""
        try:
            reply = json.loads(text)
        except (ValueError, RecursionError):
            return self.clean(otherwise)
        error = reply.get("error", reply) if isinstance(reply, dict) else reply
        return self.clean(error.get("message", error) if isinstance(error, dict) else error)

    def _explained(self, error: BaseException, patience_s: float) -> MixmarkError:
        while causes := [each for each in (error.__cause__, *error.args) if isinstance(each, BaseException)]:
            error = causes[0]  # httpx2 wraps the error of the socket
        if isinstance(error, TimeoutError):
            return MixmarkError(f"{self.address.host} sent nothing for {patience_s:g} s")
        hint = "start the server, or correct url"
        return MixmarkError(f"the connection to {self.address.host} failed: {self.clean(error)}", hint)


def _page(reply: Response) -> bytes:
    """The content of a reply, at most LONGEST_PAGE bytes of it."""
    page = b""
    for data in reply.iter_bytes():
        page += data
        if len(page) > LONGEST_PAGE:
            break
    return page
