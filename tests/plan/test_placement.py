from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixmark.harness.contracts.errors import MixmarkError, UsageError
from mixmark.harness.contracts.schema import Device, Placement, Rate
from mixmark.harness.plan.bound import best_kind, each_once, verify
from mixmark.harness.plan.placement import Power, place
from tests.fakes import machine as fake
from tests.fakes.machine import MIX

GPU, CPU = fake.device("gpu:0"), fake.device("cpu:0")
POWER = Power({"gpu:0": 60, "cpu:0": 50}, 120)


def rate(suite: str, device: str, units_per_s: float, watts: float | None = None, **more: object) -> Rate:
    fields = {"adapter": "acme", "precision": "bf16", "batch": 1, **more}
    return Rate.model_validate({"suite": suite, "device": device, "units_per_s": units_per_s, "watts": watts, **fields})


RATES = fake.solo(fake.GPU_AND_CPU, fake.AT_WORK)
"""The worked example of the method's part E."""


def of(plan: Placement, device: str) -> list[float]:
    return [round(plan.fractions[suite].get(device, 0), 3) for suite in MIX]


def test_the_worked_example_throughput() -> None:
    plan = place(MIX, RATES, [GPU, CPU], power=POWER)
    assert round(plan.mixes_per_s, 5) == round(plan.bound_per_s, 5) == 0.23741
    assert of(plan, "gpu:0") == [0.406, 0.475, 0, 0.119]
    assert of(plan, "cpu:0") == [0.683, 0, 0.317, 0]
    prices = {suite: f"{price:.4g}" for suite, price in plan.suite_prices.items()}
    assert prices == {"llm": "0.002158", "diffusion": "0.4317", "dlrm": "7.194e-07", "resnet50": "0.0001079"}
    assert {id: round(price, 5) for id, price in plan.device_prices.items()} == {"gpu:0": 0.21583, "cpu:0": 0.02158}
    assert plan.watts is not None
    assert round(plan.watts, 1) == 614.3
    assert round(1000 * plan.mixes_per_s / plan.watts, 4) == 0.3865


def test_the_worked_example_efficiency() -> None:
    plan = place(MIX, RATES, [GPU, CPU], "efficiency", power=POWER)
    assert plan.watts is not None
    assert (round(plan.mixes_per_s, 5), round(plan.watts, 1)) == (0.22222, 527.0)
    assert round(1000 * plan.mixes_per_s / plan.watts, 5) == 0.42164
    assert of(plan, "cpu:0") == [0, 0, 0.296, 0]
    assert round(plan.bound_per_s, 5) == 0.23741


def test_the_worked_example_one_kind_alone() -> None:
    kind, mixes_per_s = best_kind(MIX, RATES, [GPU, CPU])
    assert (kind, round(mixes_per_s, 4)) == ("gpu", 0.1538)
    assert best_kind(MIX, RATES, [CPU])[1] == pytest.approx(0.0076, abs=5e-5)
    lame = [each for each in RATES if each.device != "gpu:0" or each.suite != "llm"]
    assert best_kind(MIX, lame, [GPU, CPU])[0] == "cpu"
    assert best_kind(MIX, lame, [GPU]) == ("", 0.0)


def test_the_fastest_of_several_routes_counts() -> None:
    slower = [each.model_copy(update={"units_per_s": each.units_per_s / 2, "adapter": "slow"}) for each in RATES]
    plan = place(MIX, slower + RATES, [GPU, CPU])
    assert plan.mixes_per_s == pytest.approx(0.23741007)
    assert {each.adapter for each in plan.rates} == {"acme"}
    assert len(plan.rates) == len(RATES)


def test_efficiency_may_prefer_a_slower_route() -> None:
    frugal = [rate(each.suite, "gpu:0", 0.9 * each.units_per_s, 100, adapter="frugal") for each in RATES[::2]]
    plan = place(MIX, [*frugal, *RATES], [GPU, CPU], "efficiency", power=POWER)
    used = {
        each.adapter for each in plan.rates if plan.fractions[each.suite].get(each.device) and each.device == "gpu:0"
    }
    assert used == {"frugal"}
    assert verify(plan, MIX) == ()


def test_efficiency_gives_up_devices_until_none_is_worth_its_watts() -> None:
    """Equal in speed; all of them do 0.3 mixes a joule, without the last one it is 0.4, the first one alone 0.5."""
    gpus = [gpu(name) for name in "abc"]
    rates = [rate("llm", each.id, 1, watts) for each, watts in zip(gpus, (1, 3, 5), strict=True)]
    power = Power({each.id: 0 for each in gpus}, 1)
    plan = place({"llm": 1.0}, rates, gpus, "efficiency", power=power)
    assert plan.fractions["llm"] == pytest.approx({"gpu:a": 1})
    assert plan.watts == pytest.approx(2)


