"""Servers of ours on this machine answer as the makers of plugs document it; no plug was ever here."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Absent, Device, Domain, Samples
from mixmark.harness.judge.energy.reading import reading
from mixmark.harness.meters import http
from mixmark.harness.meters.plug import KINDS, UNITS, Plug
from tests.fakes.plugs import DIGEST, SECRET, PlugServer

CPU = Device(id="cpu:0", kind="cpu", memory_pool="host")
PLUGS = ("shelly", "shelly1", "tasmota", "homeassistant", "fritz", "json")
SECOND = 1_000_000_000


@contextmanager
def plug(kind: str, watts: float = 123.4, joules: float = 7_200_000.0, **more: Any) -> Iterator[PlugServer]:
    server = PlugServer(kind, lambda: watts, lambda: joules, **more)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def first_of(server: PlugServer, **options: str) -> tuple[Domain | Absent, Plug]:
    meter = Plug(server.options(**options), {"PLUG": SECRET, "TOKEN": "abc"})
    [found] = meter.domains([CPU])
    return found, meter


def read(meter: Plug, domain: Domain) -> float:
    """The first value that the meter gives. A reply takes a moment."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for sample in meter.read(domain):
            return sample.value
        time.sleep(0.01)
    raise AssertionError("no reading")


def refusal(server: PlugServer, **options: str) -> str:
    found, _ = first_of(server, **options)
    assert isinstance(found, Absent)
    assert "127.0.0.1" not in found.reason and SECRET not in found.reason
    return found.reason


@pytest.mark.parametrize("kind", PLUGS)
def test_each_kind_gives_its_watts(kind: str) -> None:
    with plug(kind) as server:
        found, meter = first_of(server, accuracy="1%")
        assert isinstance(found, Domain), found
        assert (found.boundary, found.quantity, found.method, found.accuracy) == ("wall", "power", "external", 0.01)
        assert "node" in found.covers
        assert "127.0.0.1" not in found.source
        assert read(meter, found) == pytest.approx(123 if kind == "tasmota" else 123.4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {"read": "energy"}) for kind in ("shelly", "shelly1", "tasmota", "fritz")),
        ("json", {"energy": "total", "unit": "kWh"}),
    ],
)
def test_each_counter_gives_its_joules(kind: str, options: dict[str, str]) -> None:
    with plug(kind) as server:
        found, meter = first_of(server, **options)
        assert isinstance(found, Domain), found
        assert found.quantity == "energy"
        assert read(meter, found) == pytest.approx(7_200_000)


def power_at(at_s: Any) -> Any:
    """A machine at 60 W that works at 150 to 190 W from the 20th second on."""
    return np.where(at_s < 20, 60.0, 170 + 20 * np.sin(at_s / 3.0))


FINE_S = np.arange(0, 400, 0.001)
FINE_J = np.concatenate(([0.0], np.cumsum(power_at(FINE_S[:-1] + 0.0005) * 0.001)))


def truth(begin_s: float, end_s: float) -> float:
    joules: float = np.interp(end_s, FINE_S, FINE_J) - np.interp(begin_s, FINE_S, FINE_J)
    return joules


@pytest.mark.parametrize("length_s", [30, 60, 120, 300])
@pytest.mark.parametrize(
    ("kind", "energy", "step"),
    [
        ("shelly", False, 0.1),
        ("shelly", True, 3.6),
        ("shelly1", False, 0.01),
        ("shelly1", True, 60.0),
        ("tasmota", False, 1.0),
        ("homeassistant", False, 0.1),
        ("fritz", False, 0.01),
    ],
)
def test_the_joules_of_a_known_load(kind: str, energy: bool, step: float, length_s: int) -> None:
    """Asked at the pace of its kind, rounded as its firmware does, each reply 150 ms late. A counter may be off by one
    step at each end, which is 1 % of 12 kJ for the coarsest; power by half a percent."""
    every_s = KINDS[kind].every_ns / 1e9
    at_s = np.arange(5, 395, every_s)
    exact = np.interp(at_s, FINE_S, FINE_J) if energy else power_at(at_s)
    values = (np.floor if energy else np.round)(exact / step) * step
    seen_ns = ((at_s + 0.15) * 1e9).astype(np.int64)
    field = KINDS[kind].energy if energy else KINDS[kind].power
    assert field is not None
    domain = Domain(
        id="plug",
        meter="plug",
        covers=("node",),
        boundary="wall",
        quantity="energy" if energy else "power",
        method="external",
        source="a test",
    )
    found = reading(domain, Samples(seen_ns, seen_ns, values), 40 * SECOND, (40 + length_s) * SECOND)
    if every_s * 40 > length_s:
        assert "window too short" in found.reasons
        return
    assert found.joules is not None, found.reasons
    expected = truth(40, 40 + length_s)
    assert found.joules == pytest.approx(expected, abs=max(0.005 * expected, 2 * step if energy else 0))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs kind and url"),
        ({"kind": "shely", "url": "http://h"}, "takes kind shelly"),
        ({"kind": "shelly", "url": "ftp://h"}, "needs kind and url"),
        ({"kind": "shelly", "url": "http://a:b@h"}, "no account inside of url"),
        ({"kind": "json", "url": "http://h"}, "needs power or energy"),
        ({"kind": "json", "url": "http://h", "power": "a", "energy": "b", "unit": "W"}, "needs power or energy"),
        ({"kind": "json", "url": "http://h", "power": "a", "unit": "kWh"}, "needs power or energy"),
        ({"kind": "json", "url": "http://h", "energy": "a"}, "needs power or energy"),
        ({"kind": "homeassistant", "url": "http://h/api", "token_env": "NONE"}, "token_env names NONE"),
        ({"kind": "shelly", "url": "http://h", "pace": "1"}, "pace"),
    ],
)
def test_a_section_that_does_not_fit_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Plug(options, {})


