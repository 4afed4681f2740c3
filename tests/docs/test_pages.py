"""Every page leads where it says and types what exists, and all pages together are a site."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import click
import pytest

import mixmark
from mixmark.harness import VERSION
from mixmark.harness.cli.commands import main
from mixmark.harness.contracts import schema
from mixmark.harness.judge import score, verdict
from mixmark.harness.judge.energy import coverage
from mixmark.harness.judge.energy.reading import ENOUGH_PERIODS, FEWEST_PERIODS
from mixmark.harness.machine import config
from mixmark.harness.plan import mixes, presets
from mixmark.harness.plugins import registry
from tests.docs import capabilities_page, cli_page, parts, tutorial_page
from tests.fakes.folders import Maker, write

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FRONT = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")
PAGES = (*sorted(DOCS.rglob("*.md")), *(ROOT / f"{name}.md" for name in FRONT))
INDEX = DOCS / "index.md"
MANIFEST = tomllib.loads((ROOT / "harness/plugins/built_in.toml").read_text("utf-8"))
DELETED = MANIFEST["commands"].keys() - registry.BUILT_IN["commands"].keys()
"""The commands of capabilities that were deleted."""
NAMED = {name for table in MANIFEST.values() for name in re.findall(r"\.capabilities\.(\w+)", str(table))}
GONE = {name for name in NAMED if not (ROOT / "harness/capabilities" / name).is_dir()}
"""The capabilities that were deleted, with their pages."""


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if GONE & {each.partition(".")[0] for each in there.parts}:
            continue
        assert there.is_file(), target
        assert there.is_relative_to(ROOT), target
        if anchor:
            assert anchor in anchors(there.read_text("utf-8")), target


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = (
        "[a](one.md) ![b](two.svg 'title') [c](<three.md#x>)\n\n`[code](four.md)` [web](https://a.b)\n\n[d]: five.md\n"
    )
    assert list(links(text)) == ["one.md", "two.svg", "three.md#x", "five.md"]
    assert list(anchors("# One & two\n## `One` *two*: λ\n```\n# no heading\n```\n## [A link](x.md)\n## A link\n")) == [
        *("one--two", "one-two-λ", "a-link", "a-link-1")
    ]


def links(text: str) -> Iterator[str]:
    """The targets in this repository of the links and pictures of a page, outside of code."""
    text = re.sub(r"`[^`\n]+`", "", without_blocks(text))
    inline = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)", text)
    for target in (*inline, *re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(text: str) -> Iterator[str]:
    """The anchors of a page's headings, by GitHub's rule: a heading that repeats gets a number."""
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.*)$", without_blocks(text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        seen[anchor] += 1


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


# What is made from code

GENERATORS = [
    pytest.param(module, marks=[pytest.mark.slow] if hasattr(module, "SLOW") else [], id=module.__name__)
    for module in parts.generators()
]


@pytest.mark.parametrize("module", GENERATORS)
def test_a_generated_page_is_that_of_the_code(module: ModuleType) -> None:
    pages = module.pages()
    assert {path: path.read_text("utf-8") for path in pages} == pages, "python -m tests.docs renews them"


# Commands


def test_what_the_pages_type_exists() -> None:
    """Every `mixmark …` in a page is a command with options that it has, or the command of a deleted capability."""
    for page in PAGES[:-1]:  # the changelog names what there was
        for words in re.findall(r"\bmixmark ((?:[a-z]+)(?: [^`\n#]*)?)(?=`|\n|$)", commands(page.read_text("utf-8"))):
            first, *rest = words.split()
            if DELETED & {first, " ".join([first, *rest[:1]])}:
                continue
            known_commands = dict(cli_page.commands(main))
            assert first in known_commands, (page.name, words)
            command = known_commands.get(" ".join((first, *rest[:1])), known_commands[first])
            below = command.commands.values() if isinstance(command, click.Group) else ()
            known = {option for each in (command, *below) for parameter in each.params for option in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= known | {"--help"}, (page.name, words)


def commands(text: str) -> str:
    """What a page gives to type: spans of code, and blocks of shell without their comments."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    return re.sub(r"#.*", "", "\n".join(blocks)) + "\n" + "\n".join(re.findall(r"`mixmark [^`]+`", text))


def test_every_option_that_a_page_names_exists() -> None:
    known = {option for _, command in cli_page.commands(main) for one in command.params for option in one.opts}
    for page in DOCS.glob("*.md"):
        others = r"uv|pipx|pip|python|nvidia-smi|turbostat|powermetrics|scripts/\w+"  # these have options of their own
        foreign = rf"`(?:{others}) [^`]*`|^pip .*$"
        ours = re.sub(foreign, "", page.read_text("utf-8"), flags=re.MULTILINE)
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", ours))
        assert named <= known | {"--help", "--version"}, page.name


# score.md, glossary.md


def test_the_example_of_the_score_is_computed_right() -> None:
    page = (DOCS / "score.md").read_text("utf-8")
    units = mixes.frozen()["edge-1"].units
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.,]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    done = {}
    for suite, finished, in_one, told in rows:
        assert float(in_one.replace(",", "")) == units[suite]
        done[suite] = int(finished.replace(",", "")) / units[suite]
        assert told == f"{done[suite]:.2f}"
    assert done.keys() == units.keys()
    seconds, least = 120.2, min(done.values())
    for words in (
        f"{least:.2f} mixes ÷ {seconds} s = {3600 * least / seconds:.1f} mixes per hour",
        f"takes {seconds / least:.1f} s",
        f"150 W × {seconds} s = {0.15 * seconds:.1f} kJ",
        f"{3600 * least / (0.15 * seconds):.0f} mixes per kWh, or {0.15 * seconds / least:.2f} kJ",
    ):
        assert words in " ".join(page.split()), words
    for suite, count in units.items():
        assert re.search(rf"^\| {suite} \| {count:,g} ", page, re.MULTILINE), suite


