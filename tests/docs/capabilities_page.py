"""docs/capabilities/index.md from the pages of the capabilities that are there."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "capabilities" / "index.md"
HEAD = """\
# Capabilities

What no score needs. Each capability can be deleted with its tests and its page, and everything else works as before.
"""
GROUPS = {
    "Read and compare results": "compare doctor plan reaudit wide_pictures",
    "Publish": "submissions",
    "Measure more than the mix": "serving ladder policies pipelines paths caps",
    "More suites": "broad speech ssm train",
    "More engines and machines": "endpoint export hosts inductor jax llamacpp",
    "Energy": "external_log meter_trial plugs sensors",
    "Write a plugin": "kit",
}
"""The pages and folders of each group; any other page is in the group Others."""


def pages() -> dict[Path, str]:
    there = {path.relative_to(PAGE.parent).as_posix(): path for path in PAGE.parent.rglob("*.md") if path != PAGE}
    groups = {name: group for group, names in GROUPS.items() for name in names.split()}
    listed: dict[str, list[str]] = {group: [] for group in (*GROUPS, "Others")}
    for name, path in sorted(there.items()):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        listed[groups.get(name.partition("/")[0].removesuffix(".md"), "Others")].append(f"- [{title}]({name})\n")
    return {PAGE: HEAD + "".join(f"\n## {group}\n\n{''.join(links)}" for group, links in listed.items() if links)}
