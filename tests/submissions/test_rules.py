"""Every rule of entries stands on its page, and has an entry that obeys it and one that breaks it."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Boundary, Device, Metering, Result, Samples
from mixmark.harness.record.files import sha256_of
from mixmark.submissions import check, files, rules
from mixmark.submissions.entry import DECLARATION
from tests.docs.test_docs import table
from tests.golden.sample import altered, but, domain
from tests.submissions.made import NOW, codes, edited, rewritten, verdict

PAGE = (Path(__file__).parents[2] / "docs/capabilities/submissions/rules.md").read_text("utf-8")
WALL = domain("wall/a", ("node",), boundary="wall", quantity="power", method="external")


def updated(**changes: Any) -> Callable[[Path], None]:
    """Changes facts of the result."""
    return lambda folder: rewritten(folder, lambda result: result.model_copy(update=changes))


def link(folder: Path) -> None:
    (folder / "results/1/raw/more.npz").symlink_to("/dev/zero")


def large_file(folder: Path) -> None:
    with (folder / "results/1/raw/big.npz").open("wb") as file:
        file.truncate(5 << 40)  # it takes no place on the disk


def stray_file(folder: Path) -> None:
    (folder / "claim.json").write_text("{}")
    files.write_manifest(folder)


def other_bytes(folder: Path) -> None:
    path = folder / DECLARATION
    path.write_text(path.read_text().replace("Acme, Germany", "Acme, France"))


def other_place(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("acme-two"))


def other_result(folder: Path) -> None:
    path = folder / "results/1/result.json"
    path.write_text(path.read_text().replace("Acme Topaz", "Acme Ruby"))
    files.write_manifest(folder)


def unknown_raw_file(folder: Path) -> None:
    shutil.copy(next((folder / "results/1/raw").glob("mix1.*.npz")), folder / "results/1/raw/mix9.npz")
    files.write_manifest(folder)


def surviving_process(folder: Path) -> None:
    survived = {"surviving_processes": ("server",)}
    rewritten(folder, lambda of: altered(of, lambda record: record.scenario == "probe", **survived))


def hosted_service(folder: Path) -> None:
    service = Device(id="asic:api.acme.test", kind="asic", memory_pool="asic:api.acme.test", hosted="acme-70b")
    rewritten(folder, lambda result: result.model_copy(update={"devices": (*result.devices, service)}))


def one_plug_twice(folder: Path) -> None:
    def metered(metering: Metering) -> Metering:
        [(_, samples), *_] = metering.samples.items()
        watts = Samples(samples.before_ns, samples.after_ns, np.linspace(200.0, 220.0, len(samples.values)))
        return metering.model_copy(update={"samples": {**metering.samples, "wall/a": watts, "wall/b": watts}})

    def change(result: Result) -> Result:
        domains = (*result.domains, WALL, WALL.model_copy(update={"id": "wall/b"}))
        return result.model_copy(update={"domains": domains, "meterings": tuple(map(metered, result.meterings))})

    rewritten(folder, change)


def under_a_hypervisor(folder: Path) -> None:
    rewritten(folder, lambda of: but(of, system__virtualization="kvm"))


BREAKS: dict[str, Callable[[Path], object]] = {
    "E-LINKS": link,
    "E-LIMITS": large_file,
    "E-LAYOUT": stray_file,
    "E-SCHEMA": lambda folder: edited(folder, schema_version=0),
    "E-MANIFEST": other_bytes,
    "E-RESULT": other_result,
    "E-WHOLE-RESULT": unknown_raw_file,
    "E-FINISHED": updated(finished=False),
    "E-DATE": updated(created_utc="2029-01-02T03:04:05+00:00"),
    "E-PRIVATE": lambda folder: edited(folder, notes="Ask jane@example.org."),
    "E-VALID": surviving_process,
    "E-HOSTED": hosted_service,
    "E-PLACE": other_place,
    "E-DECLARED": under_a_hypervisor,
}
"""Changes a valid entry into one that breaks the rule of this code, and no other rule."""
OF_SEVERAL = {"E-SIGNED", "E-SCORE", "E-ONE-MIX", "E-ONE-MACHINE", "E-COPIED", "E-DUPLICATE"}
"""The rules that need several results, several entries or a program; they have tests of their own."""


def test_the_entry_obeys_every_rule(folder: Path, folder_of_two: Path) -> None:
    assert verdict(folder).problems == ()
    assert verdict(folder_of_two).problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("code", BREAKS)
def test_an_entry_that_breaks_one_rule_is_rejected_by_this_rule(folder: Path, code: str) -> None:
    BREAKS[code](folder)
    (found,) = check.find(folder.parents[2])
    assert codes(found) == {code}
    assert verdict(found).entry is None


@pytest.mark.parametrize("form", ["virtual machine", "other"])
def test_what_ran_under_a_hypervisor_is_a_virtual_machine(folder: Path, form: str) -> None:
    under_a_hypervisor(folder)
    edited(folder, form_factor=form)
    (found,) = check.find(folder.parents[2])
    assert codes(found) == set()


@pytest.mark.parametrize(
    ("boundary", "meter", "broken"),
    [("wall", None, True), ("wall", "Acme Wattmeter 3", False), ("node", None, False), (None, None, False)],
)
def test_a_score_at_the_wall_names_its_meter(
    folder: Path, boundary: Boundary | None, meter: str | None, broken: bool
) -> None:
    entry = verdict(folder).entry
    assert entry is not None
    declaration = entry.declaration.model_copy(update={"meter": meter})
    changed = entry.model_copy(update={"boundary": boundary, "declaration": declaration})
    assert bool(list(rules.declared(Mock(entry=changed)))) is broken


def test_a_plug_that_is_metered_twice_costs_mx_and_not_the_entry(folder: Path) -> None:
    assert (entry := verdict(folder).entry) is not None and entry.mixes_per_kwh is not None
    one_plug_twice(folder)
    entry = verdict(folder).entry
    assert entry is not None and entry.mixes_per_kwh is None and entry.boundary is None
    assert "wall/a and wall/b both claim to meter the same thing" in entry.unmeasured


@pytest.mark.parametrize("created_utc", ["2026-01-02T03:04:05Z", "2026-01-02T05:04:05+02:00"])
def test_a_date_is_in_utc_and_written_as_a_run_writes_it(folder: Path, created_utc: str) -> None:
    updated(created_utc=created_utc)(folder)
    assert codes(folder) == {"E-DATE"}


@pytest.mark.parametrize(("day", "found"), [("2024-12-31", {"E-DATE"}), ("2025-01-01", set())])
def test_no_run_is_older_than_mixmark(folder: Path, day: str, found: set[str]) -> None:
    updated(created_utc=f"{day}T23:04:05+00:00")(folder)
    assert codes(folder) == found


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("E-ONE-MACHINE", {"system__cpu_model": "Acme Opal"}),
        ("E-ONE-MACHINE", {"system__cpu_quota": 2.0}),
        ("E-ONE-MIX", {"mix__nominal_flops_per_s": 1e9}),
        ("E-SCORE", {"mix": None}),
    ],
)
def test_results_of_an_entry_have_one_machine_one_mix_and_a_score(
    folder_of_two: Path, code: str, change: dict[str, object]
) -> None:
    rewritten(folder_of_two, lambda of: but(of, **change), number=2)
    assert code in codes(folder_of_two)


@pytest.fixture
def stolen(folder: Path) -> Path:
    """An entry with the run of another one, under a name that comes first."""
    copy = folder.parents[2] / "acme" / folder.parent.name / folder.name
    shutil.copytree(folder, copy)
    edited(copy, organisation="Acme")
    return copy


def listed(path: Path, *entries: Path) -> Path:
    """The list of originals, as `sha256sum` writes it in the folder of all entries."""
    sums = [entry / "results/1/SHA256SUMS" for entry in entries]
    path.write_text("".join(f"{sha256_of(each)}  {each.relative_to(each.parents[5])}\n" for each in sums))
    return path


@pytest.mark.slow
def test_two_entries_with_one_run_have_no_rank_and_both_are_told_until_the_owner_of_a_board_says_whose_it_is(
    folder: Path, stolen: Path, tmp_path: Path
) -> None:
    """The list holds for the result that its line has the hash of."""
    for order in ((folder, stolen), (stolen, folder)):
        for found, other in zip(check.check(order, now=NOW), reversed(order), strict=True):
            [problem] = found.problems
            assert problem.code == "E-DUPLICATE" and "/".join(other.parts[-3:]) in problem.message
            assert found.entry is not None and not found.entry.ranked
            assert found.entry.reasons["ranked"][-1] == problem.message
    assert codes(folder) == codes(stolen) == set(), "each obeys the rules by itself"
    path = tmp_path / "originals"

    def settled(*originals: Path) -> list[tuple[set[str], bool]]:
        found = check.check((stolen, folder), now=NOW, originals=listed(path, *originals))
        return [({problem.code for problem in each.problems}, each.entry is None) for each in found]

    shared = {"E-DUPLICATE"}
    assert settled(folder) == [(shared, True), (set(), False)]
    assert settled(stolen) == [(set(), False), (shared, True)]
    assert settled() == settled(folder, stolen) == [(shared, False), (shared, False)]
    path.write_text(listed(path, folder).read_text().replace("a", "b"))
    assert verdict(folder, stolen, originals=path).entry is not None, "the list is about another result"
    path.write_text("acme-sohne is right\n")
    with pytest.raises(UsageError, match="line 1"):
        verdict(folder, stolen, originals=path)


def test_a_copy_of_a_copy_takes_no_rank_away(folder: Path, stolen: Path, tmp_path: Path) -> None:
    third = folder.parents[2] / "borealis" / folder.parent.name / folder.name
    shutil.copytree(folder, third)
    edited(third, organisation="Borealis")
    assert [len(each.problems) for each in check.check((stolen, folder, third), now=NOW)] == [1, 1, 1], "one sentence"
    found = check.check((stolen, folder, third), now=NOW, originals=listed(tmp_path / "originals", folder))
    assert [each.entry is None for each in found] == [True, False, True]
    assert found[1].problems == ()


def test_a_problem_names_the_file_and_the_difference(folder: Path) -> None:
    edited(folder, organisation="Acme", form_factor="boat")
    (problem,) = verdict(folder).problems
    assert problem.where == DECLARATION and problem.message.startswith("form_factor: Input should be 'board'")
    edited(folder, form_factor="board")
    (problem,) = verdict(folder).problems
    assert problem.message == "it lies in acme-sohne/acme-one/two-16-bit and belongs into acme/acme-one/two-16-bit"


def test_the_page_and_the_code_have_the_same_rules_with_the_same_codes() -> None:
    listed = re.findall(r"^\| (E-[A-Z-]+) \| ", PAGE, re.MULTILINE)
    assert listed == [*map(rules.code, rules.RULES), rules.AUDIT]
    assert {rules.code(rule) for rule in rules.RULES} == BREAKS.keys() | OF_SEVERAL
    assert all(rule.__doc__ for rule in rules.RULES)


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    units = {"": 1, "MiB": 1 << 20}
    rows = table(PAGE, "limit", "value")
    assert len(rows) == 10
    for what, value, place in rows:
        module, _, name = place.strip("`").rpartition(".")
        number, _, unit = value.partition(" ")
        assert float(number) * units[unit] == getattr(importlib.import_module(f"mixmark.{module}"), name), what
