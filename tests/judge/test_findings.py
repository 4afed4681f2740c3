"""The table of rules as a whole: every code can be written, and the judge gives every code and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

from mixmark.harness import judge
from mixmark.harness.contracts.schema import FindingValue
from mixmark.harness.judge.findings import FORMATS, TABLE, found, remedy, words

FILES = sorted(Path(judge.__file__).parent.rglob("*.py"))
OF_FORMAT: dict[str, FindingValue] = {"share": (1, 2), "hint": "a hint", "phase": "mixed.1", "": "a text"}
"""A sample of a value that is no number, by the format of its field."""


def fields(code: str) -> dict[str, str]:
    """The format of each field of a code, by its name."""
    texts = TABLE[code].words + TABLE[code].remedy
    return {name: spec or "" for _, name, spec, _ in Formatter().parse(texts) if name}


def sample(spec: str) -> FindingValue:
    return OF_FORMAT.get(spec, 1.5 if spec.endswith(("f", "g")) or spec in ("percent", "change") else 2)


def literals() -> Iterator[str]:
    """All strings of the judge, the table left out. `{}` stands for the fields of an f-string."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name != "findings.py":
                yield node.value


@pytest.mark.parametrize("code", TABLE)
def test_every_code_is_written_in_full(code: str) -> None:
    finding = found(code, **{name: sample(spec) for name, spec in fields(code).items()})
    text = words(finding) + remedy(finding)
    assert words(finding) and not {"{", "}", "\n"} & set(text)
    for name, spec in fields(code).items():
        if spec in OF_FORMAT:
            assert any(str(part) in text for part in (OF_FORMAT[spec], "1 of 2")), name


def test_every_format_of_the_table_is_used() -> None:
    used = {spec.split(" ")[0] for code in TABLE for spec in fields(code).values()}
    assert set(FORMATS) <= used


def test_the_judge_gives_every_code_of_the_table() -> None:
    """A code is a literal, a literal with a case that follows, or a rule's name before `.noticed` or `.unranked`."""
    known = set(literals())
    begins = tuple(each.partition("{}")[0] for each in known if each.partition("{}")[0].endswith("."))
    unused = [
        code
        for code in TABLE
        if code not in known
        and not (code.startswith(begins) and code.partition(".")[2] in known)
        and code.partition(".")[2] not in ("noticed", "unranked")
    ]
    assert unused == []
    assert {"{}.noticed", "{}.unranked"} <= known


def test_severities_that_void_a_result() -> None:
    invalid = {code.partition(".")[0] for code, says in TABLE.items() if says.severity == "invalid"}
    assert invalid == {
        "finished", "hosts_took_part", "mix_complete", "consistency", "audited", "no_orphans", "units_counted",
        "window_bracketed", "on_schedule", "concurrency_kept", "threads_pinned", "on_device",
    }  # fmt: skip
    assert [code for code, says in TABLE.items() if says.severity == "pending"] == ["audited.pending"]
