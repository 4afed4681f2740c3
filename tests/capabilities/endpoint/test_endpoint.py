"""The adapter for endpoints against servers in this process, good ones and bad ones."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import tomllib
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from mixmark.harness.capabilities import endpoint
from mixmark.harness.capabilities.endpoint import OPTIONS, Endpoint, client
from mixmark.harness.capabilities.endpoint.apis import APIS
from mixmark.harness.contracts.errors import MixmarkError, PluginError, Unsupported, UsageError, WrongOutput
from mixmark.harness.contracts.protocols import Helpers, Runner, Use
from mixmark.harness.machine import setup
from mixmark.harness.machine.config import AdapterConfig, Config
from mixmark.harness.measure import phase
from mixmark.reporters import figures
from mixmark.suites.dlrm import Dlrm
from mixmark.suites.llm import Llm
from tests.capabilities.endpoint import servers
from tests.capabilities.endpoint.servers import Request, Server, serving
from tests.cli.shell import Shell

SUITE = Llm("smoke", {})
OUT = SUITE.units(1)
FEED = SUITE.feeds(1, 1)
ALONE = Use.of("single-stream")
KEY = "canary-4f1d9a7be02c58836d"


def adapter(url: str, api: str = "llamacpp", **options: str) -> Endpoint:
    device = {} if api == "chat" else {"device": "cpu:0"}
    return Endpoint({"url": url, "model": "edge", "api": api, "precision": "fp32"} | device | options)


@contextmanager
def opened(url: str, api: str = "llamacpp", **options: str) -> Iterator[Runner]:
    asked = adapter(url, api, **options)
    [device] = asked.discover()
    with asked.open(device, SUITE, "fp32", ALONE) as runner:
        yield runner


def answer(runner: Runner, nonce: int = 0) -> list[int]:
    return [int(token) for part in runner(FEED(nonce)) for token in part]


def right(nonce: int) -> list[int]:
    return servers.tokens(FEED(nonce)["ids"].tolist(), OUT)


# What a good server is asked, and what comes of its answer


@pytest.mark.parametrize("api", ["llamacpp", "vllm"])
def test_a_server_of_ones_own_takes_token_ids_and_answers_with_them(api: str) -> None:
    answers: dict[str, Callable[[Request], None]] = {"llamacpp": servers.llamacpp, "vllm": servers.vllm}
    with serving(answers[api]) as (server, url), opened(f"{url}/v1/", api) as runner:
        assert [answer(runner, nonce) for nonce in (0, 1)] == [right(0), right(1)]
        assert [part.shape for part in runner(FEED(2))] == [(1,)] * OUT  # one yield for each token, though three came
        assert runner.facts["server"].startswith("BaseHTTP") and "GET /models" in runner.facts["network"]
        assert isinstance(runner, Helpers) and os.getpid() in runner.processes
    path, headers, asked = server.seen[0]
    assert path == ("/v1/completion" if api == "llamacpp" else "/v1/completions")
    assert asked["prompt"] == FEED(0)["ids"].tolist() and asked["ignore_eos"] and asked["stream"]
    assert "Authorization" not in headers
    greedy = {"llamacpp": ("top_k", 1), "vllm": ("temperature", 0)}
    assert asked[greedy[api][0]] == greedy[api][1]
    assert api != "llamacpp" or asked["cache_prompt"] is False


def test_a_hosted_service_takes_text_and_has_a_device_of_its_own() -> None:
    with serving(servers.chat, models=()) as (server, url):
        [device] = adapter(url, "chat").discover()
        assert (device.id, device.kind, device.hosted) == ("asic:127.0.0.1", "asic", "edge")
        assert device.offers("llm") == ("fp32",) and device.offers("dlrm") == () and device.memory_pool == device.id
        with opened(url, "chat") as runner:
            assert answer(runner) == [-1] * OUT == answer(runner, 1)
            assert runner.facts["tokens of a prompt"] == "77 to 77"
    [one, other] = (asked["messages"][0]["content"] for _, _, asked in server.seen)
    assert one != other and one[:50] == other[:50]


def test_tokens_that_came_together_are_yielded_at_the_end_of_a_hosted_answer() -> None:
    sent = []

    def text(request: Request) -> None:
        request.begin()
        for piece in ("one two", "three"):
            sent.append(piece)
            request.event({"model": "edge", "choices": [{"delta": {"content": piece}}]})
        request.event({"model": "edge", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": OUT}})
        request.event("[DONE]")
        request.end()

    with serving(text) as (_, url), opened(url, "chat") as runner:
        stream = runner(FEED(0))
        assert next(stream).tolist() == [-1] and sent[0] == "one two"
        assert len(list(stream)) == OUT - 1


def test_the_own_server_is_the_processor_that_other_adapters_reach_or_a_named_one() -> None:
    [device] = [adapter("http://127.0.0.1:9").device]
    assert (device.id, device.on_host, device.hosted) == ("cpu:0", True, "") and device.offers("resnet50") == ()
    far = adapter("http://10.1.2.3/v1", device="gpu:rack-2").device
    assert (far.kind, far.memory_pool, far.memory_bytes) == ("gpu", "gpu:rack-2", None)


def test_connections_stay_open_and_slots_have_one_each() -> None:
    seen: set[Any] = set()

    def counted(request: Request) -> None:
        seen.add(request.client_address)
        servers.llamacpp(request)

    with serving(counted) as (_, url), opened(url, concurrency="4") as runner:
        assert runner.concurrency == 4
        for nonce in range(3):
            answer(runner, nonce)
        assert len(seen) == 1
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda nonce: answer(runner, nonce), range(8))) == [right(each) for each in range(8)]
        assert len(seen) <= 4


def test_a_connection_that_the_server_closed_meanwhile_is_made_anew() -> None:
    def closing(request: Request) -> None:
        servers.llamacpp(request)
        request.close_connection = True  # and no header says so

    with serving(closing) as (server, url), opened(url) as runner:
        assert [answer(runner, nonce) for nonce in (0, 1, 2)] == [right(0), right(1), right(2)]
        assert len(server.seen) == 3


def test_a_server_that_is_not_pinned_is_no_part_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(servers.llamacpp) as (_, url):
        with opened(url):
            pass
        monkeypatch.setattr(endpoint, "listening", lambda address: (os.getpid(), -1))
        monkeypatch.setattr(endpoint, "cores", lambda pid: frozenset({0}) if pid == os.getpid() else frozenset({0, 1}))
        with pytest.raises(Unsupported, match="cores that do not belong to the measured device"), opened(url):
            pass


def test_it_decodes_text_and_nothing_else() -> None:
    with serving(servers.llamacpp) as (_, url):
        asked = adapter(url)
        with pytest.raises(Unsupported, match="dlrm"), asked.open(asked.device, Dlrm("smoke", {}), "fp32", ALONE):
            pass


# What a bad one does. Each is recorded with its reason, and the next request is answered as if nothing had been.


def tokens(count: int, stop: bool = True, **final: object) -> Callable[[Request], None]:
    """A stream of llama.cpp's with so many tokens; final: what its last event says otherwise."""

    def say(request: Request) -> None:
        request.begin()
        for token in range(count):
            request.event({"tokens": [token], "stop": False})
        counts = {"tokens_predicted": OUT, "tokens_evaluated": 32, "model": "edge"} | final
        if stop:
            request.event({"tokens": [], "stop": True, **counts})
        request.end()

    return say


