"""The latency that the endpoint adapter adds to a token on the loopback, compared with a bare HTTP client.

Run: python -m bench.capabilities.endpoint [FEEDS]   (40)

A server in a separate process streams an output with a token each millisecond. The id of each token is its sending time
in microseconds, on the clock that both processes share, so a token's latency is its time of arrival minus its id. The
bare client parses only the ids. The adapter's token arrives when the harness's loop takes its timestamp. Feeds of both
alternate."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import cast

import numpy as np

from mixmark.harness.capabilities.endpoint import Endpoint
from mixmark.harness.capabilities.endpoint.client import Address
from mixmark.harness.contracts.protocols import Array, Feed, Runner, Use
from mixmark.harness.worker.load_generator import FeedLog
from mixmark.suites.llm import Llm
from tests.capabilities.endpoint.servers import Request, serving

GOAL_US = 1000.0
PACE_S = 0.001
ID = re.compile(rb'"tokens": \[(\d+)\]')
WRAP = 1 << 31  # ids stay below


def now_us() -> int:
    return time.monotonic_ns() // 1000 % WRAP


def stream(request: Request) -> None:
    """Replies like llama.cpp's server. Each id is the time of its event."""
    asked = request.asked
    request.begin()
    due = time.monotonic()
    for _ in range(asked["n_predict"]):
        due += PACE_S
        time.sleep(max(0.0, due - time.monotonic()))
        request.event({"index": 0, "content": "", "tokens": [now_us()], "stop": False})
    counts = {"tokens_predicted": asked["n_predict"], "tokens_evaluated": len(asked["prompt"])}
    request.event({"content": "", "tokens": [], "stop": True, "model": asked["model"], **counts})
    request.end()


def serve(parent: Connection) -> None:
    with serving(stream) as (_, url):
        parent.send(url)
        parent.recv()


def bare(connection: http.client.HTTPConnection, body: bytes) -> list[int]:
    """The latency of each token in a client that does nothing else."""
    connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    targets = []
    while line := response.readline():
        if found := ID.search(line):
            targets.append((now_us() - int(found[1])) % WRAP)
    return targets


def through(runner: Runner, feed: Feed) -> list[int]:
    """The latency of each token until its timestamp in the harness's loop."""
    sent: list[int] = []

    def seen(feed: Feed) -> Iterator[Array]:
        for token in runner(feed):
            sent.append(int(token[0]))
            yield token

    marks, _ = FeedLog().run(cast(Runner, seen), feed, time.monotonic_ns)
    return [(at_ns // 1000 - id) % WRAP for at_ns, id in zip(marks[0::2], sent, strict=True)]


def main() -> None:
    feeds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there,))
    server.start()
    url, suite = here.recv(), Llm("smoke", {})
    adapter = Endpoint({"url": url, "model": "edge", "api": "llamacpp", "precision": "fp32", "device": "cpu:0"})
    address = Address(url)
    connection = http.client.HTTPConnection(address.host, address.port)
    feed = suite.feeds(1, 0)
    body = adapter.api.body("edge", feed(0)["ids"].tolist(), suite.units(1))
    targets: dict[str, list[int]] = {"bare": [], "adapter": []}
    with adapter.open(adapter.device, suite, "fp32", Use.of("single-stream")) as runner:
        for number in range(feeds):
            targets["bare"] += bare(connection, json.dumps(body).encode())
            targets["adapter"] += through(runner, feed(number))
    here.send(None)
    server.join()
    for name, each in targets.items():
        p50, p99 = np.percentile(each, (50, 99))
        print(
            f"{name:8} {len(each)} tokens: median {p50:.0f} µs, p99 {p99:.0f} µs, mean {statistics.mean(each):.0f} µs"
        )
    added = statistics.mean(targets["adapter"]) - statistics.mean(targets["bare"])
    print(
        f"the adapter adds {added:.0f} µs a token: {'ok' if added <= GOAL_US else 'TOO MUCH'} (at most {GOAL_US:.0f})"
    )


if __name__ == "__main__":
    main()
