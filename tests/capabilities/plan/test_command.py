"""`mixmark plan` on a small measured machine (a processor and an accelerator with meters), and on made entries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mixmark.harness.capabilities.plan import catalogue
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts import schema
from mixmark.harness.contracts.schema import Finding
from mixmark.harness.judge import solo_rates
from mixmark.harness.judge.assessment import Assessment
from mixmark.harness.judge.evidence import gather
from mixmark.harness.judge.verdict import Verdict, VerdictWord
from mixmark.harness.machine import suite_claims
from mixmark.harness.machine.suite_claims import judge_stored
from mixmark.harness.plan.placement import Power, place
from mixmark.harness.plugins import registry
from mixmark.harness.record import store
from tests.fakes.folders import GPU, MIX, Maker, write

pytestmark = pytest.mark.slow
HOST, CARD = "Acme Quartz", "Acme Topaz"


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "mine"
    write(folder, Maker(1).result(runs=2))
    return folder


@dataclass
class Offered:
    """What an entry of a board offers, or why its check rejects it."""

    name: str
    problem: str | None
    result: Path | None = None
    price: Any = None


OFFERED: list[Offered] = []


def offered(paths: Iterable[Path]) -> dict[Path, list[Offered]]:
    """The service that reads entries of a board."""
    return {path: OFFERED for path in paths if path == Path("entries")}


@pytest.fixture
def entries(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A board with an entry of one's own machine and one that is rejected."""
    monkeypatch.setitem(registry.BUILT_IN, "services", {"entries": f"{__name__}:offered"})
    price = SimpleNamespace(amount="900", currency="EUR")
    rejected = Offered("acme/two", "mixmark check rejects it: E-X: it is bad")
    OFFERED[:] = [Offered("Acme One", None, mine, price), rejected]
    return Path("entries")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(f'currency = "EUR"\n["{HOST}"]\nprice = 500\nslots = 4\n["{CARD}"]\nprice = 100\n', "utf-8")
    return path


def typed(*words: object) -> Result:
    return CliRunner().invoke(main, ["plan", *(str(word) for word in words)], catch_exceptions=False)


