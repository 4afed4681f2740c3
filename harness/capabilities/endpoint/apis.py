"""Requests to an endpoint and the events of its stream, in each supported API.

llamacpp      /completion of llama.cpp's server: token ids in and out
vllm          /v1/completions with return_token_ids, as vLLM and SGLang have it: token ids in and out
chat          /v1/chat/completions: text in and out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mixmark.harness.contracts.errors import MixmarkError

DONE = "[DONE]"
UNKNOWN = -1  # stands for a token with an unknown id


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """The content of one event. A value is None if the event lacks it."""

    tokens: Sequence[int] = ()
    """The new token ids; UNKNOWN for a piece of text."""
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    done: bool = False
    """Whether the reply is complete."""


@dataclass(frozen=True)
class Api:
    """The requests and events of an API."""

    path: str
    """The path below the URL."""
    hosted: bool
    """Whether prompts and replies are text, as in a service with other weights."""
    prompt: Callable[[Sequence[int]], Mapping[str, object]]
    """The fields of a request that hold the prompt of these token ids."""
    most: str
    """The field of a request that holds the number of tokens to generate."""
    fields: Mapping[str, object]
    """The other fields of a request."""
    parse: Callable[[Any], StreamEvent]
    """Parses an event. Raises MixmarkError for an event of another form."""

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {"model": model, **self.prompt(ids), self.most: tokens_out, "stream": True, **self.fields}


def _llamacpp(event: Any) -> StreamEvent:
    match event:
        case {"stop": True, "tokens_evaluated": int(evaluated), "tokens_predicted": int(predicted)}:
            return StreamEvent(_ids(event.get("tokens")), event.get("model"), evaluated, predicted, done=True)
        case {"stop": False, "tokens": tokens}:
            return StreamEvent(_ids(tokens))
    raise MixmarkError("an event has not the form of llama.cpp's server", "correct api")


def _openai(tokens: Callable[[Mapping[str, Any]], Sequence[int]]) -> Callable[[Any], StreamEvent]:
    """Parses events of OpenAI's completions. tokens: returns the token ids of a choice."""

    def parse(event: Any) -> StreamEvent:
        if event == DONE:
            return StreamEvent(done=True)
        try:
            choice = event["choices"][0] if event["choices"] else None
            usage = event.get("usage") or {}
            new = tokens(choice) if choice else ()
            return StreamEvent(new, event.get("model"), usage.get("prompt_tokens"), usage.get("completion_tokens"))
        except (TypeError, KeyError, IndexError, AttributeError):
            raise MixmarkError("an event has not the form of OpenAI's completions", "correct api") from None

    return parse


def _of_ids(choice: Mapping[str, Any]) -> Sequence[int]:
    if "token_ids" not in choice:
        raise MixmarkError("the endpoint does not report token ids", "correct api, or update the server")
    return _ids(choice["token_ids"])


def _of_chat(choice: Mapping[str, Any]) -> Sequence[int]:
    delta = choice.get("delta") or {}
    return (UNKNOWN,) if any(delta.get(part) for part in ("content", "reasoning", "reasoning_content")) else ()


def _ids(value: object) -> Sequence[int]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(id) is int and 0 <= id < 1 << 31 for id in value):
        raise MixmarkError("an event has token ids that are not numbers")
    return value


def _as_ids(ids: Sequence[int]) -> Mapping[str, object]:
    return {"prompt": ids}


def _as_messages(ids: Sequence[int]) -> Mapping[str, object]:
    """A prompt with about as many tokens as `ids` that no model finishes soon. Different ids give different prompts."""
    numbers = " ".join(f"{id % 900 + 100}" for id in ids[: len(ids) // 2])
    text = f"Continue this list of random numbers. Write only numbers, and do not end: {numbers}"
    return {"messages": [{"role": "user", "content": text}]}


LLAMACPP = {"samplers": ["top_k"], "top_k": 1, "ignore_eos": True, "cache_prompt": False, "return_tokens": True}
OPENAI = {"temperature": 0, "stream_options": {"include_usage": True}}
VLLM = {**OPENAI, "ignore_eos": True, "return_token_ids": True}
APIS: Mapping[str, Api] = {
    "llamacpp": Api("/completion", False, _as_ids, "n_predict", LLAMACPP, _llamacpp),
    "vllm": Api("/completions", False, _as_ids, "max_tokens", VLLM, _openai(_of_ids)),
    "chat": Api("/chat/completions", True, _as_messages, "max_tokens", OPENAI, _openai(_of_chat)),
}
