"""Runs the llm suite on a server behind HTTP that streams its tokens: the user's own server, or a hosted service.

The user's own server has the suite's weights and takes token ids, so its tokens are audited like the output of any
route. A hosted service has other weights and takes text, so its tokens cannot be audited: its device is `hosted`, and
its records are in no score.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import psutil

from mixmark.harness.adapters.devices import cpu
from mixmark.harness.capabilities.endpoint.apis import APIS, UNKNOWN, Api, StreamEvent
from mixmark.harness.capabilities.endpoint.client import Address, Client
from mixmark.harness.contracts.errors import (
    MixmarkError,
    PluginError,
    Unsupported,
    UsageError,
    WrongOutput,
    refuse_options,
)
from mixmark.harness.contracts.numbers import counted
from mixmark.harness.contracts.protocols import Array, Feed, Runner, Suite, Use
from mixmark.harness.contracts.schema import BITS_PER_WEIGHT, HOST_PROCESSOR, Device
from mixmark.harness.resources.psutils import known

OPTIONS = ("url", "model", "api", "precision", "device", "key_env", "concurrency")
NEEDED = OPTIONS[:4]
MAX_CONCURRENCY = 64
SILENT = 64  # a stream may have this many events without a token, besides one event for each token
KINDS = ("cpu", "gpu", "npu", "asic")


class Endpoint:
    """A server behind HTTP. options: see docs/capabilities/endpoint.md."""

    name = "endpoint"

    def __init__(self, options: Mapping[str, str]) -> None:
        refuse_options("adapter endpoint", options, OPTIONS)
        if missing := [name for name in NEEDED if not options.get(name)]:
            raise UsageError(
                f"adapter endpoint lacks {', '.join(missing)}", "set it under [adapter.endpoint] in mixmark.toml"
            )
        self.address, self.model = Address(options["url"]), options["model"]
        self.api = _one_of(options, "api", APIS)
        self.precision = options["precision"]
        _one_of(options, "precision", BITS_PER_WEIGHT)
        concurrency = options.get("concurrency", "1")
        if not concurrency.isdecimal() or not 1 <= int(concurrency) <= MAX_CONCURRENCY:
            raise UsageError(
                f"adapter endpoint: concurrency is {concurrency!a}", f"give a whole number from 1 to {MAX_CONCURRENCY}"
            )
        self.concurrency = int(concurrency)
        self.device = self._device(options.get("device"))
        self._key_env = options.get("key_env", "")
        if not re.fullmatch("([A-Z][A-Z0-9_]{0,63})?", self._key_env):  # it may be the key itself: not repeated here
            message = "adapter endpoint: key_env is not the name of an environment variable in capital letters"
            raise UsageError(message, "give the variable's name, such as ACME_API_KEY, and never the key")

    def discover(self) -> Iterable[Device]:
        with closing(self._client()) as client:
            self._check_model(client)
        yield self.device

    @contextmanager
    def open(self, device: Device, suite: Suite, precision: str, use: Use) -> Iterator[Runner]:
        if suite.name != "llm":
            raise Unsupported(f"an endpoint generates text, and {suite.name} does not")
        with closing(self._client()) as client:
            self._check_model(client)
            stream = StreamRunner(client, self.api, self.model, suite, self.concurrency)
            if device.on_host and not all(cores(pid) <= cores(os.getpid()) for pid in stream.processes):
                message = "the server may use cores that do not belong to the measured device"
                raise Unsupported(message, "leave --split-cpu away, or start the server by taskset on the same cores")
            yield stream

    def _client(self) -> Client:
        key = os.environ.get(self._key_env, "").strip() if self._key_env else ""
        if self._key_env and not key:
            raise PluginError("the environment variable that key_env names is not set", "export it, with the key")
        if not re.fullmatch("[!-~]*", key):
            raise PluginError("the environment variable that key_env names is empty or has spaces", "export the key")
        return Client(self.address, key)

    def _check_model(self, client: Client) -> None:
        """Raises MixmarkError if the endpoint cannot be reached or does not list the requested model."""
        names = []
        match client.get("/models"):
            case {"data": [*models]}:
                names = [model.get("id") for model in models if isinstance(model, dict)]
        if names and self.model not in names:
            known = ", ".join(client.clean(name) for name in names[:5])
            raise PluginError(f"{self.address.host} has no model {self.model}", f"it has {known}")

    def _device(self, id: str | None) -> Device:
        """The silicon behind the endpoint. This machine's processor is the same device as in other adapters."""
        precisions: dict[str, Any] = {"precisions_by_suite": {"llm": (self.precision,)}}
        if self.api.hosted and id is not None:
            raise UsageError("adapter endpoint: a hosted service has no device here", "leave device away")
        if self.api.hosted:
            precisions |= {"hosted": self.model, "name": self.address.host}
            id = f"asic:{re.sub('[^A-Za-z0-9._-]', '-', self.address.host)}"
        elif id is None:
            message = "adapter endpoint: device names the silicon that the server computes on"
            raise UsageError(message, "cpu:0 and others of this machine: mixmark devices; else a name, as gpu:rack-2")
        if id == HOST_PROCESSOR:
            return cpu(()).model_copy(update=precisions)
        kind = id.partition(":")[0]
        if kind not in KINDS or not re.fullmatch("[a-z]+:[A-Za-z0-9._-]+", id):
            raise UsageError(f"adapter endpoint: device is {id!a}", f"give KIND:NAME with a kind of {', '.join(KINDS)}")
        return Device.model_validate({"id": id, "kind": kind, "memory_pool": id, **precisions})


