"""A web server of ours on this machine answers as DMTF's schemas have it; no controller was ever here."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx2
import pytest

from mixmark.harness.capabilities.plugs.redfish import Redfish
from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Domain
from tests.capabilities.plugs.servers import CPU, SECRET, PlugServer, gathered, served

Tree = dict[str, object]


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def old(watts: object = 344) -> Tree:
    """A chassis with the resource Power, which DMTF has deprecated and most controllers have."""
    return {
        "/redfish/v1/Chassis": {"Members": [link("/redfish/v1/Chassis/1")]},
        "/redfish/v1/Chassis/1": {"Power": link("/redfish/v1/Chassis/1/Power")},
        "/redfish/v1/Chassis/1/Power": {
            "PowerControl": [
                {"PowerConsumedWatts": 9, "PhysicalContext": "CPU"},
                {"PowerConsumedWatts": watts, "PhysicalContext": "Chassis"},
                {"PowerConsumedWatts": 5, "PhysicalContext": "Memory"},
            ]
        },
    }


def new(watts: object = 512.5) -> Tree:
    metrics = "/redfish/v1/Chassis/Self/EnvironmentMetrics"
    return {
        "/redfish/v1/Chassis": {"Members": [link("/redfish/v1/Chassis/Self"), link("/redfish/v1/Chassis/Rail")]},
        "/redfish/v1/Chassis/Self": {"EnvironmentMetrics": link(metrics), "Power": link("/redfish/v1/gone")},
        "/redfish/v1/Chassis/Rail": {},
        metrics: {"PowerWatts": {"Reading": watts}},
    }


@pytest.fixture
def server() -> Iterator[PlugServer]:
    with served("tree") as server:
        yield server


def powers(server: PlugServer, *controls: tuple[object, object]) -> None:
    """The chassis has these watts of these parts."""
    named = [{"PowerConsumedWatts": value} | ({"PhysicalContext": part} if part else {}) for value, part in controls]
    server.tree = {**old(), "/redfish/v1/Chassis/1/Power": {"PowerControl": named}}


def account(password: str = SECRET) -> str:
    """The header that gives the account of the reader."""
    return "Basic " + base64.b64encode(f"reader:{password}".encode()).decode()


def meter(server: PlugServer, **options: str) -> Redfish:
    return Redfish({"url": f"http://127.0.0.1:{server.server_port}", **options}, {"BMC_PASSWORD": SECRET})


def watts_of(server: PlugServer, **options: str) -> float:
    """The first reading."""
    redfish = meter(server, **options)
    (domain,) = redfish.domains([CPU])
    assert isinstance(domain, Domain), domain
    (sample,) = gathered(lambda: redfish.read(domain))
    return sample.value


def refused(server: PlugServer, **options: str) -> str:
    (absent,) = meter(server, **options).domains([CPU])
    assert isinstance(absent, Absent)
    assert str(server.server_port) not in absent.reason
    return absent.reason


@pytest.mark.parametrize(("tree", "watts", "chassis"), [(old(), 344.0, "1"), (new(), 512.5, "Self")])
def test_the_controller_gives_the_power_of_the_node(server: PlugServer, tree: Tree, watts: float, chassis: str) -> None:
    server.tree = tree
    redfish = meter(server)
    (domain,) = redfish.domains([CPU])
    assert isinstance(domain, Domain)
    assert (domain.boundary, domain.quantity, domain.covers) == ("node", "power", ("cpu:0", "memory", "node"))
    assert f"Redfish {chassis}/Power" in domain.source and "127.0.0.1" not in domain.source
    assert gathered(lambda: redfish.read(domain)) == [Sample(watts)]


def test_the_password_comes_from_the_environment_and_goes_nowhere_else(server: PlugServer) -> None:
    server.tree, server.needs = old(), account()
    (domain,) = meter(server, user="reader", password_env="BMC_PASSWORD").domains([CPU])
    assert isinstance(domain, Domain)
    assert SECRET not in domain.model_dump_json() and "reader" not in domain.model_dump_json()
    assert "401" in refused(server)
    server.needs = account("another")
    assert "check user and password_env" in refused(server, user="reader", password_env="BMC_PASSWORD")


def test_of_several_chassis_one_is_named(server: PlugServer) -> None:
    server.tree = {**old(), **new()}
    server.tree["/redfish/v1/Chassis"] = {"Members": [link("/redfish/v1/Chassis/1"), link("/redfish/v1/Chassis/Self")]}
    assert f'choose power = "{WATTS.format(1)}", power = "Self/PowerWatts.Reading"' in refused(server)
    assert watts_of(server, power="Self/PowerWatts.Reading") == 512.5
    assert "no chassis has Slef/PowerWatts.Reading" in refused(server, power="Slef/PowerWatts.Reading")


WATTS = "1/PowerControl.{}.PowerConsumedWatts"


@pytest.mark.parametrize(
    ("controls", "power", "watts"),
    [
        ([(None, None), (300, None)], None, 300),
        ([(300, "CPU"), (310.5, "Chassis")], None, 310.5),
        ([(300, "Chassis"), (310, "CPU")], None, 300),
        ([(300, "CPU"), (310, None)], WATTS.format(0), 300),
        ([(300, None), (310, None)], WATTS.format(1), 310),
        ([(float("nan"), None), (float("inf"), None), (True, None), (-5, None), (310, None)], None, 310),
    ],
)
def test_of_several_powers_the_one_of_the_whole_chassis_is_read(
    server: PlugServer, controls: list[tuple[object, object]], power: str | None, watts: float
) -> None:
    powers(server, *controls)
    assert watts_of(server, **({"power": power} if power else {})) == watts


def test_powers_that_are_not_known_to_be_the_nodes_are_refused_with_the_choice(server: PlugServer) -> None:
    powers(server, (300, None), (310, None))
    assert f'choose power = "{WATTS.format(0)}", power = "{WATTS.format(1)}"' in refused(server)
    assert "no chassis has" in refused(server, power=WATTS.format(2))
    powers(server, (300, "CPU"), (310, "CPU"))
    assert f'power = "{WATTS.format(1)}" is of CPU' in refused(server)


@pytest.mark.parametrize("metrics", [500, {}, {"PowerWatts": {"Reading": 0}}])
def test_a_chassis_without_new_metrics_is_asked_for_its_power(server: PlugServer, metrics: object) -> None:
    server.tree = {**old(300), "/metrics": metrics}
    server.tree["/redfish/v1/Chassis/1"] = {
        "Power": link("/redfish/v1/Chassis/1/Power"),
        "EnvironmentMetrics": link("/metrics"),
    }
    assert watts_of(server) == 300.0


@pytest.mark.parametrize("broken", [404, b"<html>", {}, {"Power": link("//elsewhere/")}, "/redfish/v1/Chassis/2"])
def test_a_chassis_that_cannot_be_asked_does_not_hide_another(server: PlugServer, broken: object) -> None:
    server.tree = {**old(300), "/redfish/v1/Chassis/2": broken}
    server.tree["/redfish/v1/Chassis"] = {"Members": [link("/redfish/v1/Chassis/2"), link("/redfish/v1/Chassis/1")]}
    assert watts_of(server) == 300.0
    assert "; 2: " in refused(server, power="2/PowerWatts.Reading")


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("/redfish/v1/Chassis", None, "404"),
        ("/redfish/v1/Chassis", {"Members": "many"}, "no chassis"),
        ("/redfish/v1/Chassis", b"[" * 100_000, "with no JSON"),
        ("/redfish/v1/Chassis", {"Members": [{"@odata.id": None}, 5, link("//127.0.0.1:9/")]}, "another address"),
        ("/redfish/v1/Chassis/1/Power", {"PowerControl": [{"PowerConsumedWatts": 0}]}, "no chassis"),
    ],
)
def test_a_controller_that_answers_otherwise_says_how(
    server: PlugServer, path: str, content: object, reason: str
) -> None:
    server.tree = {key: value for key, value in {**old(), path: content}.items() if value is not None}
    assert reason in refused(server)


def test_a_certificate_of_another_does_not_give_the_address_away(
    server: PlugServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mismatch(*_: object, **__: object) -> None:
        raise httpx2.ConnectError("Hostname mismatch, certificate is not valid for '127.0.0.1'.")

    monkeypatch.setattr(httpx2.Client, "send", mismatch)
    assert refused(server).endswith("certificate is not valid for 'it'.")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"password": SECRET},
        {"url": "https://192.0.2.7", "user": "reader", "password_env": "NONE"},
        {"url": "https://192.0.2.7", "password_env": "BMC_PASSWORD"},
        {"url": "https://192.0.2.7/#/login"},
        {"url": "http://192.0.2.7"},
        {"url": "https://reader:secret@192.0.2.7"},
        {"url": "https://192.0.2.7", "verify": "/no/such.pem"},
    ],
)
def test_options_that_mean_nothing_or_give_a_secret_away_are_misuse(options: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refusal:
        Redfish(options, {"BMC_PASSWORD": SECRET})
    assert SECRET not in f"{refusal.value} {refusal.value.hint}"