def test_host_threads_are_paid_for_only_where_the_accelerator_is_used() -> None:
    spared = place(MIX, RATES, [GPU, CPU], host_fraction=0.1)
    assert sum(spared.fractions[suite].get("cpu:0", 0) for suite in MIX) == pytest.approx(0.9)
    assert 1 / 6.5 < spared.mixes_per_s < spared.bound_per_s
    useless = [each.model_copy(update={"units_per_s": each.units_per_s / 1000}) for each in RATES[::2]]
    alone = place(MIX, useless + RATES[1::2], [GPU, CPU], host_fraction=0.1)
    assert not any("gpu:0" in devices for devices in alone.fractions.values())


def test_host_threads_are_paid_for_in_full_where_the_accelerator_is_used_a_little() -> None:
    """Ten feeds of the LLM take the GPU a tenth of its time, and it is hardly able to run the other suite."""
    rates = [rate("llm", "gpu:0", 10), rate("resnet50", "gpu:0", 1e-4), rate("resnet50", "cpu:0", 1)]
    plan = place(DUO, rates, [GPU, CPU], host_fraction=0.2)
    assert plan.fractions["resnet50"]["cpu:0"] == pytest.approx(0.8)


def test_a_host_that_only_feeds_accelerators_computes_nothing() -> None:
    gpus = [gpu(name) for name in "abcd"]
    rates = [each.model_copy(update={"device": gpu.id}) for gpu in gpus for each in RATES[::2]] + RATES[1::2]
    plan = place(MIX, rates, [*gpus, CPU], host_fraction=0.3)
    assert plan.mixes_per_s == pytest.approx(4 / 6.5)


def test_weights_must_fit_into_their_pool() -> None:
    def sized(gib: int) -> list[Rate]:
        return [each.model_copy(update={"memory_bytes": gib << 30}) for each in RATES]

    pools = {"gpu:0": 24 << 30, "host": 24 << 30}
    assert place(MIX, sized(6), [GPU, CPU], pool_bytes=pools).mixes_per_s == pytest.approx(0.23741007)
    short = place(MIX, sized(12), [GPU, CPU], pool_bytes=pools)
    assert all(sum(id in devices for devices in short.fractions.values()) <= 2 for id in ("gpu:0", "cpu:0"))
    assert short.mixes_per_s < short.bound_per_s
    assert verify(short, MIX) == ()
    with pytest.raises(MixmarkError, match="llm, diffusion, dlrm, resnet50"):
        place(MIX, sized(20), [GPU, CPU], pool_bytes=pools)
    with pytest.raises(MixmarkError, match=r"llm.* 30\.0 GiB.*gpu:0 24\.0 GiB, host 24\.0 GiB"):
        place(MIX, sized(30), [GPU, CPU], pool_bytes=pools)


def test_a_suite_that_nobody_runs_is_named() -> None:
    with pytest.raises(UsageError, match="diffusion"):
        place(MIX, [each for each in RATES if each.suite != "diffusion"], [GPU, CPU])
    with pytest.raises(UsageError, match="no device can run"):
        place(MIX, [], [GPU, CPU])


def test_efficiency_needs_every_watt() -> None:
    with pytest.raises(UsageError, match="gpu:0, cpu:0"):
        place(MIX, RATES, [GPU, CPU], "efficiency", power=None)
    with pytest.raises(UsageError, match="the power of cpu:0 is not known"):
        place(MIX, RATES, [GPU, CPU], "efficiency", power=Power({"gpu:0": 60}))
    blind = [RATES[0].model_copy(update={"watts": None}), *RATES[1:]]
    with pytest.raises(UsageError, match="llm on gpu:0"):
        place(MIX, blind, [GPU, CPU], "efficiency", power=POWER)
    assert place(MIX, blind, [GPU, CPU], power=POWER).watts is None


def gpu(name: str, *parts: str) -> Device:
    return Device(id=f"gpu:{name}", kind="gpu", memory_pool=name, parts=tuple(f"gpu:{part}" for part in parts))


A, B, PAIR = gpu("a"), gpu("b"), gpu("pair", "a", "b")
DUO = {"llm": 1.0, "resnet50": 1.0}


def rated(**of: tuple[float, float]) -> list[Rate]:
    """The rates of llm and resnet50 on each GPU; 0: it cannot run it."""
    pairs = [(name, suite, pace) for name, paces in of.items() for suite, pace in zip(DUO, paces, strict=True)]
    return [rate(suite, f"gpu:{name}", pace) for name, suite, pace in pairs if pace]