def raw(data: bytes) -> Callable[[Request], None]:
    def say(request: Request) -> None:
        request.begin()
        request.raw(data)
        request.end()

    return say


def endless(event: object) -> Callable[[Request], None]:
    def say(request: Request) -> None:
        request.begin()
        for _ in itertools.count():
            request.event(event)

    return say


def cut(request: Request) -> None:
    request.begin()
    request.event({"tokens": [1], "stop": False})
    request.close_connection = True


def page(status: int, content: object, **headers: str) -> Callable[[Request], None]:
    return lambda request: request.page(status, content, **headers)


def silent(request: Request) -> None:
    request.begin()
    request.event({"tokens": [1], "stop": False})
    request.rfile.read(1)  # until the client goes


def alive(request: Request) -> None:
    request.begin()
    for _ in itertools.count():
        request.raw(b": keep-alive\n\n")


BAD: dict[str, tuple[Callable[[Request], None], type[Exception], str]] = {
    "closes in mid-stream": (cut, MixmarkError, "closed connection"),
    "is silent": (silent, MixmarkError, "sent nothing for 0.2 s"),
    "only keeps the connection alive": (alive, MixmarkError, "sent nothing for 0.2 s"),
    "no JSON": (raw(b"data: {'tokens'\n\n"), MixmarkError, "is not JSON"),
    "deep JSON": (raw(b"data: " + b"[" * 100_000 + b"\n\n"), MixmarkError, "is not JSON"),
    "another form": (raw(b'data: {"choices": []}\n\n'), MixmarkError, "form of llama.cpp"),
    "ids that are words": (raw(b'data: {"tokens": ["a"], "stop": false}\n\n'), MixmarkError, "are not numbers"),
    "a huge line": (raw(b"data: " + b"x" * (2 << 20)), MixmarkError, "more than 1 MiB"),
    "too few tokens": (tokens(OUT - 1), WrongOutput, f"{OUT - 1} arrived"),
    "another count": (tokens(OUT, tokens_predicted=OUT - 1), WrongOutput, f"counts {OUT - 1} tokens"),
    "another prompt": (tokens(OUT, tokens_evaluated=33), WrongOutput, "33 tokens of a prompt of 32"),
    "too many tokens": (tokens(OUT + 1), WrongOutput, "continues its reply"),
    "nothing without end": (endless({"tokens": [], "stop": False}), WrongOutput, "continues its reply"),
    "another model": (tokens(OUT, model="other"), WrongOutput, "the model other replied"),
    "an error in the stream": (raw(b'data: {"error": {"message": "no slot"}}\n\n'), MixmarkError, "broke off: no slot"),
    "an event of the kind error": (
        raw(b'event: error\ndata: {"message": "busy"}\n\n'),
        MixmarkError,
        "broke off: busy",
    ),
    "a field for errors": (raw(b'error: {"message": "no slot"}\n\n'), MixmarkError, "broke off: no slot"),
    "an error in words": (raw(b"event: error\r\ndata: no slot\r\n\r\n"), MixmarkError, "broke off: no slot"),
    "a redirect": (page(302, {}, Location="http://elsewhere.test/x"), MixmarkError, "redirects to elsewhere.test"),
    "401": (page(401, {"error": "who?"}), PluginError, "refuses the key"),
    "429": (page(429, {}), MixmarkError, "429"),
    "500": (page(500, {"error": {"message": "no memory"}}), MixmarkError, "HTTP 500: no memory"),
}


