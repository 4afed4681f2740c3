"""Typed calls between two processes: the methods of a class are the calls that its process takes.

A call is one line of JSON, and so is its reply:

    {"call": "open", "arguments": {"key": "a", …}}
    {"reply": "open", "value": {"load_ns": 1, …}}
    {"failed": {"failure": {…}, "misuse": false}}       in place of a reply

The annotations of the method are the schema: pydantic validates the arguments and the reply by them. What is iterable
travels as a tuple. A peer may run hostile code, so a line that breaks the schema raises Garbled and nothing of it
is used. `serve` is the loop of the process that takes the calls.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import GenericAlias
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.schema import Failure
from mixmark.harness.worker.failures import failure_of

LONGEST_BYTES = 16 << 20  # a longer line is an error, so that a peer cannot fill the memory of this process

P = ParamSpec("P")
T = TypeVar("T")


class Garbled(ValueError):
    """The peer broke the protocol."""


class Later(Generic[T]):
    """What a method returns that sends its reply itself, once there is one."""


class Message(BaseModel):
    """A value that calls send. It is frozen, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Failed(Message):
    """The line in place of a reply."""

    failure: Failure
    misuse: bool = False
    """Whether the plugin raised a UsageError: the configuration is wrong."""


@dataclass(frozen=True)
class Call:
    """A call of the peer, with valid arguments."""

    method: Callable[..., Any]
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.method.__name__


@dataclass(frozen=True)
class Reply:
    """A reply of the peer. Its value is valid only once `of` has returned it."""

    name: str
    value: Any

    def of(self, method: Callable[Concatenate[Any, P], T]) -> T:
        """The reply to a call of this method. Raises Garbled."""
        if self.name != method.__name__:
            raise Garbled(f"{method.__name__} was due, but {self.name:.40} came")
        try:
            value: T = _reply(method).validate_python(self.value)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise Garbled(f"the reply to {self.name} has a wrong field") from error
        return value


def write_call(method: Callable[Concatenate[Any, P], object], *_: P.args, **arguments: P.kwargs) -> bytes:
    """A call as one line. Raises ValueError if an argument is wrong."""
    body = _arguments(method)(**arguments).model_dump(mode="json")
    return _line({"call": method.__name__, "arguments": body})


def write_reply(method: Callable[..., Any], value: object) -> bytes:
    """A reply as one line. Raises ValueError for a value of another type and for a number that is not finite."""
    reply = _reply(method)
    return _line({"reply": method.__name__, "value": reply.dump_python(reply.validate_python(value), mode="json")})


def write_failed(failed: Failed) -> bytes:
    return _line({"failed": failed.model_dump(mode="json")})


def read(line: bytes, interface: type) -> Call | Reply | Failed:
    """Parses a line of the peer. interface: the class whose methods the peer may call. Raises Garbled."""
    try:
        match DECODER.decode(line.decode()):
            case {"call": str(name), "arguments": dict(body), **more} if not more:
                method = _methods(interface)[name]
                valid = _arguments(method).model_validate(body)
                return Call(method, dict(valid))
            case {"reply": str(name), "value": value, **more} if not more:
                return Reply(name, value)
            case {"failed": body, **more} if not more:
                return Failed.model_validate(body)
        raise ValueError("none of the three forms")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        cause = "a field is wrong" if isinstance(error, ValidationError) else "not a message"
        raise Garbled(f"{cause}: {start_of(line)}") from error


def serve(calls: Iterable[Call], service: Callable[[], object], send: Callable[[bytes], object]) -> None:
    """Serves calls one after the other. An exception that a call raises becomes the line `failed`.

    service: returns the object that has the methods.
    """
    for call in calls:
        try:
            value = getattr(service(), call.name)(**call.arguments)
            if not isinstance(value, Later):
                send(write_reply(call.method, value))
        except (Exception, SystemExit) as error:  # of a plugin, the disk or the call
            send(failed(error))


def failed(error: BaseException) -> bytes:
    """The line about an exception. Writes the traceback to the log of this process, unless the disk is full: then the
    line says so."""
    with suppress(OSError):
        traceback.print_exception(error)
        sys.stderr.flush()
    return write_failed(Failed(failure=failure_of(error), misuse=isinstance(error, UsageError)))


def start_of(line: bytes) -> str:
    """The first characters of a line, for a message about it."""
    return "".join(c if c.isprintable() else "?" for c in line[:80].decode(errors="replace"))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not finite")


DECODER, ENCODER = json.JSONDecoder(parse_constant=_refuse), json.JSONEncoder(allow_nan=False)
"""Made once: `json.loads` and `json.dumps` with these arguments make them anew for each line."""


def _line(content: object) -> bytes:
    return ENCODER.encode(content).encode() + b"\n"


@cache
def _methods(interface: type) -> Mapping[str, Callable[..., Any]]:
    return {name: each for name, each in inspect.getmembers(interface, inspect.isfunction) if name[0] != "_"}


@cache
def _arguments(method: Callable[..., Any]) -> type[BaseModel]:
    """A model of the method's arguments."""
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name != "self":
            fields[name] = _sent(hints[name]), ... if parameter.default is parameter.empty else parameter.default
    return create_model(method.__name__, __config__=Message.model_config, **fields)


@cache
def _reply(method: Callable[..., Any]) -> TypeAdapter[Any]:
    kind = get_type_hints(method, include_extras=True)["return"]
    return TypeAdapter(get_args(kind)[0] if get_origin(kind) is Later else _sent(kind))


def _sent(kind: Any) -> Any:
    """The type that travels."""
    iterable = get_origin(kind) in (Iterable, Sequence)
    return GenericAlias(tuple, (get_args(kind)[0], ...)) if iterable else kind
