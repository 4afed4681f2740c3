"""HTTP to an endpoint: persistent connections, streams of server-sent events, and errors in plain words.

A key is sent only to the endpoint: no redirect is followed, no proxy is used, and without TLS it goes to this machine
only. A server's text is shown only if no part of the key is in it.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import SplitResult, urlsplit

from mixmark.harness.contracts.errors import MixmarkError, PluginError, UsageError
from mixmark.harness.contracts.text import plain

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
        if key and not address.secure and not address.is_local:
            message = "adapter endpoint: a key is sent only by https or to this machine"
            raise UsageError(message, "give url with https, or leave key_env away")
        self.address = address
        self.server = ""
        """The Server header of the endpoint's replies."""
        self._key = key
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def clean(self, value: object) -> str:
        """A server's text, cleaned for display; withheld if it contains a part of the key."""
        text, key = str(value), self._key
        if key and any(key[start : start + KEY_PART] in text for start in range(max(1, len(key) - KEY_PART + 1))):
            return "(not shown, because it contains a part of the key)"
        return plain(text, LONGEST_TEXT)

    def get(self, path: str) -> Any:
        """The JSON at a path below the URL; None if the server does not have the path. Raises MixmarkError."""
        with self._errors_explained(GREETING_S):
            response, page = self._get(path)
            if response.status in (404, 405):
                return None
            if response.status != 200:
                raise self._refusal(response, page)
            try:
                return json.loads(page)
            except (ValueError, RecursionError):
                raise MixmarkError(f"the reply of {self.address.host} to GET {path} is not JSON") from None

    def events(self, path: str, body: Mapping[str, object]) -> Iterator[Any]:
        """The data of a stream's events, parsed, until the server ends the stream. Raises MixmarkError.

        The caller checks whether the stream is complete. If the caller stops early, the connection is closed, so the
        server stops too.
        """
        connection: http.client.HTTPConnection | None = None
        try:
            with self._errors_explained(PATIENCE_S):
                connection, response = self._request("POST", path, PATIENCE_S, json.dumps(body).encode())
                if response.status != 200:
                    raise self._refusal(response, response.read(LONGEST_LINE))
                until = time.monotonic() + PATIENCE_S
                while line := response.readline(LONGEST_LINE + 1):
                    if len(line) > LONGEST_LINE:
                        raise MixmarkError(f"{self.address.host} sent a line of more than {LONGEST_LINE >> 20} MiB")
                    if line.startswith(b"data:"):
                        yield self._parsed(line[5:].strip())
                        until = time.monotonic() + PATIENCE_S
                    elif time.monotonic() > until:  # comments may keep a connection alive for ever
                        raise TimeoutError
                if response.isclosed() and not response.will_close:
                    self._idle.append(connection)
                    connection = None
        finally:
            if connection is not None:
                connection.close()

    def latency_ms(self) -> tuple[float, float]:
        """The network's median latencies: to connect, and to the first byte of GET /models on an open connection.

        The server answers GET /models without running a model.
        """
        connects, firsts = [], []
        with self._errors_explained(GREETING_S):
            for _ in range(TRIES):
                begin = time.perf_counter()
                socket.create_connection((self.address.host, self.address.port), GREETING_S).close()
                connected = time.perf_counter()
                self._get("/models")
                again = time.perf_counter()
                self._get("/models")
                connects.append(connected - begin)
                firsts.append(time.perf_counter() - again)
        return statistics.median(connects) * MS, statistics.median(firsts) * MS

    def _get(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection, response = self._request("GET", path, GREETING_S)
        try:
            page = response.read(LONGEST_PAGE)
            if response.isclosed() and not response.will_close:
                self._idle.append(connection)
                return response, page
        except BaseException:
            connection.close()
            raise
        connection.close()
        return response, page

    def _request(
        self, method: str, path: str, patience_s: float, body: bytes | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Sends a request, on a new connection if the server has closed the idle one."""
        while True:
            try:
                connection, fresh = self._idle.pop(), False
            except IndexError:
                connection, fresh = self._connection(), True
            try:
                connection.timeout = patience_s
                if connection.sock is not None:
                    connection.sock.settimeout(patience_s)
                connection.request(method, self.address.parts.path.rstrip("/") + path, body, self._headers)
                response = connection.getresponse()
            except BaseException as error:
                connection.close()
                if fresh or not isinstance(error, ConnectionError):
                    raise
            else:
                self.server = self.clean(response.headers.get("Server", ""))
                return connection, response

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.address.host, self.address.port
        return (
            http.client.HTTPSConnection(host, port) if self.address.secure else http.client.HTTPConnection(host, port)
        )

    def _parsed(self, data: bytes) -> Any:
        """The data of an event; `[DONE]` unchanged. Raises MixmarkError for an error that the server reports."""
        if data == b"[DONE]":
            return data.decode()
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise MixmarkError(f"{self.address.host} sent an event that is not JSON") from None
        if isinstance(event, dict) and event.get("error"):
            raise MixmarkError(f"{self.address.host} broke off: {self._reason(event)}")
        return event

    def _refusal(self, response: http.client.HTTPResponse, page: bytes) -> MixmarkError:
        """The error for a reply without the requested content."""
        status, host = response.status, self.address.host
        if 300 <= status < 400:
            target = self.clean(urlsplit(response.headers.get("Location", "")).hostname or "elsewhere")
            return MixmarkError(f"{host} redirects to {target}, which is not followed", "give the final address as url")
        if status in (401, 403):
            return PluginError(f"{host} refuses the key (HTTP {status})", "key_env names the variable that holds it")
        if status == 429:
            return MixmarkError(f"{host} refuses more requests (HTTP 429)", "lower concurrency, or wait")
        try:
            reason = self._reason(json.loads(page))
        except (ValueError, RecursionError):
            reason = self.clean(response.reason)
        return MixmarkError(f"{host} answers with HTTP {status}: {reason}")

    def _reason(self, reply: Any) -> str:
        """The message of an error in a server's reply."""
        error = reply.get("error", reply) if isinstance(reply, dict) else reply
        return self.clean(error.get("message", error) if isinstance(error, dict) else error)

    @contextmanager
    def _errors_explained(self, patience_s: float) -> Iterator[None]:
        """Turns network errors into MixmarkErrors that reveal nothing of the request."""
        host = self.address.host
        try:
            yield
        except TimeoutError:
            raise MixmarkError(f"{host} sent nothing for {patience_s:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise MixmarkError(f"the certificate of {host} is not trusted: {error.verify_message}") from None
        except ssl.SSLError as error:
            raise MixmarkError(f"TLS with {host} failed: {error.reason}", "use http:// if it has no TLS") from None
        except socket.gaierror:
            raise MixmarkError(f"there is no host {host}", "correct url") from None
        except ConnectionRefusedError:
            message = f"nothing listens at {host}, port {self.address.port}"
            raise MixmarkError(message, "start the server, or correct url") from None
        except http.client.IncompleteRead:
            raise MixmarkError(f"{host} closed the connection before the end of its reply") from None
        except (OSError, http.client.HTTPException) as error:
            raise MixmarkError(f"the connection to {host} failed: {type(error).__name__}") from None
