"""Each finding is given the values of its words: every call of `found` and `case_of`, every code and every case."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter

from mixmark.harness.judge.findings import CODES, found, remedy, words, words_of_all
from mixmark.harness.judge.rules import registered

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Making:
    """A call of `found`, and the function that it stands in."""

    call: ast.Call
    function: ast.FunctionDef

    @property
    def codes(self) -> set[str]:
        """The declared codes that the first argument can be."""
        patterns = [pattern for value in self.meant(self.call.args[0]) for pattern in self.patterns(value)]
        return {code for code in CODES if any(re.fullmatch(pattern, code) for pattern in patterns)}

    @property
    def given(self) -> set[str]:
        """The names of the values that the call always gives."""
        names = {"phase"} if isinstance(self.call.func, ast.Attribute) else set()
        for keyword in self.call.keywords:
            names |= {keyword.arg} if keyword.arg else set.intersection(*map(keys, self.meant(keyword.value)))
        return names

    @property
    def about_a_record(self) -> bool:
        return len(self.call.args) > 1 and ast.unparse(self.call.args[1]).endswith("key")

    def meant(self, value: ast.expr) -> list[ast.expr]:
        """What a name stands for: what the function assigns to it, or lets it run over. Else the value itself."""
        if not isinstance(value, ast.Name):
            return [value]
        meant: list[ast.expr] = []
        for node in ast.walk(self.function):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if value.id in [target.id for target in targets if isinstance(target, ast.Name)]:
                meant += node.iter.elts if isinstance(node, ast.For) else [node.value]  # type: ignore[attr-defined]
        return meant

    def patterns(self, code: ast.expr) -> list[str]:
        """Regular expressions of the codes that an expression can be."""
        if isinstance(code, ast.IfExp):
            return [*self.patterns(code.body), *self.patterns(code.orelse)]
        if not isinstance(code, ast.JoinedStr):
            return [re.escape(ast.literal_eval(code))]
        rule, case = code.values  # as every f-string of a code is: rule.{case}
        cases = self.meant(case.value) if isinstance(case, ast.FormattedValue) else []
        ends = [re.escape(str(each.value)) if isinstance(each, ast.Constant) else r"(?!noticed)\w+" for each in cases]
        return [re.escape(ast.literal_eval(rule)) + end for end in ends]


def keys(values: ast.expr) -> set[str]:
    """The keys of a dictionary that is written out, there or where a method of this name returns it."""
    if isinstance(values, ast.Dict):
        return {ast.literal_eval(key) for key in values.keys if key}
    assert isinstance(values, ast.Call) and isinstance(values.func, ast.Attribute), ast.unparse(values)
    ends = [node for each in functions() if each.name == values.func.attr for node in ast.walk(each)]
    return set.intersection(
        *(keys(e.value) for e in ends if isinstance(e, ast.Return) and isinstance(e.value, ast.Dict))
    )


@cache
def functions() -> list[ast.FunctionDef]:
    files = [path for room in ("harness", "submissions", "reporters") for path in (ROOT / room).rglob("*.py")]
    nodes = [node for path in sorted(files) for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]


def makings() -> Iterator[Making]:
    for function in functions():
        if function.name not in ("found", "case_of"):  # which are given the code
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("found", "window.found"):
                    yield Making(node, function)


def fields(code: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(CODES[code].words + CODES[code].remedy) if name}


def test_every_finding_is_given_the_values_of_its_words() -> None:
    registered.in_order()
    made = list(makings())
    lacking = [(ast.unparse(each.call), code, fields(code) - each.given) for each in made for code in each.codes]
    for code in CODES:
        rule, _, case = code.partition(".")
        if case == "noticed":  # verdict: given the share alone
            lacking.append(("case_of", code, fields(code) - {"share"}))
        if case == "unranked":  # costs_of_rank: given the records' parts and suites, or what the finding was given
            for each in made:
                for severity in {CODES[of].severity for of in each.codes if of.partition(".")[0] == rule}:
                    given = {"parts", "suites"} if each.about_a_record and severity != "note" else each.given
                    lacking.append((ast.unparse(each.call), code, fields(code) - given))
    assert [each for each in lacking if each[2]] == []
    unmade = CODES.keys() - {code for each in made for code in each.codes}
    assert {code.rpartition(".")[2] for code in unmade} == {"noticed", "unranked"}, "codes that nothing finds"


def test_a_value_that_a_finding_lacks_is_unknown() -> None:
    for code in CODES:
        assert words(found(code)) and "{" not in words(found(code)) + remedy(found(code))
    assert words(found("run_at_once")) == "it was resumed unknown after its first solo window"
    whole, part = found("run_at_once", times=2), found("canary_stable", fastest_ms=1.0)
    assert words_of_all([whole, found("run_at_once")]) == words(whole)
    assert words_of_all([part, part]) == (
        "a fixed loop took 1.00 ms at its fastest and unknown ms at its slowest, unknown as long (limit unknown)"
    )