def test_the_glossary_is_in_order_and_knows_the_words_of_the_program() -> None:
    page = (DOCS / "glossary.md").read_text("utf-8")
    terms = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert terms == sorted(terms, key=str.casefold)
    words = {
        *get_args(verdict.VerdictWord),
        *get_args(score.Grade),
        *get_args(schema.Tier),
        *presets.PRESETS,
        *coverage.CLASSES,
    }
    assert not [word for word in words if f"*{word}*" not in page.lower()]


# meters.md

SNIPPETS = [
    snippet
    for page in (DOCS / "meters.md", *sorted((DOCS / "capabilities").rglob("*.md")))
    for snippet in re.findall(r"^ *```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    if "[meter." in snippet
]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: "+".join(re.findall(r"\[(.+)\]", snippet)))
def test_each_declaration_of_a_meter_is_one_that_its_meter_takes(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in re.findall(r'_env = "(\w+)"', snippet):
        monkeypatch.setenv(variable, "correct horse")
    (tmp_path / "mixmark.toml").write_text(textwrap.dedent(snippet), "utf-8")
    meters = config.load(tmp_path / "mixmark.toml").meters
    assert meters
    for section, options in meters.items():
        plugin = registry.find("meters")[section.partition(".")[0]]
        plugin.load()(options)


def test_the_meters_page_says_how_often_a_meter_must_have_a_new_value() -> None:
    page = (DOCS / "meters.md").read_text("utf-8")
    spans = {
        "shortest mix of the preset quick": presets.PRESETS["quick"].mix.min_ns,
        "shortest mix of the presets ranked and standard": presets.PRESETS["ranked"].mix.min_ns,
        "shortest mix of the preset official": presets.PRESETS["official"].mix.min_ns,
        "one measurement of the preset standard": presets.PRESETS["standard"].limits.min_ns,
    }
    assert presets.PRESETS["standard"].mix.min_ns == presets.PRESETS["ranked"].mix.min_ns
    for what, span_ns in spans.items():
        seconds = span_ns / 1e9
        row = f"| {what}, {seconds:g} s | {seconds / FEWEST_PERIODS:g} s | {seconds / ENOUGH_PERIODS:g} s |"
        assert row in page
    words = f"A window needs {FEWEST_PERIODS} *new* values of the meter to have joules, and {ENOUGH_PERIODS} not"
    assert words in " ".join(page.split())


# tutorial.md

TUTORIAL = tutorial_page.PAGE.read_text("utf-8")


def test_every_command_of_the_tutorial_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options exist, their values are allowed, and each file or folder that it reads was written before."""
    monkeypatch.chdir(tmp_path)
    for name, text in tutorial_page.files(TUTORIAL).items():
        Path(name).write_text(text, "utf-8")
        assert config.load(Path(name)) != config.Config()
    lines = [line for block in tutorial_page.typed(TUTORIAL) for line in block.splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mixmark ")]
    assert [name for name, *_ in commands] == ["run", "report", "report", "run", "run", "compare", "meters"]
    for name, *words in (each for each in commands if each[0] not in DELETED):
        words = words[: words.index(">")] if ">" in words else words
        root = main.make_context("mixmark", [], resilient_parsing=True)  # click keeps the first context's help option
        context = main.commands[name].make_context(name, words, parent=root)
        if out := context.params.get("out"):
            Path(out).mkdir()


# notebook.md


def test_the_lines_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("results/x"), Maker().result())
    (lines,) = re.findall(r"```python\n(.*?)```", (DOCS / "notebook.md").read_text("utf-8"), re.DOTALL)
    cell: dict[str, Any] = {}
    exec(lines, cell)
    run = cell["run"]
    assert (cell["tx"], run.verdict.word) == (run.assessment.score.mixes_per_hour, run.assessment.verdict.word)
    assert {*cell["rates"]} == {"dlrm", "resnet50"} and len(cell["rows"]) == len(run.assessment.runs) + 1
    dlrm = [each for each in run.assessment.result.records if each.route.suite == "dlrm"]
    assert len(cell["feeds"]) == sum(len(each.completions) for each in dlrm)
    assert run._repr_html_().startswith("<iframe srcdoc=") and run.verdict.word in run._repr_html_()
    assert {"load", "Run", "Device", "__version__"} <= {*dir(mixmark)} and mixmark.__version__ == VERSION
    with pytest.raises(KeyError, match="chess"):
        run.timestamps("chess")


# The site


def test_the_index_leads_to_every_page() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    capabilities = {f"capabilities/{page}" for page in links(capabilities_page.PAGE.read_text("utf-8"))}
    assert {"index.md", *links(INDEX.read_text("utf-8")), *capabilities} == pages


@pytest.mark.exhaustive
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-d", str(tmp_path / "cache")]
    done = subprocess.run([*build, str(DOCS), str(site)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")} <= {
        page.relative_to(site) for page in site.rglob("*.html")
    }
    fetched = re.compile(r"""<(?:script|img|iframe)[^>]*\bsrc=["']?(?:https?:)?//|<link[^>]*stylesheet[^>]*https?://""")
    assert not [page for page in site.rglob("*.html") if fetched.search(page.read_text("utf-8"))]