@pytest.mark.parametrize("what", BAD)
def test_faults_of_a_server_are_reported_and_disturb_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.2)
    bad, kind, words = BAD[what]
    turns = iter([servers.llamacpp, bad, servers.llamacpp])
    with serving(lambda request: next(turns)(request)) as (_, url), opened(url) as runner:
        assert answer(runner, 0) == right(0)
        with pytest.raises(kind, match=words) as caught:
            answer(runner, 1)
        assert type(caught.value) is kind
        assert answer(runner, 2) == right(2)


BAD_HOSTED: dict[str, tuple[list[object], type[Exception], str]] = {
    "no counts": ([{"choices": [{"delta": {"content": "a"}}]}, "[DONE]"], WrongOutput, "does not report its token"),
    "counts that are words": (
        [{"choices": [], "usage": {"completion_tokens": "128"}}, "[DONE]"],
        WrongOutput,
        "does not report its token counts",
    ),
    "an end before the end": (
        [{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 40}}, "[DONE]"],
        WrongOutput,
        "counts 40 tokens",
    ),
    "another form": ([{"choices": 3}], MixmarkError, "form of OpenAI"),
    "no [DONE]": ([{"choices": [], "usage": {}}], MixmarkError, "closed the connection"),
    "vllm without token ids": ([{"choices": [{"text": "hello"}]}], MixmarkError, "token ids"),
}


@pytest.mark.parametrize("what", BAD_HOSTED)
def test_faults_of_a_service_are_reported(what: str) -> None:
    events, kind, words = BAD_HOSTED[what]
    api = "vllm" if what.startswith("vllm") else "chat"

    def say(request: Request) -> None:
        request.begin()
        for event in events:
            request.event(event)
        request.end()

    with serving(say) as (_, url), opened(url, api) as runner, pytest.raises(kind, match=words):
        answer(runner)


# Who is there at all, which `mixmark devices` says


