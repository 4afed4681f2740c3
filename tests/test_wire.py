"""Messages survive their line, and a line that is no message is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness import VERSION, wire
from harness.schema import Absent, Domain, Failure, RateTrial, Trial
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
    wire.Hello(
        mixmark=VERSION,
        protocol=wire.PROTOCOL,
        python="CPython 3.13.1",
        packages={"numpy": "2.1"},
        origin="acme-kit 2.3",
        spec="acme_kit:Acme",
        source="RECORD of acme-kit 2.3",
        sha256="12ab",
    ),
    wire.Missing(module="numpy"),
    wire.Stage(name="loading"),
    wire.Stage(name="measured", seal="12ab"),
    wire.Failed(failure=Failure(kind="raised", message="no", hint="yes")),
    wire.Discovered(devices=(DEVICE,), vendor={"Acme driver": "4.2"}),
    wire.Opened(load_ns=1, needed_bytes=2, facts={"engine": "acme 1"}, slots=3),
    wire.Prepared(
        batch=4,
        trials=(Trial(batch=1, units=2, elapsed_ns=3),),
        search_ended_by="time",
        rate_per_s=0.1 + 0.2,
        rate_trials=(RateTrial(rate_per_s=1 / 3, feeds=4, kept=True),),
        facts={"café": "½ \n"},
        processes=(1, 2),
    ),
    wire.Measured(ended_by="time"),
    wire.Begun(),
    wire.Outgrown(key="a", done=3, seal="12ab"),
    wire.Key(key=0),
    wire.Fed(key="a", serial=0, issued_ns=2**60, marks=[2**60 + 1, 1], digest="00ff"),
    wire.HandedOver(facts={}),
    wire.Audited(feeds=(0, 7), values=(0.0, 1e-300), problem="", code={"/a.py": "12ab"}, software={"torch": "2"}),
    wire.Examined(kinds=("numpy.ndarray",), yields=1, feed_ns=2, converting_ns=1, overwritten=0, closing_ns=1),
    wire.Closed(),
    wire.Discover(),
    wire.Open(key="a", device=DEVICE, suite=NULL, precision="fp32", scenario="server", free_bytes=None),
    wire.Prepare(key="a", scenario="offline", batch=None, rate_per_s=None, seed=2**62, limits=LIMITS),
    wire.Begin(key="a", pool=2**63 - 1, seed=None),
    wire.Measure(key="a", limits=LIMITS, out="o"),
    wire.Feed(key="a", serial=0, nonce=1),
    wire.HandOver(key="a", answers="a"),
    wire.Audit(key="a", batch=1, seed=1, answers="a"),
    wire.Examine(key="a", seed=1),
    wire.Close(),
    wire.Cover(devices=(DEVICE,)),
    wire.Covered(domains=(PLUG,), absent=(Absent(kind="meter", name="probe 2", reason="not plugged in"),)),
    wire.Read(domain=PLUG),
    wire.Readings(samples=((0.1 + 0.2, None), (1e-300, 2**60)), cpu_ns=1),
]


def test_each_message_is_tried() -> None:
    assert {type(each).__name__ for each in EACH} == set(wire.MESSAGES)


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_a_message_is_the_same_after_its_line(message: wire.Message) -> None:
    line = wire.write(message)
    assert line.count(b"\n") == 1
    assert wire.read(line) == message


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
    with pytest.raises(wire.Garbled) as told:
        wire.read(line)
    assert len(str(told.value)) < 120
    assert str(told.value).isprintable()


def test_a_number_that_is_not_finite_is_not_sent() -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        wire.write(wire.Audited.model_construct(feeds=(0,), values=(float("nan"),), problem=""))


def test_a_request_knows_the_type_of_its_answer() -> None:
    assert wire.Discover.answered_by() is wire.Discovered
    assert wire.Feed(key="a", serial=0, nonce=1).answered_by() is wire.Fed


HELLO = {
    "mixmark": VERSION,
    "protocol": wire.PROTOCOL,
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
            f"has Mixmark 0.0.9 with protocol {wire.PROTOCOL},",
        ),
        (
            line("Hello", **HELLO | {"protocol": 70}),
            f"has Mixmark {VERSION} with protocol 70,",
        ),
        (line("Hello", mixmark="9", protocol="new", more=[]), "has Mixmark 9 with protocol 'new', but this is"),
        (line("Missing", module="harness"), "has no Mixmark"),
        (line("Missing", module="harness.serve"), "has no Mixmark"),
        (line("Missing", module="pydantic"), "lacks pydantic"),
    ],
)
def test_another_mixmark_is_told_by_the_greeting(told: bytes, words: str) -> None:
    with pytest.raises(wire.Incompatible) as refused:
        wire.greeting(told)
    assert str(refused.value).startswith(words)


def test_a_greeting_of_this_version_is_read() -> None:
    assert wire.greeting(line("Hello", **HELLO)) == wire.Hello.model_validate(HELLO)


@pytest.mark.parametrize(
    "told",
    [b"", b"\n", b"Hello\n", line("Closed"), line("Hello"), line("Hello", **HELLO, more=1), line("Missing"), b"[1]\n"],
)
def test_anything_else_is_no_greeting(told: bytes) -> None:
    with pytest.raises(wire.Garbled):
        wire.greeting(told)
