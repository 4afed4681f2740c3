"""The reference cannot rot: its examples run, and its numbers are the code's."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from mixmark.harness.cli import commands
from mixmark.harness.contracts import schema
from mixmark.harness.judge.energy import coverage, reading
from mixmark.harness.judge.rules import interference
from mixmark.harness.judge.statistics import intervals
from mixmark.harness.machine import config
from mixmark.harness.plan import mixes, presets
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.manifest import KINDS
from mixmark.harness.worker import messages
from mixmark.suites import diffusion, dlrm, llm, probe, resnet50
from mixmark.suites.limits import MLPERF
from tests.docs import rules_table
from tests.test_imports import ROOMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONTRACT = (DOCS / "vendors" / "contract.md").read_text("utf-8")
RULES = (DOCS / "rules.md").read_text("utf-8")
CAPABILITIES = [page.read_text("utf-8") for page in sorted((DOCS / "capabilities").rglob("*.md"))]


def block(mark: str) -> str:
    """The code block of vendors/contract.md behind the comment <!-- mark -->."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w+\n(.*?)```", CONTRACT, re.DOTALL)
    assert found, mark
    return found[1]


# vendors/


def test_the_configuration_of_the_page_is_one(tmp_path: Path) -> None:
    (tmp_path / "mixmark.toml").write_text(block("config"), "utf-8")
    known = config.load(tmp_path / "mixmark.toml")
    assert known.adapter("acme") == config.AdapterConfig("/opt/acme/venv/bin/python", {"threads": "8"})
    assert known.adapter("acme-old").plugin == "acme"
    assert known.meter_pythons == {"acme-power": "/opt/acme/venv/bin/python"}
    assert set(known.suites) <= set(registry.BUILT_IN["suites"])


def test_the_entry_points_of_the_page_are_groups_that_are_searched() -> None:
    groups = {f"mixmark.{kind}" for kind in registry.BUILT_IN}
    assert set(tomllib.loads(block("pyproject"))["project"]["entry-points"]) <= groups
    assert set(re.findall(r"`(mixmark\.\w+s)`", CONTRACT)) <= groups


def test_the_mix_of_the_page_is_one(tmp_path: Path) -> None:
    (mix,) = re.findall(r"<!-- mix -->\n```toml\n(.*?)```", RULES, re.DOTALL)
    (tmp_path / "mymix.toml").write_text(mix)
    loaded = mixes.load(str(tmp_path / "mymix.toml"), "smoke", ("acme", "resnet50"))
    assert (loaded.name, loaded.units, loaded.limits["acme"].total_ns) == (
        "mymix",
        {"acme": 200, "resnet50": 4},
        500_000_000,
    )


def test_the_page_lists_what_each_suite_is_fed() -> None:
    for name, feed, _ in [*table(CONTRACT, "suite", "a feed"), *everywhere("suite", "a feed", "yields")]:
        suite = registry.find("suites")[name].load()("smoke", {})
        given = suite.feeds(2 if "offline" in suite.scenarios else 1, 1)(0)
        assert re.findall(r"`(\w+)`", feed) == list(given)


def test_the_page_lists_what_a_domain_may_say() -> None:
    assert tuple(row[0] for row in table(CONTRACT, "method", "what it is")) == coverage.METHODS
    words = " ".join(row[0] for row in table(CONTRACT, "word", "what it is"))
    assert {reading.WHOLE, *(part for parts in coverage.LEFT_OUT.values() for part in parts)} <= set(
        re.findall("`([^`]+)`", words)
    )
    assert " ".join(CONTRACT.split()).count(f"from 1 to {messages.MAX_CONCURRENCY}") == 1


# rules.md


def table(page: str, *head: str) -> list[list[str]]:
    """The rows of the table whose head begins with these cells."""
    lines = iter(page.splitlines())
    start = "| " + " | ".join(head) + " |"
    assert any(line.startswith(start) for line in lines), head
    next(lines)
    rows: list[list[str]] = []
    for line in lines:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def everywhere(*head: str) -> list[list[str]]:
    """The rows of such tables in rules.md and in the pages of capabilities."""
    start = "\n| " + " | ".join(head) + " |"
    return [row for page in (RULES, *CAPABILITIES) if start in page for row in table(page, *head)]


