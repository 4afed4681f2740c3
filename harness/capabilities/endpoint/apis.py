"""Requests to an endpoint and the events of its stream, in each supported API.

llamacpp      /completion of llama.cpp's server: token ids in and out
vllm          /v1/completions with return_token_ids, as vLLM and SGLang have it: token ids in and out
completions   /v1/completions: text in and out
chat          /v1/chat/completions: text in and out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


class Api(Protocol):
    """The requests and events of an API."""

    path: str
    """The path below the URL."""
    hosted: bool
    """Whether prompts and replies are text, as in a service with other weights."""

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]: ...

    def parse(self, event: Any) -> StreamEvent:
        """Raises MixmarkError for an event of another form."""


class LlamaCppApi:
    path = "/completion"
    hosted = False

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {
            "model": model,
            "prompt": ids,
            "n_predict": tokens_out,
            "samplers": ["top_k"],
            "top_k": 1,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": True,
        }

    def parse(self, event: Any) -> StreamEvent:
        match event:
            case {"stop": True, "tokens_evaluated": int(evaluated), "tokens_predicted": int(predicted)}:
                return StreamEvent(_ids(event.get("tokens")), event.get("model"), evaluated, predicted, done=True)
            case {"stop": False, "tokens": tokens}:
                return StreamEvent(_ids(tokens))
        raise MixmarkError("an event has not the form of llama.cpp's server", "correct api")


class VllmApi:
    path = "/completions"
    hosted = False

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {
            "model": model,
            "prompt": ids,
            "max_tokens": tokens_out,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def parse(self, event: Any) -> StreamEvent:
        def tokens(choice: Any) -> Sequence[int]:
            if "token_ids" not in choice:
                raise MixmarkError("the endpoint does not report token ids", "correct api, or update the server")
            return _ids(choice["token_ids"])

        return _openai(event, tokens)


class CompletionsApi:
    path = "/completions"
    hosted = True

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {"prompt": _text(ids), **_hosted(model, tokens_out)}

    def parse(self, event: Any) -> StreamEvent:
        return _openai(event, lambda choice: (UNKNOWN,) if choice.get("text") else ())


class ChatApi:
    path = "/chat/completions"
    hosted = True

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {"messages": [{"role": "user", "content": _text(ids)}], **_hosted(model, tokens_out)}

    def parse(self, event: Any) -> StreamEvent:
        def tokens(choice: Any) -> Sequence[int]:
            delta = choice.get("delta") or {}
            return (UNKNOWN,) if any(delta.get(part) for part in ("content", "reasoning", "reasoning_content")) else ()

        return _openai(event, tokens)


APIS: Mapping[str, Api] = {
    "llamacpp": LlamaCppApi(),
    "vllm": VllmApi(),
    "completions": CompletionsApi(),
    "chat": ChatApi(),
}


def _hosted(model: str, tokens_out: int) -> Mapping[str, object]:
    return {
        "model": model,
        "max_tokens": tokens_out,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _text(ids: Sequence[int]) -> str:
    """A prompt with about as many tokens as `ids` that no model finishes soon. Different ids give different prompts."""
    numbers = " ".join(f"{id % 900 + 100}" for id in ids[: len(ids) // 2])
    return f"Continue this list of random numbers. Write only numbers, and do not end: {numbers}"


def _ids(value: object) -> Sequence[int]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(id) is int and 0 <= id < 1 << 31 for id in value):
        raise MixmarkError("an event has token ids that are not numbers")
    return value


def _openai(event: Any, tokens: Callable[[Mapping[str, Any]], Sequence[int]]) -> StreamEvent:
    """Parses an event of OpenAI's completions."""
    if event == DONE:
        return StreamEvent(done=True)
    try:
        choice = event["choices"][0] if event["choices"] else None
        usage = event.get("usage") or {}
        new = tokens(choice) if choice else ()
        return StreamEvent(new, event.get("model"), usage.get("prompt_tokens"), usage.get("completion_tokens"))
    except (TypeError, KeyError, IndexError, AttributeError):
        raise MixmarkError("an event has not the form of OpenAI's completions", "correct api") from None