def test_another_plugs_json_is_named() -> None:
    with plug("tasmota") as server:
        assert "404" in refusal(server, kind="shelly")
    with plug("json") as server:
        assert "has no readings.7.watts" in refusal(server, power="readings.7.watts")
        server.mangled = lambda request, body: b'{"readings": [{"watts": NaN}]}'
        assert "no number" in refusal(server)


def test_replies_that_are_none_are_named() -> None:
    with plug("json") as server:
        server.mangled = lambda request, body: b"<!doctype html><title>login</title>"
        assert "wants a login" in refusal(server)
        server.mangled = lambda request, body: b" " * (http.LONGEST + 2)
        assert "longer than 1 MiB" in refusal(server)

        def elsewhere(request: Any, body: bytes) -> None:
            request.send_response(302)
            request.send_header("Location", "http://127.0.0.1:9/")
            request.end_headers()

        server.mangled = elsewhere
        assert "302" in refusal(server)
        server.needs = "Basic never"
        assert "check user and password_env" in refusal(server)
        server.shutdown()
        server.server_close()
        assert "cannot be reached" in refusal(server)


def test_a_plug_that_answers_too_late_or_no_more_is_lost_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.05)
    with plug("json") as server:
        found, meter = first_of(server)
        assert isinstance(found, Domain)
        monkeypatch.setattr("mixmark.harness.meters.plug.KINDS", KINDS)

        def late(request: Any, body: bytes) -> bytes:
            time.sleep(0.3)
            return body

        server.mangled = late
        with pytest.raises(MixmarkError, match="cannot be"):
            for _ in range(2000):
                meter.read(found)
                time.sleep(0.01)


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
    with plug("json", tls=context) as server:
        url = f"https://127.0.0.1:{server.server_address[1]}/status"
        assert "certificate verify failed" in refusal(server, url=url).lower()
        found, _ = first_of(server, url=url, verify=str(certificate))
        assert isinstance(found, Domain), found


def test_passwords_come_from_the_environment_and_go_to_the_plug_alone() -> None:
    with plug("homeassistant") as server:
        server.needs = "Bearer abc"
        found, _ = first_of(server, token_env="TOKEN")
        assert isinstance(found, Domain), found
        assert "abc" not in found.model_dump_json()
    with plug("tasmota") as server:
        found, meter = first_of(server, user="admin", password_env="PLUG")
        assert isinstance(found, Domain), found
        assert "password=correct+horse" in server.asked[-1]
        server.mangled = lambda request, body: b"?"
        assert SECRET not in refusal(server, user="admin", password_env="PLUG")
    with plug("fritz") as server:
        meter = Plug(server.options(), {"PLUG": "wrong"})
        [found] = meter.domains([CPU])
        assert isinstance(found, Absent) and "refuses the login" in found.reason


@pytest.mark.parametrize(("kind", "needs"), [("shelly", DIGEST), ("shelly1", http.basic("admin", SECRET))])
def test_a_shelly_asks_for_its_password_in_the_way_of_its_generation(kind: str, needs: str) -> None:
    with plug(kind) as server:
        server.needs = needs
        assert "401" in refusal(server)
        found, meter = first_of(server, user="admin", password_env="PLUG")
        assert isinstance(found, Domain), found
        assert read(meter, found) == pytest.approx(123.4)
        meter = Plug(server.options(user="admin", password_env="PLUG"), {"PLUG": "wrong"})
        [lost] = meter.domains([CPU])
        assert isinstance(lost, Absent) and "check user and password_env" in lost.reason


def test_an_entity_in_another_unit_is_refused_and_kilowatts_are_understood() -> None:
    with plug("homeassistant", watts=1.5) as server:

        def unit(name: str) -> None:
            server.mangled = lambda request, body: body.replace(b'"W"', f'"{name}"'.encode())

        unit("kW")
        found, meter = first_of(server)
        assert isinstance(found, Domain), found
        assert read(meter, found) == 1500
        unit("VA")
        assert "'VA', which is no unit" in refusal(server)
    assert UNITS["Wmin"] == 60
