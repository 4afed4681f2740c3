"""Every page leads where it says and types what exists, and all pages together are a site."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md")
INDEX = DOCS / "index.md"


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
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


# Commands


def test_what_the_pages_type_exists() -> None:
    """Every `mixmark …` in a page is a command with options that it has."""
    for page in PAGES:
        for words in re.findall(r"\bmixmark ((?:[a-z]+)(?: [^`\n#]*)?)(?=`|\n|$)", commands(page.read_text("utf-8"))):
            name, *rest = words.split()
            assert name in cli.main.commands, (page.name, words)
            known = {option for parameter in cli.main.commands[name].params for option in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= known | {"--help"}, (page.name, words)


def commands(text: str) -> str:
    """What a page gives to type: spans of code, and blocks of shell without their comments."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    return re.sub(r"#.*", "", "\n".join(blocks)) + "\n" + "\n".join(re.findall(r"`mixmark [^`]+`", text))


def test_every_option_that_a_page_names_exists() -> None:
    known = {option for command in cli.main.commands.values() for one in command.params for option in one.opts}
    for page in (*DOCS.glob("*.md"), ROOT / "CHANGELOG.md"):
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text("utf-8")))
        assert named <= known | {"--help", "--version"}, page.name


# The site


def test_the_index_leads_to_every_page() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {"index.md", *links(INDEX.read_text("utf-8"))} == pages


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("furo"), reason="the extra `docs` is not installed")
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
