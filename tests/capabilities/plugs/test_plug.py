"""Servers of ours on this machine answer as the makers of plugs document it; no plug was ever here."""

from __future__ import annotations

import base64
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mixmark.harness.capabilities.plugs import http
from mixmark.harness.capabilities.plugs.plug import Plug
from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Absent, Domain
from tests.capabilities.plugs.servers import CPU, DIGEST, SECRET, PlugServer, gathered, served

PLUGS = ("shelly", "shelly1", "tasmota", "homeassistant", "json")
SECOND = 1_000_000_000
BASIC = "Basic " + base64.b64encode(f"admin:{SECRET}".encode()).decode()


def first_of(server: PlugServer, **options: str) -> tuple[Domain | Absent, Plug]:
    meter = Plug(server.options(**options), {"PLUG": SECRET, "TOKEN": "abc"})
    [found] = meter.domains([CPU])
    return found, meter


def metered(server: PlugServer, **options: str) -> tuple[Domain, Plug]:
    found, meter = first_of(server, **options)
    assert isinstance(found, Domain), found
    return found, meter


def read(meter: Plug, domain: Domain) -> float:
    """The first value that the meter gives."""
    return gathered(lambda: meter.read(domain))[0].value


def refusal(server: PlugServer, **options: str) -> str:
    found, _ = first_of(server, **options)
    assert isinstance(found, Absent)
    assert "127.0.0.1" not in found.reason and SECRET not in found.reason
    return found.reason


@pytest.mark.parametrize("kind", PLUGS)
def test_each_kind_gives_its_watts(kind: str) -> None:
    with served(kind) as server:
        found, meter = metered(server, accuracy="1%")
        assert (found.boundary, found.quantity, found.method, found.accuracy) == ("wall", "power", "external", 0.01)
        assert "node" in found.covers
        assert "127.0.0.1" not in found.source
        assert read(meter, found) == pytest.approx(123 if kind == "tasmota" else 123.4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"read": "energy"}) for kind in ("shelly", "shelly1", "tasmota")),
        ("json", {"energy": "total", "unit": "kWh"}),
    ],
)
def test_each_counter_gives_its_joules(kind: str, options: dict[str, str]) -> None:
    with served(kind) as server:
        found, meter = metered(server, **options)
        assert found.quantity == "energy"
        assert read(meter, found) == pytest.approx(7_200_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs kind"),
        ({"kind": "shely", "url": "http://h"}, "takes kind shelly"),
        ({"kind": "shelly"}, "needs url, which begins with http://"),
        ({"kind": "shelly", "url": "192.0.2.10"}, "begins with http://"),
        ({"kind": "shelly", "url": "http://h:port"}, "begins with http://"),
        ({"kind": "shelly", "url": "http://a:b@h"}, "no account inside of url"),
        ({"kind": "shelly", "url": "http://h/#/relay/1"}, "no # in url"),
        ({"kind": "shelly", "url": "http://h", "power": "a", "energy": "b"}, "one of power and energy"),
        ({"kind": "shelly", "url": "http://h", "power": "a", "read": "energy"}, "read as the same"),
        ({"kind": "shelly", "url": "http://h", "unit": "kW"}, "no option unit"),
        ({"kind": "shelly", "url": "http://h", "user": "admin"}, "needs user with password_env"),
        ({"kind": "shelly", "url": "http://h", "password_env": "PLUG"}, "not password_env"),
        ({"kind": "json", "url": "http://h", "power": "w", "token_env": "T", "user": "b"}, "not user and token_env"),
        ({"kind": "homeassistant", "url": "http://h"}, "url of an entity"),
        ({"kind": "json", "url": "http://h"}, "needs power or energy"),
        ({"kind": "json", "url": "http://h", "power": "a", "energy": "b", "unit": "W"}, "one of power and energy"),
        ({"kind": "json", "url": "http://h", "power": "a"}, "'a' does not say its unit: add unit"),
        ({"kind": "json", "url": "http://h", "power": "a_kwh"}, "kWh is no unit of power"),
        ({"kind": "homeassistant", "url": "http://h/api", "token_env": "NONE"}, "token_env names NONE"),
    ],
)
def test_a_section_that_does_not_fit_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Plug(options, {})


def test_another_plugs_json_and_replies_that_are_none_are_named() -> None:
    with served("tasmota") as server:
        assert "404 for /rpc/Shelly.GetStatus and /status" in refusal(server, kind="shelly")
    with served("json") as server:
        assert "has no readings.7.watts" in (said := refusal(server, power="readings.7.watts"))
        assert said.endswith("'readings.0.watts', 'total'")
        server.mangled = lambda request, body: b'{"readings": [{"watts": NaN}]}'
        assert "no number" in refusal(server)
        server.mangled = lambda request, body: b"<!doctype html><title>login</title>"
        assert "wants a login" in refusal(server)
        server.needs = "Basic never"
        assert "check user and password_env" in refusal(server)
        server.shutdown()
        server.server_close()
        assert "refused" in refusal(server)