def test_an_unreachable_endpoint_is_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GREETING_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with pytest.raises(MixmarkError, match=r"sent nothing for 0\.2 s"):
            list(adapter(f"http://127.0.0.1:{port}").discover())
    with pytest.raises(MixmarkError, match=r"connection to 127\.0\.0\.1 failed: .*refused") as caught:
        list(adapter(f"http://127.0.0.1:{port}").discover())
    assert "start the server" in caught.value.hint
    with serving(servers.llamacpp) as (server, url):
        with pytest.raises(MixmarkError, match=r"connection to 127\.0\.0\.1 failed: .*SSL"):
            list(adapter(url.replace("http", "https")).discover())
        server.models = ("small", "large")
        with pytest.raises(PluginError, match="model edge") as caught:
            list(adapter(url).discover())
        assert caught.value.hint == "it has small, large"
        for status, words in ((401, "refuses the key"), (302, "redirects"), (503, "HTTP 503")):
            server.refuses = status
            with pytest.raises(MixmarkError, match=words):
                list(adapter(url).discover())
        server.refuses = 404  # it does not list its models
        assert [each.id for each in adapter(url).discover()] == ["cpu:0"]


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "both.pem"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    out = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(file), "-out", "-")
    done = subprocess.run([*made, *out], capture_output=True, check=True)
    file.write_bytes(file.read_bytes() + done.stdout)
    refused = pytest.raises(MixmarkError, match=r"certificate verify failed: self-signed")
    with serving(servers.llamacpp, certificate=str(file)) as (_, url), refused:
        list(adapter(url).discover())


# Options and keys


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": None}, "lacks url"),
        ({"api": "vllm", "device": None}, "device names the silicon"),
        ({"api": "grpc"}, "api is 'grpc'"),
        ({"precision": "fp7"}, "precision is 'fp7'"),
        ({"concurrency": "0"}, "concurrency is '0'"),
        ({"device": "rack"}, "device is 'rack'"),
        ({"url": "127.0.0.1:8000"}, "not the address"),
        ({"url": "ftp://a/b"}, "not the address"),
        ({"api": "chat"}, "no device here"),
        ({"key": KEY}, "no option key"),
        ({"key_env": KEY}, "key_env"),
        ({"url": f"http://me:{KEY}@127.0.0.1:9/v1"}, "url"),
        ({"url": f"http://127.0.0.1:9/v1?key={KEY}"}, "url"),
        ({"url": f"http://127.0.0.1:9/v1#{KEY}"}, "url"),
    ],
)
def test_a_wrong_option_is_reported_and_a_key_in_it_is_not_repeated(options: dict[str, str | None], words: str) -> None:
    right = {"url": "http://127.0.0.1:9", "model": "edge", "api": "llamacpp", "precision": "fp32", "device": "cpu:0"}
    with pytest.raises(UsageError, match=words) as caught:
        Endpoint({name: value for name, value in (right | options).items() if value is not None})
    assert KEY not in traced(caught.value)


def test_it_is_asked_only_where_it_is_configured_or_named() -> None:
    section = Config(adapters={"endpoint": AdapterConfig(options={"url": "http://127.0.0.1:9"})})
    assert "endpoint" not in setup.known_adapters(Config()) and "torch" in setup.known_adapters(Config())
    assert "endpoint" in setup.known_adapters(section) and "endpoint" in setup.choose_adapters([], section)
    assert list(setup.choose_adapters(["endpoint"], Config())) == ["endpoint"]


def test_the_configurations_of_the_page_are_right() -> None:
    page = (Path(__file__).parents[3] / "docs/capabilities/endpoint.md").read_text("utf-8")
    sections = [
        tomllib.loads(each)["adapter"]["endpoint"] for each in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    ]
    own, hosted = (Endpoint({name: str(value) for name, value in each.items()}).device for each in sections)
    assert (own.id, own.offers("llm"), own.hosted) == ("cpu:0", ("int8",), "")
    assert (hosted.id, hosted.offers("llm"), hosted.hosted) == ("asic:api.example.com", ("fp8",), "llama-3.1-8b")
    assert {each for each in OPTIONS if f"| `{each}` |" in page} == set(OPTIONS)
    assert {each for each in APIS if f"| `{each}` |" in page} == set(APIS)


def traced(error: BaseException) -> str:
    """All that a log could show of it."""
    return "".join(traceback.format_exception(error)) + getattr(error, "hint", "")


def redirect(elsewhere: str) -> Callable[[Request], None]:
    return page(308, {}, Location=f"{elsewhere}/completion")


def left_behind(server: Server, url: str) -> str:
    """What an exchange with a server leaves behind, of facts and errors."""
    asked = adapter(url, key_env="ACME_KEY")
    try:
        [device] = asked.discover()
        with asked.open(device, SUITE, "fp32", ALONE) as runner:
            try:
                answer(runner)
            finally:
                left = str(runner.facts)
    except MixmarkError as error:
        return traced(error) + left
    return left