def of(heading: str) -> str:
    """The part of rules.md, or of a capability's page, behind the words that begin one of its paragraphs."""
    page = next(page for page in (RULES, *CAPABILITIES) if f"\n\n{heading}" in page)
    return page.split(f"\n\n{heading}", 1)[1]


def weights_m(suite: Any) -> str:
    weights = suite.weights()
    return f"{sum(math.prod(weights.spec(name).shape) for name in weights.names()) / 1e6:.1f}"


def test_presets() -> None:
    limits = {name: (preset.limits, preset.all_scenarios) for name, preset in presets.PRESETS.items()}
    limits |= {"smoke tier, any preset": (presets.SMOKE, False), "probe, any preset": (presets.PROBING, False)}
    limits |= {
        "screening run, any preset": (presets.SCREENING, False),
        "screening run, smoke tier": (presets.SMOKE_SCREENING, False),
    }
    limits |= {"of a capability": (presets.BARE.limits, presets.BARE.all_scenarios)}
    rows = table(RULES, "preset", "scenarios")
    assert [row[0] for row in rows] == list(limits)
    for name, scenarios, *seconds, feeds, audits, half_width in rows:
        limit, all_scenarios = limits[name]
        in_code = [limit.warmup_ns, limit.search_ns, limit.min_ns, limit.max_ns]
        assert [float(each) * 1e9 for each in seconds] == in_code, name
        assert (int(feeds), int(audits)) == (limit.min_feeds, limit.audits)
        assert half_width == ("none" if limit.half_width is None else f"{limit.half_width * 100:g} %")
        assert (scenarios == "all") == all_scenarios


def test_gates() -> None:
    """A row for each suite, or for some of its tiers; a limit for each group of precisions that round alike."""
    tiers = "smoke, edge, server"
    rows = [[name, where.replace("all", tiers), *rest] for name, where, *rest in everywhere("suite", "tiers")]
    told = [(row[0], tier) for row in rows for tier in row[1].split(", ")]
    assert sorted(told) == sorted((name, tier) for name in registry.BUILT_IN["suites"] for tier in tiers.split(", "))
    above = ""
    for name, where, metric, *limits, trained, samples in rows:
        metric = above = metric.replace("″", above)
        suite = registry.find("suites")[name].load()
        for limit, precisions in zip(
            limits, (("fp32",), ("bf16", "fp16"), ("fp8",), ("int8",), ("int4",)), strict=True
        ):
            gates = [suite(tier, {}).gate(each) for tier in where.split(", ") for each in precisions]
            if limit == "none":  # it has no weights of so few bits
                assert set(gates) == {None}, name
                continue
            assert {gate.at_most for gate in gates} == {float(limit)}, name
            assert {(gate.metric, gate.samples) for gate in gates} == {(metric, int(samples))}, name
        if trained == "none":  # it takes no checkpoint
            continue
        found = {each: suite("edge", {"weights": "x"}).gate(each) for each in schema.BITS_PER_WEIGHT}
        assert found.pop("fp32") == suite("edge", {}).gate("fp32"), name  # a checkpoint is exact in fp32, too
        assert {gate.at_most for gate in found.values() if gate} == {float(trained)}, name


def test_mixed_phases() -> None:
    *rows, smoke = table(RULES, "preset", "runs")
    assert [row[0] for row in rows] == list(presets.PRESETS)
    for name, runs, again, *figures, idle_s in rows:
        preset = presets.PRESETS[name]
        assert (int(runs), again == "yes", float(idle_s)) == (preset.runs, preset.confirm, preset.idle_s)
        assert [float(each) for each in figures] == mix_figures(preset.mix), name
    assert [float(each) for each in smoke[3:7]] == mix_figures(presets.SMOKE_MIX)


def mix_figures(limits: schema.Limits) -> list[float]:
    seconds = [limits.warmup_ns / 1e9, limits.min_ns / 1e9, limits.max_ns / 1e9]
    return [*seconds, limits.audits]


def test_suites_and_scenarios() -> None:
    rows = everywhere("suite", "version")
    assert sorted(row[0] for row in rows) == sorted(registry.BUILT_IN["suites"])
    for name, version, unit, scenarios, feeds in rows:
        suite = registry.find("suites")[name].load()
        assert (version, unit, scenarios) == (suite.version, suite.unit, ", ".join(suite.scenarios))
        pool = getattr(importlib.import_module(suite.__module__), "POOL", None)
        assert feeds.startswith(f"a pool of {pool} " if pool else "nothing: ")


TRANSFORMER = "layers width heads kv_heads hidden vocabulary"


def cell(value: object) -> str:
    words: dict[object, str] = {True: "yes", False: "no", None: "none"}
    return words[value] if value is None or isinstance(value, bool) else f"{value:g}"


def check_tiers(
    name: str,
    made: Callable[..., Any],
    shapes: Mapping[str, Any],
    fields: str,
    more: Callable[[Any], list[str]] = lambda shape: [],
    not_shipped: str = "",
) -> None:
    """The table of a suite's tiers is that of its shapes. fields: the columns that are fields of a shape; more: the
    columns behind them; not_shipped: the tier whose weights' shapes would take seconds."""
    for tier, *cells, weights in table(of(f"{name}:"), "tier"):
        assert cells == [*(cell(getattr(shapes[tier], field)) for field in fields.split()), *more(shapes[tier])], tier
        assert tier == not_shipped or weights == weights_m(made(tier, {})), tier


def test_tiers_of_llm() -> None:
    check_tiers("llm", llm.Llm, llm.SHAPES, f"{TRANSFORMER} tied tokens_in tokens_out", not_shipped="server")


@pytest.mark.slow
def test_tiers_of_diffusion() -> None:
    encoders = "image_size steps guidance"
    more: Callable[[Any], list[str]] = lambda shape: ["1" if shape.text_2 is None else "2"]  # noqa: E731
    check_tiers("diffusion", diffusion.Diffusion, diffusion.TIERS, encoders, more)


def test_tiers_of_dlrm_resnet50_and_probe() -> None:
    for name, *cells in table(of("dlrm:"), "tier"):
        tier, _, rows = name.partition(", rows = ")
        suite = dlrm.Dlrm(tier, {"rows": rows})
        sizes = (max(suite.shape.rows), suite.shape.dim, suite.shape.rank)
        assert cells == [*map(str, sizes), weights_m(suite)]
    assert f"with {len(dlrm.ROWS)} tables; a sample looks up {dlrm.LOOKUPS} rows" in RULES
    for tier, pixels, millions in table(of("resnet50:"), "tier"):
        pictures = resnet50.ResNet50(tier, {})
        assert (int(pixels), millions) == (pictures.shape, weights_m(pictures))
    for tier, *lists in table(of("probe:"), "tier"):
        expected = probe.TIERS[tier.rpartition(" = ")[2]]
        told = [tuple(map(int, cell.split(","))) for cell in lists]
        assert told == [(expected.rows,), (expected.most,), expected.squares]


def test_every_tier_is_in_its_table() -> None:
    for suite in registry.BUILT_IN["suites"]:
        assert {row[0].split(",")[0] for row in table(of(f"{suite}:"), "tier")} == set(get_args(schema.Tier))


def test_precisions() -> None:
    assert {name: int(bits) for name, bits in table(RULES, "precision", "bits per weight")} == schema.BITS_PER_WEIGHT
    for name in schema.BITS_PER_WEIGHT:
        assert f"`{name}`" in CONTRACT


def test_percentiles() -> None:
    needed = {name: int(feeds) for name, feeds in table(RULES, "percentile", "feeds needed")}
    assert needed == {f"p{q * 100:g}": intervals.sample_needed(q) for q in (0.5, 0.9, 0.99, 0.999)}


def test_latency_limits() -> None:
    told = {}
    for tiers, suite, percentile, *spans_ms in everywhere("tier", "suite"):
        for tier in tiers.split(", "):
            told[tier, suite] = (percentile, *(None if ms == "none" else int(ms) * 1_000_000 for ms in spans_ms))
    in_code = {
        (tier, name): (f"p{each.percentile * 100:g}", each.first_ns, each.per_unit_ns, each.total_ns)
        for name, plugin in registry.find("suites").items()
        for tier in get_args(schema.Tier)
        if (each := plugin.load()(tier, {}).latency)
    }
    assert told == in_code
    assert MLPERF.split(",")[0] in RULES


