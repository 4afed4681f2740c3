"""Servers on the loopback, in this process, that stream what a test lets them."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 4096
Answer = Callable[["Request"], None]


class Server(ThreadingHTTPServer):
    """What it was asked is in `seen`: the path, the headers and the body of each request for a stream."""

    daemon_threads = True

    def __init__(self, answer: Answer, models: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer, self.models = answer, models
        self.refuses = 200
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no error."""


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    asked: dict[str, Any]

    def log_message(self, *args: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY

    def do_GET(self) -> None:
        self.page(self.server.refuses, {"data": [{"id": each} for each in self.server.models]})

    def do_POST(self) -> None:
        self.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, dict(self.headers), self.asked))
        self.server.answer(self)

    def page(self, status: int, content: object, **headers: str) -> None:
        """Answers with JSON and no stream."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def raw(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, content: object) -> None:
        self.raw(f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n".encode())

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


def next_token(ids: Sequence[int]) -> int:
    """A model of a sort: it depends on everything before."""
    return (sum(ids) * 31 + len(ids)) % VOCABULARY


def tokens(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


def llamacpp(request: Request) -> None:
    """A stream as llama.cpp's server has it."""
    asked = request.asked
    request.begin()
    for token in tokens(asked["prompt"], asked["n_predict"]):
        request.event({"index": 0, "content": "", "tokens": [token], "stop": False})
    counts = {"tokens_predicted": asked["n_predict"], "tokens_evaluated": len(asked["prompt"])}
    request.event({"content": "", "tokens": [], "stop": True, "model": asked["model"], **counts})
    request.end()


def vllm(request: Request) -> None:
    """A stream as vLLM has it, three tokens an event."""
    asked = request.asked
    request.begin()
    out = tokens(asked["prompt"], asked["max_tokens"])
    for at in range(0, len(out), 3):
        choice = {"index": 0, "text": "", "token_ids": out[at : at + 3]}
        request.event({"object": "text_completion", "model": asked["model"], "choices": [choice], "usage": None})
    usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(out)}
    request.event({"object": "text_completion", "model": asked["model"], "choices": [], "usage": usage})
    request.event("[DONE]")
    request.end()


def chat(request: Request) -> None:
    """A stream of a hosted service: two tokens of text an event, behind an event of the role."""
    asked = request.asked
    request.begin()
    dated = f"{asked['model']}-2026-11-22"
    request.event({"model": dated, "choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for _ in range(asked["max_tokens"] // 2):
        request.event({"model": dated, "choices": [{"delta": {"content": "12 345"}}]})
        request.raw(b": keep-alive\n\n")
    request.event({"model": dated, "choices": [{"delta": {}, "finish_reason": "length"}]})
    usage = {"prompt_tokens": 77, "completion_tokens": asked["max_tokens"]}
    request.event({"model": dated, "choices": [], "usage": usage})
    request.event("[DONE]")
    request.end()


@contextmanager
def serving(
    answer: Answer, models: Sequence[str] = ("edge",), certificate: str | None = None
) -> Iterator[tuple[Server, str]]:
    """A server and its URL. certificate: a file with a certificate and its key, for TLS."""
    with Server(answer, models) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server, f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
