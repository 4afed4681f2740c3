"""A server on this machine that answers as power plugs and controllers do."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Device

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
SECRET = "correct horse"
DIGEST = 'Digest qop="auth", realm="shellyplug", nonce="60dc2c69", algorithm=SHA-256'


def gathered(take: Callable[[], Sequence[Sample]]) -> Sequence[Sample]:
    """The first reply, which takes a moment."""
    for _ in range(4000):
        if samples := take():
            return samples
        time.sleep(0.005)
    raise AssertionError("no reply")


@contextmanager
def served(kind: str, watts: float = 123.4, joules: float = 7_200_000.0, **more: Any) -> Iterator[PlugServer]:
    server = PlugServer(kind, lambda: watts, lambda: joules, **more)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class PlugServer(ThreadingHTTPServer):
    """power_w, counter_j: what the plug shows now. mangled: changes each reply. needs: the header Authorization. tree:
    replies by address, in place of the kind's; a number is a status, a text an address to go on to by `redirects`."""

    daemon_threads = True

    def __init__(
        self, kind: str, power_w: Callable[[], float], counter_j: Callable[[], float], tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.kind, self.power_w, self.counter_j = kind, power_w, counter_j
        self.mangled: Callable[[_Answers, bytes], bytes] = lambda request, body: body
        self.needs = ""
        self.redirects = 302
        self.tree: dict[str, Any] | None = None
        self.asked: list[str] = []
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def options(self, **more: str) -> dict[str, str]:
        """Those that read this plug."""
        path = {"homeassistant": "/api/states/sensor.plug", "json": "/status"}.get(self.kind, "")
        kind = self.kind.rstrip("1")
        own = {"kind": kind, "url": f"http://127.0.0.1:{self.server_address[1]}{path}"}
        own |= {"power": "readings.0.watts"} if kind == "json" and "energy" not in more else {}
        return own | more

    def reply(self, path: str) -> Any:
        """What the plug answers; None: it knows no such path."""
        watts, joules = self.power_w(), self.counter_j()
        status = {"StatusSNS": {"Time": "t", "ENERGY": {"Total": round(joules / 3.6e6, 3), "Power": round(watts)}}}
        entity = {"state": str(round(watts, 1)), "attributes": {"unit_of_measurement": "W"}}
        energies = {"aenergy": {"total": round(joules / 3600, 3), "by_minute": [0.0]}, "ret_aenergy": {"total": 1.0}}
        switch = {"id": 0, "apower": round(watts, 1), **energies}
        meter = {"power": round(watts, 2), "is_valid": True, "total": int(joules / 60)}
        replies: dict[str, dict[str, Any]] = {
            "shelly": {"/rpc/Shelly.GetStatus": {"sys": {"uptime": 9}, "switch:0": switch}},
            "shelly1": {"/status": {"meters": [meter], "uptime": 9}},
            "tasmota": {"/cm": status},
            "homeassistant": {"/api/states/sensor.plug": entity},
            "json": {"/status": {"readings": [{"watts": watts}], "total": joules / 3.6e6}},
        }
        return replies[self.kind].get(urlsplit(path).path)


def _knows(authorization: str, path: str) -> bool:
    """Whether a header proves the password, by RFC 7616 with SHA-256 and qop=auth."""

    def sha256(*parts: str) -> str:
        return hashlib.sha256(":".join(parts).encode()).hexdigest()

    given = dict(re.findall(r'(\w+)="?([^",]+)"?', authorization))
    secret, asked = sha256("admin", "shellyplug", SECRET), sha256("GET", path)
    try:
        return bool(
            given["response"] == sha256(secret, given["nonce"], given["nc"], given["cnonce"], given["qop"], asked)
        )
    except KeyError:
        return False


class _Answers(BaseHTTPRequestHandler):
    server: PlugServer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        needs, given = self.server.needs, self.headers["Authorization"] or ""
        if needs and not (_knows(given, self.path) if needs == DIGEST else given == needs):
            self.turn_away(401, "WWW-Authenticate", DIGEST if needs == DIGEST else 'Basic realm="shelly"')
            return
        tree = self.server.tree
        found = self.server.reply(self.path) if tree is None else tree.get(self.path)
        if found is None or type(found) is int:
            self.send_error(found or 404)
            return
        if tree is not None and isinstance(found, str):
            self.turn_away(self.server.redirects, "Location", found)
            return
        body = found.encode() if isinstance(found, str) else found
        body = body if isinstance(body, bytes) else json.dumps(found).encode()
        body = self.server.mangled(self, body)
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # the meter may be gone
            self.wfile.write(body)

    def turn_away(self, status: int, header: str, value: str) -> None:
        self.send_response(status)
        self.send_header(header, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass
