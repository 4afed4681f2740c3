"""Every rule of entries has an entry that obeys it and one that breaks it, and stands in docs/rules.md."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixmark.harness.contracts.schema import Device, Domain, Metering, Record, Result, Samples
from mixmark.submissions import check, form, rules
from mixmark.submissions.conclude import ACCURACY
from mixmark.submissions.entry import CLAIM, DECLARATION, README, RULES_VERSION
from tests.docs.test_docs import table
from tests.fakes.folders import SYSTEM
from tests.submissions.made import (
    DECLARED,
    ITEM,
    codes,
    concluded,
    declared,
    edited,
    kit_report,
    rewritten,
    sealed,
    verdict,
)

PAGE = (Path(__file__).parents[2] / "docs/rules.md").read_text("utf-8")
BREAKS: dict[str, Callable[[Path], object]] = {}
"""What makes of a valid entry one that breaks the rule of this code, and no other one."""


def breaks(code: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    def add(change: Callable[[Path], object]) -> Callable[[Path], object]:
        assert code not in BREAKS
        BREAKS[code] = change
        return change

    return add


@breaks("E-LINKS")
def _(folder: Path) -> None:
    (folder / "results/1/raw/more.npz").symlink_to("/dev/zero")


@breaks("E-LIMITS")
def _(folder: Path) -> None:
    with (folder / "results/1/raw/big.npz").open("wb") as file:
        file.truncate(5 << 40)  # it takes no place on the disk


@breaks("E-LAYOUT")
def _(folder: Path) -> None:
    (folder / "notes.txt").write_text("more")
    sealed(folder)


@breaks("E-SCHEMA")
def _(folder: Path) -> None:
    edited(folder, CLAIM, schema_version=0)


@breaks("E-WRITTEN")
def _(folder: Path) -> None:
    path = folder / DECLARATION
    path.write_text(path.read_text().replace('"cooling"', '"cooling": "liquid",\n  "cooling"'))
    sealed(folder)


@breaks("E-MANIFEST")
def _(folder: Path) -> None:
    path = folder / README
    path.write_text(path.read_text().replace("Acme", "Acne"))


@breaks("E-PLACE")
def _(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("acme-two"))


@breaks("E-RULES")
def _(folder: Path) -> None:
    edited(folder, CLAIM, rules_version=RULES_VERSION + 1)


@breaks("E-CURRENCY")
def _(folder: Path) -> None:
    dollars = ITEM.model_copy(update={"currency": "USD"})
    declared(folder, price=(ITEM, dollars))


@breaks("E-RESULT")
def _(folder: Path) -> None:
    path = folder / "results/1/result.json"
    path.write_text(path.read_text().replace("Acme Topaz", "Acme Ruby"))
    sealed(folder)


@breaks("E-WHOLE-RESULT")
def _(folder: Path) -> None:
    shutil.copy(next((folder / "results/1/raw").glob("mix1.*.npz")), folder / "results/1/raw/mix9.npz")
    sealed(folder)


@breaks("E-FINISHED")
def _(folder: Path) -> None:
    rewritten(folder, lambda result: result.model_copy(update={"finished": False}))
    concluded(folder)


@breaks("E-DATE")
def _(folder: Path) -> None:
    rewritten(folder, lambda result: result.model_copy(update={"created_utc": "2029-01-02T03:04:05+00:00"}))
    concluded(folder)


@breaks("E-PRIVATE")
def _(folder: Path) -> None:
    declared(folder, notes="Ask jane@example.org.")


@breaks("E-VALID")
def _(folder: Path) -> None:
    def orphaned(record: Record) -> Record:
        return record.model_copy(update={"surviving_processes": ("server",)}) if record.scenario == "probe" else record

    rewritten(folder, lambda result: result.model_copy(update={"records": tuple(map(orphaned, result.records))}))
    concluded(folder)


@breaks("E-CONFORMANCE")
def _(folder: Path) -> None:
    (folder / "conformance.torch.json").write_bytes(form.written(kit_report(sha256="0" * 64)))
    concluded(folder)


@breaks("E-HOSTED")
def _(folder: Path) -> None:
    service = Device(id="asic:api.acme.test", kind="asic", memory_pool="asic:api.acme.test", hosted="acme-70b")
    rewritten(folder, lambda result: result.model_copy(update={"devices": (*result.devices, service)}))
    concluded(folder)


@breaks("E-ANTICHAIN")
def _(folder: Path) -> None:
    wall = Domain(
        id="wall/a", meter="external", covers=("node",), boundary="wall", quantity="power", method="external", source=""
    )
    twin = wall.model_copy(update={"id": "wall/b"})

    def metered(metering: Metering) -> Metering:
        [(_, samples), *_] = metering.samples.items()
        watts = Samples(samples.before_ns, samples.after_ns, np.linspace(200.0, 220.0, len(samples.values)))
        return metering.model_copy(update={"samples": {**metering.samples, "wall/a": watts, "wall/b": watts}})

    def change(result: Result) -> Result:
        meterings = tuple(map(metered, result.meterings))
        return result.model_copy(update={"domains": (*result.domains, wall, twin), "meterings": meterings})

    rewritten(folder, change)
    concluded(folder)


@breaks("E-PRICE-DATE")
def _(folder: Path) -> None:
    declared(folder, price=(ITEM.model_copy(update={"date": ITEM.date.replace(year=2025)}),))


@breaks("E-AVAILABLE")
def _(folder: Path) -> None:
    declared(folder, available_on=ITEM.date.replace(month=3))


@breaks("E-CLAIM")
def _(folder: Path) -> None:
    path = folder / README
    path.write_text(path.read_text().replace("provisional", "official"))
    edited(folder, CLAIM, grade="official")


@breaks("E-README")
def _(folder: Path) -> None:
    path = folder / README
    path.write_text(path.read_text().replace("provisional", "official"))
    sealed(folder)


def test_the_entry_obeys_every_rule(folder: Path, folder_of_two: Path) -> None:
    assert verdict(folder).problems == ()
    assert verdict(folder_of_two).problems == ()


@pytest.mark.parametrize("code", BREAKS)
def test_an_entry_that_breaks_one_rule_is_rejected_by_this_rule(folder: Path, code: str) -> None:
    BREAKS[code](folder)
    (found,) = check.find(folder.parents[2])
    assert codes(found) == {code}
    assert verdict(found).entry is None


# Rules that need more than one result, one entry, or a program


def second(folder: Path, **changes: Any) -> None:
    """Changes the second result and everything that follows from it."""
    rewritten(folder, lambda result: result.model_copy(update=changes), number=2)
    concluded(folder)


def test_results_of_two_machines_are_no_entry(folder_of_two: Path) -> None:
    second(folder_of_two, system=SYSTEM.model_copy(update={"cpu_model": "Acme Opal"}))
    assert codes(folder_of_two) == {"E-ONE-MACHINE"}


def test_results_of_two_mixes_are_no_entry(folder_of_two: Path) -> None:
    def heavier(result: Result) -> Result:
        assert result.mix is not None
        return result.model_copy(update={"mix": result.mix.model_copy(update={"nominal_flops_per_s": 1e9})})

    rewritten(folder_of_two, heavier, number=2)
    concluded(folder_of_two)
    assert "E-ONE-MIX" in codes(folder_of_two)


def test_a_result_without_a_score_is_no_entry(folder_of_two: Path) -> None:
    rewritten(folder_of_two, lambda result: result.model_copy(update={"mix": None}), number=2)
    sealed(folder_of_two)
    assert "E-SCORE" in codes(folder_of_two)


def test_a_run_that_is_entered_twice_is_no_entry(folder_of_two: Path) -> None:
    shutil.rmtree(folder_of_two / "results/2")
    shutil.copytree(folder_of_two / "results/1", folder_of_two / "results/2")
    concluded(folder_of_two)
    assert codes(folder_of_two) == {"E-COPIED"}


def test_a_run_that_is_in_two_entries_is_a_duplicate(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other/borealis/acme-one/two-16-bit"
    shutil.copytree(folder, other)
    declared(other, organisation="Borealis")
    assert codes(folder, other) == {"E-DUPLICATE"}
    assert codes(other) == set()


@pytest.mark.parametrize("name", ["Acrne & Söhne", "ACME - Söhne", "Acme & Sohne"])
def test_an_organisation_whose_name_looks_like_another_is_rejected(
    folder: Path, original_of_two: Path, tmp_path: Path, name: str
) -> None:
    told = DECLARED.model_copy(update={"organisation": name})
    other = tmp_path.joinpath("other", *told.folders, "two-16-bit")
    shutil.copytree(original_of_two, other)
    declared(other, organisation=name)
    assert "E-LOOK-ALIKE" in codes(folder, other)


def test_the_page_and_the_code_have_the_same_rules_with_the_same_codes() -> None:
    section = PAGE.split("## Rules of entries", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\| (E-[A-Z-]+) \| ", section, re.MULTILINE)
    assert listed == [*map(rules.code, rules.RULES), rules.AUDIT]
    assert f"This is version {RULES_VERSION} of the rules of entries." in section
    for rule in rules.RULES:
        assert rule.__doc__


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    units = {"": 1, "ns": 1, "MiB": 1 << 20}
    rows = table(PAGE, "limit", "value")
    assert len(rows) == 16
    for what, value, place in rows:
        module, _, name = place.strip("`").rpartition(".")
        number, _, unit = value.partition(" ")
        assert float(number) * units[unit] == getattr(importlib.import_module(module), name), what
    point = next(cells for name, *cells in table(PAGE, "aspect") if name == "point")
    assert [f"wall, ±{accuracy * 100:g} % declared" for _, accuracy in ACCURACY] == point[:3]


def test_every_rule_has_a_test() -> None:
    source = "".join(each.read_text() for each in Path(__file__).parent.glob("test_*.py"))
    for rule in rules.RULES:
        assert rules.code(rule) in BREAKS or f'"{rules.code(rule)}"' in source, rules.code(rule)


def test_what_a_rule_says_names_the_file_and_the_difference(folder: Path) -> None:
    edited(folder, CLAIM, runs=7)
    problem = verdict(folder).problems[0]
    assert problem.where == CLAIM
    assert problem.message == "runs: the entry says 7, and its results give 2"

    edited(folder, CLAIM, weight_class=4)
    problem = verdict(folder).problems[0]
    assert problem.message == (
        "it lies in acme-sohne/acme-one/two-16-bit and belongs into acme-sohne/acme-one/two-4-bit"
    )
