from __future__ import annotations

from pathlib import Path

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Mix, ServiceLimits
from mixmark.harness.plan import mixes
from mixmark.harness.plugins import registry

SUITES = ("llm", "diffusion", "dlrm", "resnet50")
RANKED_MIXES = ["edge-1", "server-1", "smoke-1"]
BATCHES = {"dlrm": 2048, "resnet50": 32}


def check_units(mix: Mix) -> None:
    """What the nominal device does in a quarter of a second."""
    assert mix.nominal_flops_per_s
    assert mix.nominal_bytes_per_s
    for suite_name in mix.units.keys() & registry.BUILT_IN["suites"].keys():
        batch = BATCHES.get(suite_name, 1)
        suite = registry.find("suites")[suite_name].load()(mix.tier, {})
        feed_s = sum(
            cost.yields * max(cost.flops / mix.nominal_flops_per_s, cost.bytes / mix.nominal_bytes_per_s)
            for cost in suite.costs("bf16", batch)
        )
        assert mix.units[suite_name] == float(f"{0.25 * suite.units(batch) / feed_s:.3g}"), suite_name


@pytest.mark.parametrize("name", RANKED_MIXES)
def test_the_units_follow_from_the_suites_costs(name: str) -> None:
    check_units(mixes.frozen()[name])
    assert tuple(mixes.frozen()[name].units) == SUITES


def check_limits(mix: Mix) -> None:
    assert mix.frozen
    assert mix.limits["llm"] == ServiceLimits(first_ns=10**10, per_unit_ns=10**9)
    assert mix.limits["diffusion"] == ServiceLimits(total_ns=120 * 10**9)
    assert mix.limits["dlrm"] == mix.limits["resnet50"] == ServiceLimits(total_ns=2 * 10**9)


def test_every_tier_has_a_frozen_mix_with_limits() -> None:
    assert [name for name in mixes.frozen() if name not in mixes.without_rank()] == RANKED_MIXES
    for mix in (mixes.frozen()[name] for name in RANKED_MIXES):
        check_limits(mix)
        assert mixes.load(None, mix.tier, SUITES) is mix is mixes.load(mix.name, mix.tier, SUITES)


def own(folder: Path, text: str) -> str:
    path = folder / "my.toml"
    path.write_text(text)
    return str(path)


def test_a_mix_of_ones_own_is_named_and_not_frozen(tmp_path: Path) -> None:
    path = own(tmp_path, '[mine]\ntier = "edge"\nunits = { llm = 1.5 }\n[mine.limits]\nllm = { total_s = 0.5 }\n')
    mix = mixes.load(path, "edge", SUITES)
    assert (mix.name, mix.units, mix.limits["llm"].total_ns) == ("mine", {"llm": 1.5}, 500_000_000)
    assert not mix.frozen
    path = own(tmp_path, '[mine]\ntier = "edge"\nunits = { ocr = 1 }\n[models.ocr]\nfile = "a.onnx"\n')
    assert mixes.load(path, "edge", ["ocr"]).name == "mine" and mixes.models(path) == {"ocr": {"file": "a.onnx"}}
    with pytest.raises(UsageError, match="models is not a table of tables"):
        mixes.models(own(tmp_path, "[models]\nocr = 1\n"))


def test_a_published_mix_of_suites_that_are_not_installed_is_refused_with_their_names() -> None:
    with pytest.raises(UsageError, match=f"there is no suite for mix edge-1: '{SUITES[-1]}'"):
        mixes.load("1", "edge", SUITES[:-1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[mine]\ntier = "edge"\nunits = {}\n', "at least 1 item"),
        ('[mine]\ntier = "edge"\nunits = { llm = 0 }\n', "units of llm must be above 0"),
        ('[mine]\ntier = "edge"\nunits = { llm = "many" }\n', "units.llm"),
        ('[mine]\ntier = "edge"\nunits = { llama = 2 }\n', "there is no suite for mix mine: 'llama'"),
        ('[mine]\ntier = "server"\nunits = { llm = 2 }\n', "the mix mine is for the tier server, not for edge"),
        ('[edge-1]\ntier = "edge"\nunits = { llm = 2 }\n', "the name edge-1 is reserved for a published mix"),
        ('[Mine]\ntier = "edge"\nunits = { llm = 2 }\n', "name: "),
        ('[a]\ntier = "edge"\n[b]\ntier = "edge"\n', "must have exactly one table"),
        ('[a]\ntier = "edge"\nunits = { llm = 1 }\nspeed = 3\n', "speed: Extra inputs"),
        (
            '[a]\ntier = "edge"\nunits = { llm = 1 }\nlimits = { llm = 3 }\n',
            "a.limits.llm must have at least one of first_s",
        ),
        ('[a]\ntier = "edge"\nunits = { llm = 1 }\nlimits.llm = { total_s = -1 }\n', "must be seconds, above 0"),
        ('[a]\ntier = "edge"\nunits = { llm = 1 }\nlimits.dlrm = { total_s = 1 }\n', "limits of dlrm, but no units"),
        ("[mine\n", "cannot read the mix"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        mixes.load(own(tmp_path, text), "edge", SUITES)
    assert said in str(refused.value)


def test_a_mix_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the mix"):
        mixes.load(str(tmp_path / "none.toml"), "edge", SUITES)
    with pytest.raises(UsageError, match="edge-2") as refused:
        mixes.load("edge-2", "edge", SUITES)
    assert "did you mean edge-1?" in refused.value.hint


def test_a_run_ends_with_the_mix_of_its_tier_if_it_measures_all_suites_of_it() -> None:
    edge = mixes.frozen()["edge-1"]
    assert mixes.choose(None, "edge", SUITES, SUITES) is edge is mixes.choose("edge-1", "edge", SUITES, SUITES)
    assert mixes.choose("none", "edge", SUITES, SUITES) is None
    assert mixes.choose(None, "edge", ["llm"], SUITES) is None
    with pytest.raises(UsageError, match="diffusion, dlrm, resnet50"):
        mixes.choose("edge-1", "edge", ["llm"], SUITES)