def test_the_rules_say_their_limits() -> None:
    said = {name: what for name, what, _ in rules_table.rows()}
    percent = {
        "no_steal_time": (interference.STOLEN, interference.STOLEN_IN_BLOCK),
        "no_foreign_load": (interference.FOREIGN,),
        "no_memory_pressure": (interference.MEMORY_STALL,),
        "frequency_stable": (interference.CLOCK_DROP,),
        "canary_stable": (interference.CANARY_DRIFT,),
    }
    for rule, limits in percent.items():
        for limit in limits:
            assert f"{limit * 100:g} %" in said[rule], rule
    assert f"{interference.CLOCK_STEP_NS / 1e9:g} s" in said["wall_clock_steady"]


def test_mixes() -> None:
    found = [mix for name, mix in mixes.frozen().items() if name not in mixes.without_rank()]
    in_a_mix = list(dict.fromkeys(suite for mix in found for suite in mix.units))
    rows = [
        [
            mix.name,
            *(f"{each:g}" for each in (mix.nominal_flops_per_s, mix.nominal_bytes_per_s)),
            *(f"{mix.units[suite]:g}" if suite in mix.units else "–" for suite in in_a_mix),
        ]
        for mix in found
    ]
    assert table(RULES, "mix") == rows


def imported(module: str) -> ModuleType:
    """A module as the pages name it: a room of the harness, or another part of the product, by its name there."""
    below = "mixmark" if module.split(".")[0] in ("suites", "reporters") else "mixmark.harness"
    return importlib.import_module(f"{below}.{module}")


def test_constants() -> None:
    units = {"": 1, "s": 1, "days": 1, "ns": 1, "MiB": 1 << 20}
    for what, value, place in everywhere("what", "value"):
        module, _, name = place.strip("`").rpartition(".")
        number, _, unit = value.partition(" ")
        assert float(number) * units[unit] == getattr(imported(module), name), what


NUMBER_OF_METHOD = re.compile(r'\[([\d.]+)( [a-zA-Z%]+)?\]\(rules\.md#constants "([\w.]+)"\)')


def test_the_numbers_of_the_method_are_those_of_the_code() -> None:
    """A number of method.md links to the rules, and the title of its link names the constant."""
    method = (DOCS / "method.md").read_text("utf-8")
    found = NUMBER_OF_METHOD.findall(method)
    assert len(found) == method.count('rules.md#constants "') >= 20
    for number, unit, place in found:
        module, _, name = place.rpartition(".")
        constant = getattr(imported(module), name)
        scales = {"": 1, "ms": 1e6, "s": 1e9 if name.endswith("_NS") else 1, "MiB": 1 << 20, "kB": 1000, "%": 0.01}
        told = float(number) * scales[unit.strip()]
        assert constant in (pytest.approx(told), pytest.approx(1 + told) if unit == " %" else None), place


def test_energy() -> None:
    assert [row[0] for row in table(RULES, "reason")] == list(get_args(reading.ReadingProblem))
    left_out = {kind: what for kind, what in table(RULES, "boundary", "does not include")}
    assert list(left_out) == list(coverage.CLASSES)
    for kind in coverage.CLASSES:
        assert all(each in left_out[kind] for each in coverage.LEFT_OUT[kind])


def test_failures_and_exit_codes() -> None:
    kinds = get_args(schema.Failure.model_fields["kind"].annotation)
    assert [row[0] for row in table(RULES, "kind", "when")] == list(kinds)
    promised = (commands.__doc__ or "").split("Exit codes:")[1]
    assert [row[0] for row in table(RULES, "code", "when")] == re.findall(r"\b\d+\b", promised)


# architecture.md


def test_the_architecture_shows_the_rooms_in_the_order_of_imports_and_all_kinds_of_plugins() -> None:
    page = (DOCS / "architecture.md").read_text("utf-8")
    picture = page.split("```text\n")[1].split("```")[0]
    assert tuple(re.findall(r"^   +([a-z]+)/", picture, re.MULTILINE)) == (*ROOMS, "capabilities")
    of_experiments = {"experiments", "stages", "contradictions", "figures", "sections"}
    without_entry_points = {"rules", "checks", "executors", "mixes", "pictures", *of_experiments, *KINDS}
    named = {kind for row in table(page, "to add", "write") for kind in re.findall(r"^`([a-z]+)`", row[2])}
    services = set(re.findall(r"`mixmark\.([a-z]+)`", page)) - {"suites"}
    assert named | services == set(registry.BUILT_IN) - without_entry_points
    for row in table(page, "to add", "write"):
        assert re.search(r"\]\((\.\./)?[\w/.]+(#[\w-]+)?\)", row[1] + row[2]), row