@pytest.mark.parametrize(
    "echo",
    [
        page(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
        page(500, {"error": {"message": f"no user {KEY[:12]}****"}}),
        page(500, f"Bearer {KEY}".encode()),
        page(307, {}, Location=f"http://{KEY}.test/{KEY}"),
        None,
        raw(f'data: {{"error": "Bearer {KEY}"}}\n\n'.encode()),
        raw(f"data: {KEY}\n\n".encode()),
        tokens(OUT, model=KEY),
        servers.llamacpp,
    ],
)
def test_a_key_is_sent_and_shown_nowhere(
    echo: Callable[[Request], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: a redirect to a server that is there."""
    monkeypatch.setenv("ACME_KEY", f" {KEY}\n")
    monkeypatch.setattr(Request, "server_version", KEY)
    with serving(servers.llamacpp) as (other, elsewhere), serving(echo or redirect(elsewhere)) as (server, url):
        left = left_behind(server, url)
    assert not other.seen, "a redirect takes no key along"
    assert server.seen[0][1]["Authorization"] == f"Bearer {KEY}" and len(server.seen) == 1
    assert left and not any(KEY[at : at + 8] in left for at in range(len(KEY) - 7))


def test_a_key_goes_nowhere_without_tls_and_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", KEY)
    with pytest.raises(UsageError, match="only by https"):
        list(adapter("http://10.1.2.3/v1", key_env="ACME_KEY").discover())
    monkeypatch.setenv("ACME_KEY", f"{KEY}\r\nX-Other: 1")
    with pytest.raises(PluginError, match="is empty or has spaces") as caught:
        list(adapter("http://127.0.0.1:9", key_env="ACME_KEY").discover())
    assert KEY not in traced(caught.value)
    monkeypatch.delenv("ACME_KEY")
    with pytest.raises(PluginError, match="is not set"):
        list(adapter("http://127.0.0.1:9", key_env="ACME_KEY").discover())


# Whole runs


def ran(folder: Path, url: str, api: str, precision: str = "int8") -> tuple[Any, str, int]:
    """The result, the report and the exit code of a run whose key is in the environment."""
    shell = Shell(folder)
    shell.environment["ACME_KEY"] = KEY
    device = "" if api == "chat" else 'device = "cpu:0"'
    options = (
        f'url = "{url}"\nmodel = "edge"\napi = "{api}"\nprecision = "{precision}"\nkey_env = "ACME_KEY"\n{device}\n'
    )
    (folder / "mixmark.toml").write_text(f"[adapter.endpoint]\n{options}")
    words = "--suite llm --adapter endpoint --tier smoke --mix none --out out --bits 8"
    with mock.patch.object(phase, "_check_helpers"):  # the server is a thread of this process, which is the harness too
        done = shell("run", *words.split())
    left = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.parent.name == "logs" for path in left)
    assert not [path for path in left if KEY.encode() in path.read_bytes()] and KEY not in done.stdout + done.stderr
    return json.loads((folder / "out/result.json").read_text()), done.stdout + done.stderr, done.returncode


@pytest.mark.slow
def test_a_server_that_was_given_the_weights_passes_its_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mixmark.harness.adapters.torch import Torch

    cpu = next(iter(Torch({}).discover()))
    with Torch({"threads": "1"}).open(cpu, Llm("smoke", {}, 8), "fp32", ALONE) as model:

        def decode(request: Request) -> None:
            request.begin()
            for [[token, *_]] in model({"ids": np.array(request.asked["prompt"])}):
                request.event({"tokens": [int(token)], "stop": False})
            counts = {"tokens_predicted": OUT, "tokens_evaluated": len(request.asked["prompt"])}
            request.event({"stop": True, "model": "edge", **counts})
            request.end()

        monkeypatch.setattr(Request, "server_version", f"echo of {KEY}")
        with serving(decode) as (server, url):
            result, report, code = ran(tmp_path, url, "llamacpp")
    assert code == 0, report
    [record] = result["records"]
    assert record["audit"]["values"] and record["audit"]["problem"] == "" and record["route"]["weights"] == "synthetic"
    assert record["helper_processes"] and "not shown" in record["facts"]["server"]
    assert {headers["Authorization"] for _, headers, _ in server.seen} == {f"Bearer {KEY}"}


@pytest.mark.slow
def test_a_hosted_service_is_measured_and_stands_apart(tmp_path: Path) -> None:
    with serving(servers.chat) as (_, url):
        result, report, code = ran(tmp_path, url, "chat")
    assert code == 0 and figures.HOSTED in report, report
    [record] = result["records"]
    assert (record["audit"], record["exempt"], record["costs"]) == (None, "hosted", [])
    assert (record["route"]["weights"], record["route"]["device"]) == ("hosted: edge", "asic:127.0.0.1")
