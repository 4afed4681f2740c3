"""Some entries that were altered at random; `python -m bench.fuzz_entries N` tries thousands."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.entries import made
from bench.fuzz_entries import Fuzz, fuzz, shown
from mixmark.submissions import check
from mixmark.submissions.entry import Entry

MUTANTS = 100


@pytest.fixture(autouse=True)
def _twice_in_one_zip() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")
        yield


def test_a_mutant_is_rejected_or_unchanged() -> None:
    counts = fuzz(MUTANTS, 7)
    assert counts.noted == []
    assert sum(number for (_, outcome), number in counts.outcomes.items() if outcome == "rejected") > MUTANTS / 2


@pytest.mark.parametrize(
    ("field", "value", "outcome"), [("claim", {"grade": "official"}, "changed"), ("machine", {"kernel": "x"}, "told")]
)
def test_what_a_check_overlooks_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: dict[str, str], outcome: str
) -> None:
    run = Fuzz(tmp_path)
    (verdict,) = check.check([run.original])
    assert verdict.entry is not None
    part = getattr(verdict.entry, field).model_copy(update=value)
    overlooked = verdict.model_copy(update={"entry": verdict.entry.model_copy(update={field: part})})
    monkeypatch.setattr(check, "check", lambda folders: (overlooked,))
    assert {run.run(seed) for seed in range(12)} == {outcome}
    cared = {care for care, _ in run.counts.outcomes}
    assert cared >= {"careful", "sealed"}
    assert len(run.counts.noted) == sum(
        number for (care, _), number in run.counts.outcomes.items() if outcome == "changed" or care != "careful"
    )


def test_entries_are_made_up_in_any_number() -> None:
    some = [made(number) for number in range(50)]
    assert some == [made(number) for number in range(50)]
    assert len({each.path for each in some}) == 50
    for each in some:
        assert Entry.model_validate_json(each.model_dump_json()) == each
    entries = [check.Checked(each, frozenset(each.claim.results)) for each in some]
    assert [found for rule in check.OF_ALL for found in rule(entries)] == []
    assert shown(some[0]) != shown(some[1])