def planned(*words: object) -> dict[str, Any]:
    done = typed(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def answer(found: dict[str, Any], question: str) -> dict[str, Any]:
    own: dict[str, Any] = next(each for each in found["answers"] if each["question"] == question)
    return own


def test_ones_own_machine_is_planned_as_its_mixed_run_was(mine: Path) -> None:
    result = store.open(mine)
    evidence = gather(result)
    rates, threads = solo_rates.solo(evidence, MIX, ()), solo_rates.host_fraction(evidence)
    placed = place(MIX.units, rates, result.devices, host_fraction=threads)
    machine = catalogue.measured_machine("mine", judge_stored(result), MIX, 16)
    assert {kind.name: kind.owned for kind in machine.kinds} == {"mine": 1, CARD: 1}
    found = planned(mine)
    own, kept = answer(found, "most"), found["retained"]["estimate"]
    assert own["mixes_per_hour"]["estimate"] == pytest.approx(placed.mixes_per_s * 3600 * kept, rel=1e-6)
    assert own["gap"] == 0


def test_every_text_says_that_it_is_a_prediction(mine: Path) -> None:
    text = typed(mine, "--hosts", 1).stdout
    assert text.startswith("PREDICTED from solo rates at full load, not measured and never ranked.")
    assert "Most work, predicted (proved optimal)" in text


def test_a_host_takes_as_many_accelerators_as_it_was_measured_with_or_as_are_declared(mine: Path, prices: Path) -> None:
    refused = typed(mine, "--prices", prices, "--add", f"{CARD}=4")
    assert refused.exit_code == 2
    assert f"no machine keeps at least 5 of {CARD} and at most 1 of {HOST}" in refused.stderr
    assumed = planned(mine, "--add", CARD)  # the question assumes that it fits
    assert answer(assumed, "most")["counts"] == {HOST: 1, CARD: 2}
    assert assumed["declared"] == {HOST: ["slots"]}
    found = planned(mine, "--add", CARD, "--prices", prices)
    assert answer(found, "most")["counts"] == {HOST: 1, CARD: 2}
    assert answer(found, "most")["price"] == 100
    assert answer(found, "most")["mixes_per_hour"]["estimate"] > found["today"]["mixes_per_hour"]["estimate"]


def test_without_the_accelerator_the_processor_does_the_mix(mine: Path) -> None:
    found = planned(mine, "--without", CARD)
    assert answer(found, "most")["counts"] == {HOST: 1}
    assert found["today"]["counts"] == {HOST: 1, CARD: 1}


def test_measured_watts_are_those_above_idle_and_cannot_be_declared(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices draw 90 W and 290 W at work; the host also pays for the rest of the machine."""
    monkeypatch.setattr(solo_rates, "power", lambda result: Power({"cpu:0": 30, GPU: 40}, rest_watts=12))
    machine = catalogue.measured_machine("mine", judge_stored(store.open(mine)), MIX, 16)
    for kind in machine.kinds:
        idle, extra = {"mine": (42, 60), CARD: (40, 250)}[kind.name]
        assert kind.idle_watts == idle
        assert [speed.extra_watts for speed in kind.speeds] == pytest.approx([extra] * 2, rel=0.02)
    found = answer(planned(mine), "efficient")
    assert 82 < found["watts"] < 42 + 40 + 60 + 250 + 10
    refused = typed(mine, "--power", found["watts"] / 100)
    assert refused.exit_code == 2
    assert "no machine keeps a power of" in refused.stderr
    (tmp_path / "prices.toml").write_text(f'["{CARD}"]\nwatts = 100\n', "utf-8")
    refused = typed(mine, "--prices", tmp_path / "prices.toml")
    assert f"the watts of {CARD} are measured" in refused.stderr


def test_declared_watts_are_called_declared(mine: Path, prices: Path) -> None:
    prices.write_text(f'["{HOST}"]\nwatts = 100\n["{CARD}"]\nwatts = 300\nidle_watts = 50\n', "utf-8")
    done = typed(mine, "--prices", prices)
    assert f"Declared, not measured: idle watts, watts of {CARD}" in done.stdout
    assert answer(planned(mine, "--prices", prices), "efficient")["watts"] <= 400


def test_a_machine_is_bought_for_the_work_of_an_hour(entries: Path, prices: Path) -> None:
    declared = prices.read_text("utf-8").replace(HOST, "Acme One").replace("price", "watts = 100\nprice")
    prices.write_text(declared, "utf-8")
    words = ("--entries", entries, "--prices", prices, "--per-hour", "dlrm=2000000", "--per-hour", "resnet50=900000")
    found = planned(*words)
    cheapest = answer(found, "cheapest")
    assert cheapest["mixes_per_hour"]["estimate"] >= 1 - 1e-6
    assert cheapest["price"] == 500 * cheapest["counts"]["Acme One"] + 100 * cheapest["counts"].get(CARD, 0)
    assert answer(planned(*words, "--tariff", "0.3"), "cheapest")["energy_cost"] > 0
    text = typed(*words).stdout
    assert "The work of an hour: 2,000,000 recommendations, 900,000 images classified" in text
    assert "times the work" in text


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives every result since a day a verdict."""

    def give(word: VerdictWord, since: str = "") -> None:
        found = Verdict(word, (Finding(code="finished.nothing", severity="warning", about="run"),))

        def judge(result: schema.Result) -> Assessment:
            own = judge_stored(result)
            return replace(own, verdict=found) if result.created_utc >= since else own

        monkeypatch.setattr(suite_claims, "judge_stored", judge)

    return give


def test_an_older_result_counts_for_a_kind_of_device_if_the_newer_one_is_disturbed(
    mine: Path, tmp_path: Path, verdict: Callable[..., None]
) -> None:
    newer = Maker(2).result(runs=1).model_copy(update={"created_utc": "2026-02-02T00:00:00+00:00"})
    write(tmp_path / "newer", newer)
    verdict("disturbed", since="2026-02")
    found = planned(tmp_path / "newer", mine)
    assert found["today"]["counts"] == {f"{HOST} (disturbed)": 1, f"{HOST} (2)": 1, CARD: 2}


def test_a_disturbed_machine_is_called_so_in_every_line_and_an_invalid_one_is_left_out(
    mine: Path, prices: Path, verdict: Callable[..., None]
) -> None:
    words = (mine, "--prices", prices, "--add", CARD, "--tariff", 0.3)
    clean = typed(*words).stdout
    assert "disturbed" not in clean
    verdict("disturbed")
    found, text = planned(*words), typed(*words, "--format", "markdown").stdout
    assert found["answers"][0]["counts"] == {f"{HOST} (disturbed)": 1, f"{CARD} (disturbed)": 2}
    assert set(found["doubts"].values()) == {"nothing was measured"}
    assert f"{HOST} (disturbed): nothing was measured" in text
    for name in (HOST, CARD):
        assert text.count(name) == text.count(f"{name} (disturbed)")
    verdict("invalid")
    refused = typed(*words)
    assert refused.exit_code == 2
    assert "invalid: nothing was measured" in refused.stderr


def test_what_had_no_part_in_a_question_is_named_beside_its_proof(entries: Path, mine: Path, tmp_path: Path) -> None:
    """A host without slots, and an entry that the check rejects."""
    path = tmp_path / "prices.toml"
    path.write_text(f'["Acme One"]\nprice = 9\nslots = 0\n["{CARD}"]\nprice = 1\n', "utf-8")
    words = ("--entries", entries, "--prices", path, "--mixes-per-hour", 1)
    assert answer(planned(*words), "cheapest")["not_considered"] == ["acme/two", CARD]
    text = typed(*words).stdout
    assert "Cheapest machine for the work, predicted (proved optimal of what was considered)" in text
    assert f"not considered  acme/two, {CARD}" in text
    assert f"{CARD}: no host has a slot for it: --prices takes the slots of a host" in text
    path.write_text(path.read_text("utf-8").replace("slots = 0", "slots = 1"), "utf-8")
    OFFERED.pop()
    text = typed(*words).stdout
    assert "Cheapest machine for the work, predicted (proved optimal)" in text
    assert "not considered" not in text


def test_an_entry_that_its_check_rejects_is_left_out(entries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = typed("--entries", entries, "--hosts", 1).stdout
    assert "acme/two: mixmark check rejects it: E-X" in text
    assert "the price of Acme One: it covers the host and its accelerators" in text
    assert "1 × Acme One" in text
    assert "per 900 EUR" not in text and "per 1,000 EUR" in text
    [box] = planned("--entries", entries, "--hosts", 1)["boxes"]
    assert (box["counts"], box["price"]) == ({"Acme One": 1, CARD: 1}, 900), (
        "a whole machine has the price of its entry"
    )
    del OFFERED[0]
    refused = typed("--entries", entries, "--hosts", 1)
    assert refused.exit_code == 2
    assert "mixmark check rejects it: E-X" in refused.stderr
    monkeypatch.setitem(registry.BUILT_IN, "services", {})
    assert typed("--entries", entries).exit_code == 2, "without that service, only results can be read"


def test_prices_in_two_currencies_are_refused(entries: Path, prices: Path) -> None:
    assert typed("--entries", entries, "--prices", prices, "--hosts", 1).exit_code == 0
    prices.write_text(prices.read_text("utf-8").replace("EUR", "USD"), "utf-8")
    assert "the prices are in EUR and USD" in typed("--entries", entries, "--prices", prices, "--hosts", 1).stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f'["{HOST}"]\nprice = -1\n', f"{HOST}.price: Input should be greater than or equal to 0"),
        (f'currency = 3\n["{HOST}"]\nprice = 1\n', "currency: Input should be"),
        ('["Acme Opal"]\nrates = { dlrm = 5 }\n', "Acme Opal was not measured and has no source"),
        ('["Acme Opal"]\nrates = { dlrm = 0 }\n', "Acme Opal.rates.dlrm"),
        ('["Acme Opal"]\nsource = "s"\ntflops = { bf17 = 1 }\n', "Acme Opal.tflops.bf17"),
        ('["Acme Opal"]\nsource = "s"\ntflops = 165\n', "tflops: Input should be a table, { name = value }"),
        ("price = [", "cannot read the prices"),
    ],
)
def test_wrong_prices_are_refused_by_name(mine: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "prices.toml").write_text(content, "utf-8")
    refused = typed(mine, "--prices", tmp_path / "prices.toml")
    assert refused.exit_code == 2
    assert message in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--per-hour", "llm=5"), "there is no suite 'llm'"),
        (("--per-hour", "dlrm=0"), "0 is no work"),
        (("--without", HOST, "--without", CARD), "no device can run dlrm, resnet50"),
        (("--per-hour", "dlrm=5 tokens"), "has no whole number"),
        (("--per-hour", "dlrm=5", "--mix", "edge-1"), "both name the work"),
        (("--mix", "edge-1"), "the mix edge-1 is for the tier edge"),
        (("--at-most", CARD), "has no whole number"),
        (("--add", "Acme Tpaz"), "there is no kind of device"),
        (("--format", "html", "--json"), "ask for different forms"),
    ],
)
def test_misuse_has_a_message_and_no_traceback(mine: Path, words: tuple[str, ...], message: str) -> None:
    refused = typed(mine, *words)
    assert refused.exit_code == 2
    assert message in refused.stderr


