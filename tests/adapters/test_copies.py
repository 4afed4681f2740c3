"""How often a unit copies and waits on an accelerator, counted on a stand-in: a GPU would only show lost time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json
import threading
import time
from dataclasses import replace

from mixmark.harness.adapters.torch import Torch
from mixmark.harness.contracts.protocols import Use
from mixmark.suites.diffusion import Diffusion
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.llm import Llm
from mixmark.suites.resnet50 import ResNet50

adapter = Torch({"backend": "tests.fakes.torch_acme"})
acme = next(device for device in adapter.discover() if device.kind == "npu")
from tests.fakes.torch_acme import COUNTED, hold

found = {}
for made, batch in ((Llm, 1), (Diffusion, 1), (Dlrm, 8), (ResNet50, 2)):
    suite = made("smoke", {})
    if made is Llm:
        suite.shape = replace(suite.shape, tokens_out=8)
    feed = suite.feeds(batch, seed=1)(0)
    with adapter.open(acme, suite, "fp32", Use.of(suite.scenarios[0])) as runner:
        next(iter(runner(feed)))  # the second feed finds everything in place
        COUNTED.clear()
        parts = [part.copy() for part in runner(feed)]
    found[suite.name] = dict(COUNTED, yields=len(parts), fed=sum(each.nbytes for each in feed.values()),
                             yielded=sum(each.nbytes for each in parts))

suite = ResNet50("smoke", {})
feeds = suite.feeds(2, seed=1)
outputs = [None, None]
with adapter.open(acme, suite, "fp32", Use.of("offline")) as runner:

    def run(number):
        outputs[number] = [part.tolist() for part in runner(feeds(number))]

    alone = [[part.tolist() for part in runner(feeds(number))] for number in (0, 1)]
    COUNTED.clear()
    with hold():
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while time.monotonic() < until and COUNTED["launches"] < 2 * found["resnet50"]["launches"]:
            time.sleep(0.01)
        held = dict(COUNTED, slots=runner.concurrency, fed=2 * sum(each.nbytes for each in feeds(0).values()))
    for thread in threads:
        thread.join(60)
found["held"] = held | {"alike": outputs == alone}
print(json.dumps(found))
"""


def test_a_feed_copies_and_waits_no_more_than_it_must_and_comes_in_while_the_one_before_runs() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    counted: dict[str, dict[str, int]] = json.loads(done.stdout)
    held = counted.pop("held")
    for suite, cost in counted.items():
        parts, wider = (2, 4) if suite == "llm" else (1, 0)  # a token of 8 bytes, of which 4 are yielded, and its state
        assert cost["waits"] == parts * cost["yields"], f"{suite}: only `get` waits"
        assert cost["bytes out"] == cost["yielded"] + wider * cost["yields"], f"{suite}: only what is yielded leaves"
        assert cost["bytes in"] <= cost["fed"] + 4096, f"{suite}: a feed is copied in once, and a few scalars with it"
    llm = counted["llm"]
    assert llm["yields"] == 8 and llm["bytes out"] == 8 * (8 + 4 * 256), "a step copies a token and its state out"
    assert llm["bytes in"] == 8 * 32 + 8, "the prompt and its position; token and position stay on the device"
    assert held["slots"] == 2
    assert held["launches"] == 2 * counted["resnet50"]["launches"], "the second feed's kernels wait on the device"
    assert held["bytes ahead"] >= held["fed"], "both feeds came in while no kernel ended"
    assert "waits" not in held
    assert held["alike"], "each thread has its own feed's outputs"
