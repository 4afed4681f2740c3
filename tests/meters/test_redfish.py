"""A web server of ours on this machine answers as DMTF's schemas have it; no controller was ever here."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Device, Domain
from mixmark.harness.meters.redfish import Redfish

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
SECRET = "correct horse"
Tree = dict[str, object]


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def old(watts: object = 344) -> Tree:
    """A chassis with the resource Power, which DMTF has deprecated and most controllers have."""
    return {
        "/redfish/v1/Chassis": {"Members": [link("/redfish/v1/Chassis/1")]},
        "/redfish/v1/Chassis/1": {"Power": link("/redfish/v1/Chassis/1/Power")},
        "/redfish/v1/Chassis/1/Power": {"PowerControl": [{"PowerConsumedWatts": watts}, {"PowerConsumedWatts": 9}]},
    }


def new(watts: object = 512.5) -> Tree:
    metrics = "/redfish/v1/Chassis/Self/EnvironmentMetrics"
    return {
        "/redfish/v1/Chassis": {"Members": [link("/redfish/v1/Chassis/Self"), link("/redfish/v1/Chassis/Rail")]},
        "/redfish/v1/Chassis/Self": {"EnvironmentMetrics": link(metrics), "Power": link("/redfish/v1/gone")},
        "/redfish/v1/Chassis/Rail": {},
        metrics: {"PowerWatts": {"Reading": watts}},
    }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    tree: Tree
    account = ""


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        token = base64.b64encode(self.server.account.encode()).decode()
        if self.server.account and self.headers["Authorization"] != f"Basic {token}":
            self.send_error(401)
            return
        found = self.server.tree.get(self.path)
        if found is None:
            self.send_error(404)
        elif isinstance(found, str):  # a place to go on to
            self.send_response(302)
            self.send_header("Location", found)
            self.end_headers()
        else:
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def meter(server: Server, **options: str) -> Redfish:
    return Redfish({"url": f"http://127.0.0.1:{server.server_port}", **options}, {"BMC_PASSWORD": SECRET})


def refused(server: Server, **options: str) -> str:
    (absent,) = meter(server, **options).domains([CPU])
    assert isinstance(absent, Absent)
    assert str(server.server_port) not in absent.reason
    return absent.reason


def gathered(take: Callable[[], object]) -> object:
    for _ in range(2000):
        if samples := take():
            return samples
        time.sleep(0.005)
    raise AssertionError("no answer")


@pytest.mark.parametrize(("tree", "watts", "chassis"), [(old(), 344.0, "1"), (new(), 512.5, "Self")])
def test_the_controller_gives_the_power_of_the_node(server: Server, tree: Tree, watts: float, chassis: str) -> None:
    server.tree = tree
    redfish = meter(server)
    (domain,) = redfish.domains([CPU])
    assert isinstance(domain, Domain)
    assert (domain.boundary, domain.quantity, domain.covers) == ("node", "power", ("cpu:0", "memory", "node"))
    assert f"chassis {chassis}" in domain.source and "127.0.0.1" not in domain.source
    assert gathered(lambda: redfish.read(domain)) == [Sample(watts)]


def test_the_password_comes_from_the_environment_and_goes_nowhere_else(server: Server) -> None:
    server.tree, server.account = old(), f"reader:{SECRET}"
    (domain,) = meter(server, user="reader", password_env="BMC_PASSWORD").domains([CPU])
    assert isinstance(domain, Domain)
    assert SECRET not in domain.model_dump_json() and "reader" not in domain.model_dump_json()
    assert "check user and password_env" in refused(server, user="reader", password_env="ANOTHER")
    assert "401" in refused(server)


def test_of_several_chassis_one_is_named(server: Server) -> None:
    server.tree = {**old(), **new()}
    server.tree["/redfish/v1/Chassis"] = {"Members": [link("/redfish/v1/Chassis/1"), link("/redfish/v1/Chassis/Self")]}
    assert "chassis = 1 or Self" in refused(server)
    (domain,) = meter(server, chassis="Self").domains([CPU])
    assert isinstance(domain, Domain)
    assert "no chassis" in refused(server, chassis="2")


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("/redfish/v1/Chassis", None, "404"),
        ("/redfish/v1/Chassis", {"Members": "many"}, "no chassis"),
        ("/redfish/v1/Chassis", [], "is no object"),
        ("/redfish/v1/Chassis", b"<html>", "HTML: it has another address, or wants a login"),
        ("/redfish/v1/Chassis", b"[" * 100_000, "with no JSON"),
        ("/redfish/v1/Chassis", "http://127.0.0.1:9/redfish", "302"),
        ("/redfish/v1/Chassis", {"Members": [link("//127.0.0.1:9/")]}, "another address"),
        ("/redfish/v1/Chassis", {"Members": [link("file:/etc/passwd")]}, "another address"),
        ("/redfish/v1/Chassis", {"Members": [link("/a b\r\n")]}, "cannot be read"),
        ("/redfish/v1/Chassis/1/Power", {"PowerControl": [{"PowerConsumedWatts": None}]}, "no chassis"),
        ("/redfish/v1/Chassis/1/Power", {"PowerControl": [{"PowerConsumedWatts": 0}]}, "no chassis"),
        ("/redfish/v1/Chassis/1/Power", {"PowerControl": []}, "no chassis"),
        ("/redfish/v1/Chassis/1/Power", {"PowerControl": [{"PowerConsumedWatts": "344"}]}, "no chassis"),
    ],
)
def test_a_controller_that_answers_otherwise_says_how(server: Server, path: str, content: object, reason: str) -> None:
    server.tree = {key: value for key, value in {**old(), path: content}.items() if value is not None}
    assert reason in refused(server)


def test_nobody_there_is_said_before_the_run(server: Server) -> None:
    with Server(("127.0.0.1", 0), Answers) as gone:
        pass
    assert "cannot be reached" in refused(gone)
    (absent,) = Redfish({}).domains([CPU])
    assert isinstance(absent, Absent) and "mixmark.toml" in absent.reason


def test_a_certificate_of_another_does_not_give_the_address_away(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mismatch(*_: object, **__: object) -> None:
        raise urllib.error.URLError("Hostname mismatch, certificate is not valid for '127.0.0.1'.")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", mismatch)
    assert refused(server).endswith("certificate is not valid for 'it'.")


@pytest.mark.parametrize(
    "options",
    [
        {"password": SECRET},
        {"url": "http://192.0.2.7"},
        {"url": "192.0.2.7"},
        {"url": "https://reader:secret@192.0.2.7"},
        {"url": "https://192.0.2.7/redfish"},
        {"url": "https://192.0.2.7", "verify": "/no/such.pem"},
    ],
)
def test_options_that_mean_nothing_or_give_a_secret_away_are_misuse(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refusal:
        Redfish(options)
    assert SECRET not in f"{refusal.value} {refusal.value.hint}"
