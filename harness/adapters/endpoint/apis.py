"""What an endpoint is asked, and what the events of its stream say, in each of the forms that servers have.

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
UNKNOWN = -1  # stands for a token whose id was not told


@dataclass(frozen=True, slots=True)
class Said:
    """What one event says. None: nothing."""

    tokens: Sequence[int] = ()
    """The ids that are new, or UNKNOWN where there is a piece of text."""
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    over: bool = False
    """Whether the answer is complete."""


class Api(Protocol):
    """A form of requests and events."""

    path: str
    """Below the URL."""
    hosted: bool
    """Whether text goes in and comes out, as with a service that has weights of its own."""

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]: ...

    def said(self, event: Any) -> Said:
        """Raises MixmarkError for an event of another form."""


class LlamaCpp:
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

    def said(self, event: Any) -> Said:
        match event:
            case {"stop": True, "tokens_evaluated": int(evaluated), "tokens_predicted": int(predicted)}:
                return Said(_ids(event.get("tokens")), event.get("model"), evaluated, predicted, over=True)
            case {"stop": False, "tokens": tokens}:
                return Said(_ids(tokens))
        raise MixmarkError("an event is none of llama.cpp's server", "correct api")


class Vllm:
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

    def said(self, event: Any) -> Said:
        def tokens(choice: Any) -> Sequence[int]:
            if "token_ids" not in choice:
                raise MixmarkError("the endpoint tells no token ids", "correct api, or update the server")
            return _ids(choice["token_ids"])

        return _openai(event, tokens)


class Completions:
    path = "/completions"
    hosted = True

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {"prompt": _text(ids), **_hosted(model, tokens_out)}

    def said(self, event: Any) -> Said:
        return _openai(event, lambda choice: (UNKNOWN,) if choice.get("text") else ())


class Chat:
    path = "/chat/completions"
    hosted = True

    def body(self, model: str, ids: Sequence[int], tokens_out: int) -> Mapping[str, object]:
        return {"messages": [{"role": "user", "content": _text(ids)}], **_hosted(model, tokens_out)}

    def said(self, event: Any) -> Said:
        def tokens(choice: Any) -> Sequence[int]:
            delta = choice.get("delta") or {}
            return (UNKNOWN,) if any(delta.get(each) for each in ("content", "reasoning", "reasoning_content")) else ()

        return _openai(event, tokens)


APIS: Mapping[str, Api] = {"llamacpp": LlamaCpp(), "vllm": Vllm(), "completions": Completions(), "chat": Chat()}


def _hosted(model: str, tokens_out: int) -> Mapping[str, object]:
    return {
        "model": model,
        "max_tokens": tokens_out,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _text(ids: Sequence[int]) -> str:
    """A prompt that no model finishes soon, of about as many tokens as there are ids, and never the same."""
    numbers = " ".join(f"{each % 900 + 100}" for each in ids[: len(ids) // 2])
    return f"Continue this list of random numbers. Write only numbers, and do not end: {numbers}"


def _ids(told: object) -> Sequence[int]:
    if told is None:
        return ()
    if not isinstance(told, list) or not all(type(each) is int and 0 <= each < 1 << 31 for each in told):
        raise MixmarkError("an event holds token ids that are no numbers")
    return told


def _openai(event: Any, tokens: Callable[[Mapping[str, Any]], Sequence[int]]) -> Said:
    """What an event in the form of OpenAI's completions says."""
    if event == DONE:
        return Said(over=True)
    try:
        choice = event["choices"][0] if event["choices"] else None
        usage = event.get("usage") or {}
        found = tokens(choice) if choice else ()
        return Said(found, event.get("model"), usage.get("prompt_tokens"), usage.get("completion_tokens"))
    except (TypeError, KeyError, IndexError, AttributeError):
        raise MixmarkError("an event is none of OpenAI's completions", "correct api") from None
