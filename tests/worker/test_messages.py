"""Messages survive their line, and a line that is no message is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mixmark.harness import VERSION
from mixmark.harness.contracts.schema import Absent, Domain, Failure, RateTrial, Trial
from mixmark.harness.worker import messages
from tests.fakes.acme import DEVICE
from tests.fakes.workers import LIMITS, NULL

PLUG = Domain(
    id="plug/1",
    meter="plug",
    covers=("node",),
    boundary="wall",
    quantity="power",
    method="external",
    source="a test",
)
EACH = [
    messages.Hello(
        mixmark=VERSION,
        protocol=messages.PROTOCOL,
        python="CPython 3.13.1",
        packages={"numpy": "2.1"},
        origin="acme-kit 2.3",
        spec="acme_kit:Acme",
        source="RECORD of acme-kit 2.3",
        sha256="12ab",
    ),
    messages.Missing(module="numpy"),
    messages.Stage(name="loading"),
    messages.FeedFinished(key="a", serial=0, digest="00ff"),
    messages.Sealed(key="a", commitment="12ab"),
    messages.Failed(failure=Failure(kind="raised", message="no", hint="yes")),
    messages.Discovered(devices=(DEVICE,), vendor={"Acme driver": "4.2"}),
    messages.Opened(load_ns=1, needed_bytes=2, facts={"engine": "acme 1"}, concurrency=3),
    messages.Prepared(
        batch=4,
        trials=(Trial(batch=1, units=2, elapsed_ns=3),),
        search_ended_by="time",
        rate_per_s=0.1 + 0.2,
        rate_trials=(RateTrial(rate_per_s=1 / 3, feeds=4, kept=True),),
        facts={"café": "½ \n"},
        processes=(1, 2),
    ),
    messages.Measured(),
    messages.Begun(),
    messages.OutputsFull(key="a", done=3, commitment="12ab"),
    messages.SamplingKey(key=0),
    messages.Fed(key="a", serial=0, issued_ns=2**60, yields=[2**60 + 1, 1], digest="00ff"),
    messages.HandedOver(facts={}),
    messages.OutputsCompared(feeds=(0, 7), values=(0.0, 1e-300), problem="", software={"torch": "2"}),
    messages.RunnerChecked(types=("numpy.ndarray",), yields=1, feed_ns=2, converting_ns=1, overwritten=0, closing_ns=1),
    messages.Closed(),
    messages.Discover(),
    messages.Open(key="a", device=DEVICE, suite=NULL, precision="fp32", scenario="server", free_bytes=None),
    messages.Prepare(key="a", scenario="offline", batch=None, rate_per_s=None, seed=2**62, limits=LIMITS),
    messages.Begin(key="a", pool=2**63 - 1),
    messages.Measure(key="a", seed=2**62, limits=LIMITS, out="o"),
    messages.Feed(key="a", serial=0, nonce=1),
    messages.HandOver(key="a", outputs="a"),
    messages.CompareOutputs(key="a", batch=1, seed=1, outputs="a", sha256="12ab"),
    messages.CheckRunner(key="a", seed=1),
    messages.Close(),
    messages.Cover(devices=(DEVICE,)),
    messages.Covered(domains=(PLUG,), absent=(Absent(kind="meter", name="probe 2", reason="not plugged in"),)),
    messages.Read(domain=PLUG),
    messages.Readings(samples=((0.1 + 0.2, None), (1e-300, 2**60)), cpu_ns=1),
]


def test_each_message_is_tried() -> None:
    assert {type(each).__name__ for each in EACH} == set(messages.MESSAGES)


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_after_its_line(message: messages.Message) -> None:
    line = messages.write(message)
    assert line.count(b"\n") == 1
    assert messages.read(line) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"hello\n",
        b"\xff\xfe\n",
        b"1\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"Stage": {"name": "loading"}, "Closed": {}}\n',
        b'{"Nothing": {}}\n',
        b'{"Closed": 1}\n',
        b'{"Closed": {"more": 1}}\n',
        b'{"Stage": {"name": "singing"}}\n',
        b'{"Audited": {"feeds": [0], "values": [NaN], "problem": ""}}\n',
        b'{"Closed": ' + b"[" * 100_000 + b"\n",
        b'{"Fed": {"key": "a", "issued_ns": ' + b"1" * 5000 + b', "marks": [], "digest": ""}}\n',
    ],
)
def test_a_line_that_is_no_message_is_garbled(line: bytes) -> None:
    with pytest.raises(messages.Garbled) as told:
        messages.read(line)
    assert len(str(told.value)) < 120
    assert str(told.value).isprintable()


def test_a_number_that_is_not_finite_is_not_sent() -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        messages.write(messages.OutputsCompared.model_construct(feeds=(0,), values=(float("nan"),), problem=""))


def test_a_request_knows_the_type_of_its_answer() -> None:
    assert messages.Discover.reply_type() is messages.Discovered
    assert messages.Feed(key="a", serial=0, nonce=1).reply_type() is messages.Fed


HELLO = {
    "mixmark": VERSION,
    "protocol": messages.PROTOCOL,
    "python": "",
    "packages": {},
    "origin": "",
    "spec": "",
    "source": "",
    "sha256": "",
}


def line(name: str, **body: Any) -> bytes:
    return json.dumps({name: body}).encode() + b"\n"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            line("Hello", **HELLO | {"mixmark": "0.0.9"}),
            f"has Mixmark 0.0.9 with protocol {messages.PROTOCOL},",
        ),
        (
            line("Hello", **HELLO | {"protocol": 70}),
            f"has Mixmark {VERSION} with protocol 70,",
        ),
        (line("Hello", mixmark="9", protocol="new", more=[]), "has Mixmark 9 with protocol 'new', but this is"),
        (line("Missing", module="mixmark"), "has no Mixmark"),
        (line("Missing", module="mixmark.harness.worker.child"), "has no Mixmark"),
        (line("Missing", module="pydantic"), "lacks pydantic"),
    ],
)
def test_another_mixmark_is_told_by_the_greeting(told: bytes, words: str) -> None:
    with pytest.raises(messages.Incompatible) as refused:
        messages.greeting(told)
    assert str(refused.value).startswith(words)


def test_a_greeting_of_this_version_is_read() -> None:
    assert messages.greeting(line("Hello", **HELLO)) == messages.Hello.model_validate(HELLO)


@pytest.mark.parametrize(
    "told",
    [b"", b"\n", b"Hello\n", line("Closed"), line("Hello"), line("Hello", **HELLO, more=1), line("Missing"), b"[1]\n"],
)
def test_anything_else_is_no_greeting(told: bytes) -> None:
    with pytest.raises(messages.Garbled):
        messages.greeting(told)
