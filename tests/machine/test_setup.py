"""What is put together before a run."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Device, Route, Tier
from mixmark.harness.contracts.text import unnamed
from mixmark.harness.judge.rules.integrity import LARGEST_CACHE_BYTES
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.machine.setup import Suites
from mixmark.harness.measure.request import RunRequest
from mixmark.harness.measure.run import prepare
from mixmark.harness.plan.phases import Target, Workload, solo
from mixmark.harness.plan.presets import PRESETS
from mixmark.harness.plugins import registry
from mixmark.harness.plugins.registry import Plugin
from mixmark.harness.resources import processor
from tests.fakes.checkpoints import write_checkpoint
from tests.measure.test_cheats import equipment


def test_what_a_result_tells_of_the_command_line_holds_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "run --out /home/me/x --suite llm --out=/home/me/y"
    monkeypatch.setattr(sys, "argv", ["mixmark", *typed.split(), "--weights", "llm=/home/me/z", "--seed=7", "a=b"])
    shown = "run --out <path> --suite llm --out=<path>"
    assert setup.command_line() == (*shown.split(), "--weights", "<path>", "--seed=7", "a=b")


TORCH = registry.BUILT_IN["adapters"]["torch"]


@pytest.mark.parametrize(
    ("spec", "python", "suite", "witness"),
    [
        (TORCH, sys.executable, "probe", True),
        (TORCH, "/opt/python", "probe", False),
        ("acme:Acme", sys.executable, "probe", False),
        (TORCH, sys.executable, "llm", False),
    ],
)
def test_the_probe_of_a_built_in_adapter_runs_beside_no_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, python: str, suite: str, witness: bool
) -> None:
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(setup, "Worker", lambda *given: started.append(given))
    device = Device(id="cpu:0", kind="cpu", memory_pool="host", precisions=("fp32",))
    equipped = replace(
        equipment({}),
        adapters={"torch": Plugin("adapters", "torch", spec, "")},
        suites=registry.find("suites"),
        devices={("cpu:0", "torch"): device},
        config=Config(adapters={"torch": AdapterConfig(python=python)}),
    )
    route = Route(suite=suite, tier="smoke", suite_version="1", device="cpu:0", adapter="torch", precision="fp32")
    for own_models in (False, True):
        replace(equipped, own_models=own_models).worker(route, tmp_path / "scratch", tmp_path / "log")
    assert [given[6] is not None for given in started] == [witness, witness]
    assert [given[7] for given in started] == [{}, {"MIXMARK_CACHE": str(tmp_path / "models")}]


BENDS = """
from mixmark.harness.adapters.openvino import OpenVino
OpenVino.__init__ = lambda adapter, options: None
OpenVino.discover = lambda adapter: ()
OpenVino.disclose = lambda adapter: {"bent": "yes"}
"""


def test_an_adapter_that_a_wrapper_bends_is_not_the_built_in_one(tmp_path: Path) -> None:
    """A wrapper of the command's interpreter runs code of its own before the worker. The file that the worker imports
    is untouched."""
    (tmp_path / "sitecustomize.py").write_text(BENDS)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    config = Config(adapters={"openvino": AdapterConfig(python=str(wrapper))})
    bent = setup.find_devices(["openvino"], config).environments["openvino"]
    assert bent.vendor == {"bent": "yes"}
    assert bent.origin == "Mixmark of another interpreter"
    assert bent.sha256 == "", "no virtual environment, so nothing is known"


@pytest.mark.parametrize(
    ("caches", "configured", "cache_bytes"),
    [
        ({"L2": "1024K", "L3": "32M"}, {}, 32 << 20),
        ({}, {}, LARGEST_CACHE_BYTES),
        ({"L3": "32M"}, {"cache_bytes": "4096"}, 4096),
    ],
)
def test_the_probe_of_a_run_gets_the_last_cache_and_the_bits_of_its_precision(
    monkeypatch: pytest.MonkeyPatch, caches: dict[str, str], configured: dict[str, str], cache_bytes: int
) -> None:
    monkeypatch.setattr(processor, "caches", caches.items)
    llm, probe = Workload("llm", "1", ("single-stream",)), Workload("probe", "1", ("probe",), configured)
    suites = Suites({}, (llm, probe), {}, {}, ())
    device = Device(id="cpu:0", kind="cpu", memory_pool="host", precisions=("int8", "bf16"))
    phases = solo((Target(device, "torch", {}),), (llm,), "edge", PRESETS["quick"], probe=suites.probe, bits=8)
    routes = [phase.shares[0].route for phase in phases if phase.purpose == "probe"]
    assert {(route.precision, *sorted(route.suite_options.items())) for route in routes} == {
        ("int8", ("bits", "8"), ("cache_bytes", str(cache_bytes))),
        ("bf16", ("bits", "16"), ("cache_bytes", str(cache_bytes))),
    }
    assert replace(suites, workloads=(llm,)).probe is None


@pytest.mark.slow
def test_a_checkpoint_is_read_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "written.safetensors"
    write_checkpoint(registry.load_suite("resnet50", "smoke"), file)
    asked = RunRequest(tier="smoke", suites=("resnet50",), weights=(f"resnet50={file}",), out=tmp_path / "out")
    prepared = prepare(asked)
    [workload] = prepared.workloads
    assert re.fullmatch("written.safetensors sha256:[0-9a-f]{16}", workload.weights)
    assert {each.weights for each in prepared.suites.workloads} == {"synthetic", workload.weights}
    assert [each.label for each in prepared.suites.absent] == []
    other = tmp_path / "copy"
    other.mkdir()
    tensors = load_file(file)
    save_file({**tensors, "fc.scale": tensors["fc.bias"]}, other / "any.safetensors")
    copied = prepare(replace(asked, weights=(f"resnet50={other}",)))
    assert unnamed(copied.workloads[0].weights) == unnamed(workload.weights)
    [unused] = copied.suites.absent
    assert unused.label == "weights resnet50"
    assert unused.reason.startswith("the suite's network has no fc.scale of the checkpoint: ")

    content = file.read_bytes()
    damaged = {content[:-4] + b"\0\0\xc0\x7f": "has 1 value that is NaN", content[:-4]: "whole", b"<html>": "web page"}
    for content, said in damaged.items():
        file.write_bytes(content)
        with pytest.raises(UsageError, match=f"--weights resnet50: .*{said}"):
            prepare(asked)
    with pytest.raises(UsageError, match="--weights probe: the suite probe has no option weights"):
        prepare(replace(asked, weights=(f"probe={file}",)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("tier", "tokens"), [("smoke", 32), ("edge", 128), ("server", 1024)])
def test_a_suite_says_at_its_tier_how_long_a_prompt_is(tier: Tier, tokens: int) -> None:
    facts = setup.load_suites(Config(), tier, ()).facts
    assert (facts["llm"].unit_names.taken_in, facts["resnet50"].unit_names.taken_in) == (tokens, None)