@pytest.mark.parametrize(
    ("pair", "used", "mixes_per_s"), [((1.5, 1.2), {"gpu:a", "gpu:b"}, 1.0), ((4.0, 4.0), {"gpu:pair"}, 2.0)]
)
def test_a_plan_uses_a_group_or_its_members(pair: tuple[float, float], used: set[str], mixes_per_s: float) -> None:
    rates = rated(a=(1, 1), b=(1, 1), pair=pair)
    plan = place(DUO, rates, [A, B, PAIR])
    assert {device for of in plan.fractions.values() for device in of} == used
    assert plan.mixes_per_s == pytest.approx(mixes_per_s) == pytest.approx(plan.bound_per_s)
    assert plan.device_prices.keys() == {"gpu:a or gpu:pair", "gpu:b or gpu:pair"}
    assert verify(plan, DUO, [A, B, PAIR]) == ()
    kind, fastest = best_kind(DUO, rates, [A, B, PAIR])
    assert (kind, round(fastest, 9)) == ("gpu", mixes_per_s)  # not the silicon twice


def test_the_bound_of_devices_that_share_silicon_lets_them_take_turns_and_no_plan_does() -> None:
    rates = rated(a=(0, 1), b=(0, 1), pair=(1.5, 0.2))
    plan = place(DUO, rates, [A, B, PAIR])
    assert (plan.mixes_per_s, plan.bound_per_s) == pytest.approx((1 / (1 / 1.5 + 1 / 0.2), 1 / (1 / 1.5 + 1 / 2)))
    assert plan.fractions["resnet50"] == {"gpu:pair": pytest.approx(0.88235, abs=1e-5)}
    assert verify(plan, DUO, [A, B, PAIR]) == ()
    both = plan.model_copy(update={"fractions": {"llm": {"gpu:pair": 0.1}, "resnet50": {"gpu:a": 0.1, "gpu:b": 0.1}}})
    assert "the plan runs gpu:a and gpu:pair at once, which share silicon" in verify(both, DUO, [A, B, PAIR])
    full = both.model_copy(update={"fractions": {"llm": {"gpu:pair": 0.6}, "resnet50": {"gpu:a": 0.6}}})
    assert "the plan gives more than all of the time of gpu:a or gpu:pair" in verify(full, DUO, [A, B, PAIR])
    with pytest.raises(MixmarkError, match="gpu:a runs resnet50; gpu:b runs resnet50; gpu:pair runs llm"):
        place(DUO, rated(a=(0, 1), b=(0, 1), pair=(1.5, 0)), [A, B, PAIR])


def test_groups_that_do_not_fit_into_memory_lack_memory_and_no_devices() -> None:
    large = [each.model_copy(update={"memory_bytes": 3 << 30}) for each in rated(a=(1, 1), b=(1, 1), pair=(4, 4))]
    pools = {"a": 4 << 30, "b": 4 << 30, "pair": 4 << 30}
    only_a = [each for each in large if each.device != "gpu:b"]
    with pytest.raises(MixmarkError, match="llm, resnet50"):
        place(DUO, only_a, [A, B, PAIR], pool_bytes=pools)


def test_groups_of_groups_and_slices_exclude_what_they_share() -> None:
    four = [gpu(name) for name in "abcd"]
    pairs = [gpu("ab", "a", "b"), gpu("cd", "c", "d")]
    halves = [gpu("a1", "a/1-of-2"), gpu("a2", "a/2-of-2")]
    devices = [*four, *pairs, gpu("all", *"abcd"), *halves]
    paces = {"a": 1, "b": 1, "c": 1, "d": 1, "ab": 1.7, "cd": 2.1, "all": 3.0, "a1": 0.6, "a2": 0.6}
    rates = [rate("llm", f"gpu:{name}", pace) for name, pace in paces.items()]
    plan = place({"llm": 1.0}, rates, devices)
    assert plan.fractions["llm"].keys() == {"gpu:a1", "gpu:a2", "gpu:b", "gpu:cd"}
    assert plan.mixes_per_s == pytest.approx(4.3) == pytest.approx(plan.bound_per_s)
    assert verify(plan, {"llm": 1.0}, devices) == ()
    assert [each.id for each in each_once(devices)] == ["gpu:all"]
    assert [each.id for each in each_once([*four, *halves])] == ["gpu:a", "gpu:b", "gpu:c", "gpu:d"]


def test_the_idle_power_of_silicon_counts_once() -> None:
    power = Power({"gpu:a": 10, "gpu:b": 10, "gpu:pair": 20}, 5)
    rates = [each.model_copy(update={"watts": 110.0}) for each in rated(a=(1, 1), b=(1, 1), pair=(1.5, 1.2))]
    plan = place(DUO, rates, [A, B, PAIR], power=power)
    assert plan.watts == pytest.approx(5 + 20 + 200)
    frugal = place(DUO, rates, [A, B, PAIR], "efficiency", power=power)
    assert frugal.watts == pytest.approx(5 + 20 + (110 - 20))
    assert frugal.fractions["llm"].keys() == {"gpu:pair"}, "0.67 mixes at 115 W beat 1 at 225 W"