def test_a_plug_that_answers_too_late_or_no_more_is_lost_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    over = threading.Event()
    with served("json") as server:
        found, meter = metered(server)

        def late(request: Any, body: bytes) -> bytes:
            over.wait()
            return body

        server.mangled = late
        with pytest.raises(MixmarkError, match="no answer for /status: timed out"):
            for _ in range(2000):
                meter.read(found)
                time.sleep(0.01)
        over.set()


def test_a_wrong_certificate_is_refused_and_the_right_one_taken(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    made = subprocess.run(
        ["openssl", *words.split(), "-keyout", str(key), "-out", str(certificate)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no openssl: apt-get install openssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with served("json", tls=context) as server:
        url = f"https://127.0.0.1:{server.server_address[1]}/status"
        assert "certificate verify failed" in refusal(server, url=url).lower()
        found, _ = metered(server, url=url, verify=str(certificate))
        server.tree = {"/status": "/there", "/there": {"readings": [{"watts": 12.5}]}}
        found, meter = metered(server, url=url, verify="no")
        assert read(meter, found) == 12.5


def test_passwords_come_from_the_environment_and_go_to_the_plug_alone() -> None:
    with served("homeassistant") as server:
        server.needs = "Bearer abc"
        found, _ = metered(server, token_env="TOKEN")
        assert "abc" not in found.model_dump_json()
    with served("tasmota") as server:
        metered(server, user="admin", password_env="PLUG")
        assert server.asked[-1] == "/cm?cmnd=Status%2010&user=admin&password=correct+horse"
        server.mangled = lambda request, body: b"?"
        assert SECRET not in refusal(server, user="admin", password_env="PLUG")


@pytest.mark.parametrize(("kind", "needs"), [("shelly", DIGEST), ("shelly1", BASIC)])
def test_a_shelly_asks_for_its_password_in_the_way_of_its_generation(kind: str, needs: str) -> None:
    with served(kind) as server:
        server.needs = needs
        assert "401" in refusal(server)
        found, meter = metered(server, user="admin", password_env="PLUG")
        assert read(meter, found) == pytest.approx(123.4)
        meter = Plug(server.options(user="admin", password_env="PLUG"), {"PLUG": "wrong"})
        [lost] = meter.domains([CPU])
        assert isinstance(lost, Absent) and "check user and password_env" in lost.reason


def test_an_entity_in_another_unit_is_refused_and_kilowatts_are_understood() -> None:
    with served("homeassistant", watts=1.5) as server:

        def unit(name: str) -> None:
            server.mangled = lambda request, body: body.replace(b'"W"', f'"{name}"'.encode())

        unit("kW")
        found, meter = metered(server)
        assert read(meter, found) == 1500
        unit("VA")
        assert "'VA', which is no unit" in refusal(server)


SWITCHES = {
    "switch:0": {"apower": 8.0, "aenergy": {"total": 1.0}},
    "switch:1": {"apower": 150.0, "aenergy": {"total": 2.0}},
    "input:0": {"state": True},
}
PHASES = {"a_act_power": 10.0, "b_act_power": 20.5, "c_act_power": 30.0, "a_aprt_power": 99.0, "total_act_power": 60.5}
BROKEN = {"apower": 0, "errors": ["power_meter_failure"]}
COUNTERS = {"total_act_energy": 2.0, "total_act_ret_energy": 9.0}
METERS = [{"power": 8.0, "is_valid": True, "total": 60}, {"power": 150.0, "is_valid": True, "total": 120}]
STATUS, TASMOTA = "/rpc/Shelly.GetStatus", "/cm?cmnd=Status%2010"


def tasmota(power: object) -> dict[str, Any]:
    return {TASMOTA: {"StatusSNS": {"ENERGY": {"Power": power, "Total": 1.5, "ApparentPower": power}}}}


@pytest.mark.parametrize(
    ("kind", "tree", "options", "value"),
    [
        ("shelly", {"/rpc/Switch.GetStatus?id=1": {"apower": 150.0}}, {"path": "/rpc/Switch.GetStatus?id=1"}, 150),
        ("shelly", {STATUS: SWITCHES}, {"power": "switch:1.apower"}, 150),
        ("shelly", {STATUS: SWITCHES}, {"energy": "switch:1.aenergy.total"}, 7200),
        ("shelly", {STATUS: {"em:0": PHASES}}, {"power": "em:0.total_act_power"}, 60.5),
        ("shelly", {"/rpc/EM.GetStatus": PHASES}, {"path": "/rpc/EM.GetStatus", "power": "b_act_power"}, 20.5),
        ("shelly", {STATUS: {"em1data:0": COUNTERS}}, {"read": "energy"}, 7200),
        ("shelly", {"/status": {"meters": METERS}}, {"power": "meters.1.power"}, 150),
        ("shelly", {"/status": {"meters": METERS}}, {"energy": "meters.1.total"}, 7200),
        ("shelly", {"/status": {"emeters": METERS[:1]}}, {"read": "energy"}, 216_000),
        ("shelly", {"/meter/1": METERS[1]}, {"path": "/meter/1"}, 150),
        ("shelly", {"/emeter/0": METERS[0]}, {"path": "/emeter/0", "read": "energy"}, 216_000),
        ("shelly", {"/proxy/meter/0": METERS[0]}, {"path": "/proxy/meter/0", "read": "energy"}, 3600),
        ("tasmota", tasmota(61), {}, 61),
        ("tasmota", tasmota([100, 0, 7]), {"power": "StatusSNS.ENERGY.Power.2"}, 7),
        ("tasmota", {"/cm?cmnd=Status%208": tasmota(62)[TASMOTA]}, {"path": "/cm?cmnd=Status%208"}, 62),
        ("json", {"/": [[1, "12.5"]]}, {"power": "0.1", "unit": "W"}, 12.5),
        ("json", {"/?a=b&c": {"x.y": 12.5}}, {"path": "?a=b&c", "power": "x.y", "unit": "kW"}, 12_500),
        ("json", {"/": {"emeter": {"power_mw": [20_000]}}}, {"power": "emeter.power_mw.0"}, 20),
    ],
)
def test_the_reading_that_is_meant_is_read(
    kind: str, tree: dict[str, Any], options: dict[str, str], value: float
) -> None:
    with served("tree") as server:
        server.tree = tree
        path = options.pop("path", "/" if kind == "json" else "")
        found, meter = metered(server, **{"kind": kind, "url": server.options()["url"] + path, **options})
        assert read(meter, found) == value


@pytest.mark.parametrize(
    ("kind", "tree", "options", "says"),
    [
        ("shelly", {STATUS: SWITCHES}, {}, 'choose power = "switch:0.apower", power = "switch:1.apower"'),
        ("shelly", {STATUS: SWITCHES}, {"power": "switch:2.apower"}, 'known: power = "switch:0.apower"'),
        ("shelly", {STATUS: {"switch:0": {"apower": None}}}, {}, "no number for switch:0.apower: None"),
        ("shelly", {STATUS: {"switch:0": {"apower": True}}}, {}, "no number"),
        ("shelly", {STATUS: {"switch:0": {"output": True}}}, {}, "that the kind"),
        ("shelly", {STATUS: {"switch:0": BROKEN}}, {}, "its meter has failed"),
        ("shelly", {"/status": {"meters": METERS}}, {}, 'choose power = "meters.0.power"'),
        ("shelly", {"/status": {"meters": [{"power": 5.0, "is_valid": False}]}}, {}, "its value is not valid"),
        ("shelly", {"/relay/1": {"ison": True, "timer_remaining": 0}}, {"path": "/relay/1"}, "'timer_remaining'"),
        ("tasmota", {TASMOTA: {"WARNING": "Need user=<u>&password=<p>"}}, {}, "give user and password_env"),
        ("tasmota", {TASMOTA: {"StatusSNS": {"Time": "t"}}}, {}, "that the kind"),
        ("homeassistant", {"/api/states/x": {"state": "unavailable", "attributes": {}}}, {}, "no value of it now"),
        ("json", {"/x": {"w": 10**400}}, {"path": "/x", "power": "w"}, "no number"),
    ],
)
def test_what_could_be_another_reading_is_refused_with_the_choice(
    kind: str, tree: dict[str, Any], options: dict[str, str], says: str
) -> None:
    with served("tree") as server:
        server.tree = tree
        path = options.pop("path", "/api/states/x" if kind == "homeassistant" else "")
        assert says in refusal(server, **{"kind": kind, "url": server.options()["url"] + path, **options})


def test_a_plug_of_which_the_meter_fails_later_gives_no_value() -> None:
    with served("tree") as server:
        server.tree = {STATUS: {"switch:0": {"apower": 35.5}}}
        _, meter = metered(server, kind="shelly")
        ask = meter.find().ask
        assert ask() == 35.5
        server.tree = {STATUS: {"switch:0": {"apower": 35.5, "errors": ["out_of_range:apower"]}}}
        with pytest.raises(MixmarkError, match="its meter has failed"):
            ask()
        server.tree = {STATUS: {"switch:1": {"apower": 35.5}}}
        with pytest.raises(MixmarkError, match="no number for switch:0"):
            ask()


def test_a_redirect_is_followed_and_takes_no_secret_to_another_host() -> None:
    with served("tree") as server, served("tree") as other:
        server.needs, server.tree = BASIC, {"/a": "/a/", "/a/": "b?c=1", "/a/b?c=1": {"w": 12.5}}
        given = {"kind": "json", "url": f"http://127.0.0.1:{server.server_port}/a", "power": "w"}
        account = {"user": "admin", "password_env": "PLUG"}
        found, meter = metered(server, **given, **account)
        assert read(meter, found) == 12.5
        other.needs, other.tree = BASIC, {"/a": {"w": 666}}
        server.tree = {"/a": f"http://localhost:{other.server_port}/a"}
        assert "answers 401" in refusal(server, **given, **account)
        server.needs = other.needs = "Bearer abc"
        assert "answers 401" in refusal(server, **given, token_env="TOKEN")
        assert len(other.asked) >= 2


def test_no_proxy_of_the_environment_sees_the_plug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with served("json") as server:
        metered(server)