OPAL = """
["Acme Opal"]
source = "its maker's word"
rates = { dlrm = 5e6, resnet50 = 1e6 }
watts = 500
["Acme Beryl"]
price = 3
["Acme Jade"]
source = "its maker's word"
rates = { dlrm = 7, resnet50 = 9 }
"""


def test_a_device_that_nobody_measured_is_called_assumed_wherever_it_appears(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(OPAL, "utf-8")
    words = (mine, "--prices", tmp_path / "prices.toml", "--add", "Acme Opal", "--without", CARD)
    found = planned(*words)
    assert answer(found, "most")["counts"] == {HOST: 1, "Acme Opal (assumed)": 1}
    assert found["assumed"]["Acme Opal (assumed)"]["source"] == "its maker's word"
    assert found["assumed"]["Acme Opal (assumed)"]["suites"]["dlrm"]["units_per_s"] == 5e6
    unused = {name for name, why in found["left_out"] if why == "no device of this question has this name"}
    assert unused == {"Acme Beryl", "Acme Jade"}, "--add asks about what it names"
    text = typed(*words, "--format", "markdown").stdout
    assert text.count("Acme Opal") == text.count("Acme Opal (assumed)")
    assert "Acme Opal (assumed): its maker's word" in text
    assert planned(mine, "--prices", tmp_path / "prices.toml")["assumed"].keys() == {
        "Acme Opal (assumed)",
        "Acme Jade (assumed)",
    }