def test_a_false_certificate_is_found_without_a_solver() -> None:
    plan = place(MIX, RATES, [GPU, CPU])
    assert verify(plan, MIX) == ()
    assert verify(Placement.model_validate_json(plan.model_dump_json()), MIX) == ()

    def wrong(**change: object) -> str:
        return "; ".join(verify(plan.model_copy(update=change), MIX))

    assert "not 0.3" in wrong(mixes_per_s=0.3)
    assert "above its bound" in wrong(mixes_per_s=0.3)
    assert "not the bound of 0.3" in wrong(bound_per_s=0.3)
    assert "a dual value is below 0" in wrong(device_prices={"gpu:0": 0.3, "cpu:0": -0.06259})
    assert "is below that of its" in wrong(device_prices={"gpu:0": 0.2, "cpu:0": 0.03741})
    assert "add up to 2" in wrong(suite_prices={suite: 2 * price for suite, price in plan.suite_prices.items()})
    assert "more than all of the time of gpu:0" in wrong(
        fractions={**plan.fractions, "dlrm": {"gpu:0": 0.9, "cpu:0": 0.3}}
    )
    assert "no rate" in wrong(fractions={**plan.fractions, "dlrm": {"tpu:0": 0.9}})
    assert "a negative time" in wrong(bound_fractions={**plan.fractions, "dlrm": {"cpu:0": -0.3}})
    assert "two routes" in wrong(rates=(*plan.rates, plan.rates[0]))
    assert "the bound reaches 0" in wrong(bound_fractions={})
    assert wrong(fractions={**plan.fractions, "dlrm": {}}) == "the plan reaches 0 mix/s, not 0.23741"
    unpriced = {suite: price for suite, price in plan.suite_prices.items() if suite != "dlrm"}
    assert "is below that" not in wrong(suite_prices=unpriced), "it earns nothing"


@st.composite
def machines(draw: st.DrawFn) -> tuple[dict[str, float], list[Rate], list[Device]]:
    pace = st.floats(0.01, 1000)
    kinds = draw(st.lists(st.sampled_from(["cpu", "gpu", "npu"]), min_size=1, max_size=4))
    devices = [fake.device(f"{kind}:{index}") for index, kind in enumerate(kinds)]
    suites = [f"s{index}" for index in range(draw(st.integers(1, 4)))]
    rates = [
        rate(suite, device.id, draw(pace), draw(st.floats(1, 500)))
        for device in devices
        for suite in suites
        if device is devices[0] or draw(st.booleans())
    ]
    return {suite: draw(pace) for suite in suites}, rates, devices


@given(machines())
def test_the_certificate_proves_the_bound(machine: tuple[dict[str, float], list[Rate], list[Device]]) -> None:
    mix_units, rates, devices = machine
    plan = place(mix_units, rates, devices)
    assert verify(plan, mix_units) == ()
    assert plan.mixes_per_s == pytest.approx(plan.bound_per_s, rel=1e-6)
    used = sum(len(parts) for parts in plan.fractions.values())
    assert used <= len(mix_units) + len(devices) - 1


@given(machines(), st.floats(0, 200), st.floats(0, 200))
def test_the_efficient_plan_is_at_least_as_efficient(
    machine: tuple[dict[str, float], list[Rate], list[Device]], idle: float, rest: float
) -> None:
    """Also more so than the plan for throughput with devices left idle, and no more so than the bound over the least
    power there can be."""
    mix_units, rates, devices = machine
    power = Power({device.id: idle for device in devices}, rest + 1)
    fast = place(mix_units, rates, devices, power=power)
    frugal = place(mix_units, rates, devices, "efficiency", power=power)
    assert fast.watts and frugal.watts
    assert frugal.mixes_per_s / frugal.watts >= fast.mixes_per_s / fast.watts * (1 - 1e-5)
    assert verify(frugal, mix_units) == ()


def test_a_suite_that_takes_a_billionth_of_the_time_has_its_share() -> None:
    """Such a share was taken for a rounding error of the solver, and the plan was all zeros."""
    mix_units = {"s0": 1.0, "s1": 0.01, "s2": 555.0}
    speeds = {"s0": 1.0, "s1": 282.0, "s2": 0.015625}
    plan = place(
        mix_units, fake.solo({(suite, "cpu:0"): each for suite, each in speeds.items()}), [fake.device("cpu:0")]
    )
    assert {suite for suite, of in plan.fractions.items() if of["cpu:0"] > 0} == mix_units.keys()
    assert plan.mixes_per_s == pytest.approx(1 / (1 + 0.01 / 282 + 555 / 0.015625), rel=1e-9)


def test_help_does_not_wait_for_the_solver() -> None:
    script = (
        "import sys, mixmark.harness.plan.placement, mixmark.harness.measure.dispatch; print('scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
