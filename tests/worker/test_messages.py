"""Calls and replies survive their line, and a line that breaks the protocol is refused."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from mixmark.harness import VERSION
from mixmark.harness.contracts.protocols import Sample
from mixmark.harness.contracts.schema import Absent, Failure, Trial
from mixmark.harness.worker import calls, messages
from mixmark.harness.worker.messages import AdapterCalls, MeterCalls, ParentCalls
from tests.fakes.acme import DEVICE
from tests.fakes.workers import LIMITS
from tests.golden.sample import domain

PLUG = domain("plug/1", ("node",), boundary="wall", quantity="power", method="external")
PREPARED = messages.Prepared(
    batch=4,
    trials=(Trial(batch=1, units=2, elapsed_ns=3),),
    rate_per_s=0.1 + 0.2,
    feed_ns=7,
    facts={"café": "½ \n"},
    processes=(1, 2),
)
ABSENT = Absent(kind="meter", name="probe 2", reason="not plugged in")
FED = messages.Fed(key="a", serial=0, yields=[2**60 + 1, 1], digest="00ff", carried_ns=5)
COMPARED = messages.OutputsCompared(feeds=(0, 7), values=(0.0, 1e-300), problem="", software={"torch": "2"})
LOOP = messages.LoopChoice(spec="acme:loop", arguments={"folder": "a", "queries": 64})
GIVEN = {"batch": 1, "pool": 2, "seeds": {0: 1, 7: 2**62}, "outputs": "a", "sha256": "12ab"}
EACH: list[tuple[type, Any, dict[str, Any], Any]] = [
    (AdapterCalls, AdapterCalls.prepare, {"scenario": "offline", "batch": None, "seed": 2**62}, PREPARED),
    (AdapterCalls, AdapterCalls.begin, {"pool": 2, "ahead": True, "loop": LOOP}, None),
    (AdapterCalls, AdapterCalls.feed, {"serial": 0, "nonce": 1, "take": "a.npy", "give": ""}, FED),
    (AdapterCalls, AdapterCalls.compare_outputs, GIVEN, COMPARED),
    (MeterCalls, MeterCalls.domains, {"devices": (DEVICE,)}, (PLUG, ABSENT)),
    (MeterCalls, MeterCalls.read, {"domain": PLUG}, (Sample(0.1 + 0.2), Sample(1e-300, 2**60))),
    (ParentCalls, ParentCalls.outputs_full, {"done": 3, "commitment": "12ab"}, 2**62),
]
"""One call for each kind of value, such as a dataclass, a model and None."""
COMMON = {"key": "a", "limits": LIMITS, "rate_per_s": None}


@pytest.mark.parametrize(
    ("interface", "method", "given", "value"), EACH, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_call_and_its_reply_are_the_same_after_their_lines(
    interface: type, method: Any, given: dict[str, Any], value: Any
) -> None:
    takes = method.__annotations__.keys() - {"return"}
    arguments = {name: each for name, each in (COMMON | given).items() if name in takes}
    assert arguments.keys() == takes, "each argument is tried"
    line = calls.write_call(method, **arguments)
    assert line.count(b"\n") == 1
    assert calls.read(line, interface) == calls.Call(method, arguments)
    reply = calls.read(calls.write_reply(method, value), interface)
    assert isinstance(reply, calls.Reply) and reply.of(method) == value


def test_a_failure_is_the_same_after_its_line_and_an_omitted_argument_has_its_default() -> None:
    failed = calls.Failed(failure=Failure(kind="raised", message="no", hint="yes"), misuse=True)
    assert calls.read(calls.write_failed(failed), ParentCalls) == failed
    call = calls.read(b'{"call": "begin", "arguments": {"key": "a", "pool": 1}}\n', AdapterCalls)
    assert call == calls.Call(AdapterCalls.begin, {"key": "a", "pool": 1, "ahead": False, "loop": None})


def test_a_failure_arrives_also_if_its_traceback_does_not_fit_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    line = calls.failed(OSError(28, "No space left on device"))
    assert b"No space left on device" in line and b'"raised"' in line


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
        b'{"call": "stage", "arguments": {"name": "loading"}, "reply": "close"}\n',
        b'{"call": "nothing", "arguments": {}}\n',
        b'{"call": "close", "arguments": {}}\n',
        b'{"call": "__init__", "arguments": {}}\n',
        b'{"call": ["stage"], "arguments": {"name": "loading"}}\n',
        b'{"call": "stage", "arguments": ["loading"]}\n',
        b'{"call": "stage", "arguments": {}}\n',
        b'{"call": "stage", "arguments": {"name": "loading", "more": 1}}\n',
        b'{"call": "stage", "arguments": {"name": "singing"}}\n',
        b'{"call": "feed_finished", "arguments": {"key": "a", "serial": -1, "digest": ""}}\n',
        b'{"call": "sealed", "arguments": {"key": "a", "commitment": "' + b"0" * 65 + b'"}}\n',
        b'{"reply": "compare_outputs", "value": {"feeds": [0], "values": [NaN], "problem": "", "software": {}}}\n',
        b'{"reply": 1, "value": null}\n',
        b'{"failed": {"failure": {"kind": "singing", "message": ""}}}\n',
        b'{"reply": "close", "value": ' + b"[" * 100_000 + b"\n",
        b'{"reply": "feed", "value": ' + b"1" * 5000 + b"}\n",
    ],
)
def test_a_line_that_breaks_the_protocol_is_garbled(line: bytes) -> None:
    with pytest.raises(calls.Garbled) as garbled:
        calls.read(line, ParentCalls)
    assert len(str(garbled.value)) < 120
    assert str(garbled.value).isprintable()


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        (AdapterCalls.close, "open", None),
        (AdapterCalls.close, "x" * 10_000, None),
        (AdapterCalls.close, "close", 1),
        (AdapterCalls.hand_over, "hand_over", {"engine": 1}),
        (AdapterCalls.discover, "discover", {"devices": [], "more": 1}),
        (AdapterCalls.open, "open", {"load_ns": -5, "needed_bytes": 1, "facts": {}, "concurrency": 1}),
        (AdapterCalls.open, "open", {"load_ns": 1, "needed_bytes": 1, "facts": {}, "concurrency": 65}),
        (MeterCalls.read, "read", [{"value": "much", "at_ns": None}]),
    ],
)
def test_a_reply_to_another_call_or_of_another_type_is_garbled(method: Any, name: str, value: Any) -> None:
    with pytest.raises(calls.Garbled) as garbled:
        calls.Reply(name, value).of(method)
    assert len(str(garbled.value)) < 120


def test_a_number_that_is_not_finite_is_not_sent() -> None:
    wrong = messages.OutputsCompared.model_construct(feeds=(0,), values=(float("nan"),), problem="", software={})
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        calls.write_reply(AdapterCalls.compare_outputs, wrong)


HELLO = {"mixmark": VERSION, "protocol": messages.PROTOCOL, "python": "", "packages": {}}


def line(**body: Any) -> bytes:
    return json.dumps(body).encode() + b"\n"


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (line(**HELLO | {"mixmark": "0.0.9"}), f"has Mixmark 0.0.9 with protocol {messages.PROTOCOL},"),
        (line(**HELLO | {"protocol": 70}), f"has Mixmark {VERSION} with protocol 70,"),
        (line(mixmark="9", protocol="new", more=[]), "has Mixmark 9 with protocol 'new', but this is"),
        (line(missing="mixmark"), "has no Mixmark"),
        (line(missing="mixmark.harness.worker.child"), "has no Mixmark"),
        (line(missing="pydantic"), "lacks pydantic"),
    ],
)
def test_a_greeting_of_another_mixmark_is_incompatible(first: bytes, words: str) -> None:
    with pytest.raises(messages.Incompatible) as refused:
        messages.greeting(first)
    assert str(refused.value).startswith(words)


def test_a_greeting_of_this_version_is_read() -> None:
    assert messages.greeting(line(**HELLO)) == messages.Hello.model_validate(HELLO)


@pytest.mark.parametrize(
    "first", [b"", b"\n", b"Hello\n", line(), line(mixmark="9"), line(**HELLO, more=1), b"[1]\n", b"1\n"]
)
def test_anything_else_is_no_greeting(first: bytes) -> None:
    with pytest.raises(calls.Garbled):
        messages.greeting(first)