class StreamRunner:
    """Sends requests to an open endpoint; each reply streams the tokens of one feed."""

    def __init__(self, client: Client, api: Api, model: str, suite: Suite, concurrency: int) -> None:
        self.concurrency = concurrency
        self._client, self._api, self._model = client, api, model
        self._tokens_out = suite.units(1)
        self._prompts: set[int] = set()
        self._network = f"{client.latency_ms():.3g} ms for GET /models (median)"
        self.processes = listening(client.address) if client.address.is_local else ()
        """The processes that listen at the endpoint's port on this machine."""

    @property
    def facts(self) -> Mapping[str, str]:
        lengths = f"{min(self._prompts)} to {max(self._prompts)}" if self._prompts else ""
        facts = {"server": self._client.server, "model": self._model, "network": self._network}
        return facts | ({"tokens of a prompt": lengths} if self._api.hosted and lengths else {})

    def __call__(self, feed: Feed) -> Iterator[Array]:
        """Yields each token when its event arrives.

        If text arrives in fewer pieces than it has tokens, the missing tokens are yielded at the end, when the endpoint
        has reported their number.
        """
        api, ids = self._api, feed["ids"].tolist()
        count, silent, last = 0, 0, StreamEvent()
        tokens_in: int | None = None
        tokens_out: int | None = None
        for event in self._client.events(api.path, api.body(self._model, ids, self._tokens_out)):
            last = api.parse(event)
            if last.model:
                self._check_model(last.model)
            tokens_in = tokens_in if last.tokens_in is None else last.tokens_in
            tokens_out = tokens_out if last.tokens_out is None else last.tokens_out
            count += len(last.tokens)
            silent += not last.tokens
            if count > self._tokens_out or silent > SILENT + self._tokens_out:
                raise WrongOutput(
                    f"the endpoint continues its reply after {counted(count, 'token')} of {self._tokens_out}"
                )
            for token in last.tokens:
                yield np.array([token])
        if not last.done:
            raise MixmarkError(
                f"{self._client.address.host} closed the connection after {counted(count, 'token')}, before the end"
            )
        if type(tokens_in) is not int or type(tokens_out) is not int:
            raise WrongOutput("the endpoint does not report its token counts")
        if tokens_out != self._tokens_out or (count != tokens_out and not api.hosted):
            raise WrongOutput(
                f"the endpoint counts {counted(tokens_out, 'token')}, {count} arrived, and "
                f"{self._tokens_out} were requested"
            )
        if tokens_in != len(ids) and not api.hosted:
            raise WrongOutput(f"the endpoint counts {counted(tokens_in, 'token')} of a prompt of {len(ids)}")
        self._prompts.add(tokens_in)
        for _ in range(tokens_out - count):
            yield np.array([UNKNOWN])

    def _check_model(self, model: object) -> None:
        """Raises WrongOutput if another model replied. A dated version of the requested model is allowed."""
        if model != self._model and not str(model).startswith(f"{self._model}-"):
            raise WrongOutput(f"the model {self._client.clean(model)} replied, and {self._model} was requested")


def listening(address: Address) -> tuple[int, ...]:
    """The processes of this machine that listen at an address and that this user may see."""
    found = known(lambda: psutil.net_connections("tcp"), ())
    pids = {entry.pid for entry in found if entry.status == psutil.CONN_LISTEN and entry.laddr[1:] == (address.port,)}
    return tuple(sorted(pid for pid in pids if pid is not None))


def cores(pid: int) -> frozenset[int]:
    """The cores that a process may run on; empty if unknown."""
    if sys.platform == "darwin":  # macOS has no affinity
        return frozenset()
    return known(lambda: frozenset(psutil.Process(pid).cpu_affinity() or ()), frozenset())


def _one_of(options: Mapping[str, str], name: str, known: Mapping[str, Any]) -> Any:
    """The entry of `known` that an option names. Raises UsageError for any other value."""
    if options[name] not in known:
        raise UsageError(f"adapter endpoint: {name} is {options[name]!a}", f"it is one of {', '.join(known)}")
    return known[options[name]]
