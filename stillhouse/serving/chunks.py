"""The choices that chunks of a streamed answer hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from stillhouse.serving.answers import chat_logprobs, first_call_index
from stillhouse.serving.chat_request import ChatRequest
from stillhouse.serving.deltas import MessageDeltas
from stillhouse.serving.generation import Generation
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChoiceChunks(Protocol):
    """Chunks of one choice."""

    def begin(self) -> Iterator[JsonObject]:
        """Choices sent before the first token."""
        ...

    def add(self, text: str, token: int, logprob: float) -> Iterator[JsonObject]:
        """Choices after a token, which has released `text`."""
        ...

    def end(self, text: str, finish_reason: str) -> Iterator[JsonObject]:
        """Choices after the last token, with the text that was held back until then."""
        ...


class ChatChunks:
    """Chunks of one choice of a chat completion; `in_thought` tells whether the prompt has opened the reasoning.

    Log-probabilities come with the next delta that is sent, since text may be held back.
    """

    def __init__(self, index: int, body: ChatRequest, tokenizer: "PreTrainedTokenizerBase", in_thought: bool) -> None:
        self._index = index
        self._body = body
        self._tokenizer = tokenizer
        self._unsent = Generation([], [], "length")
        self._deltas = MessageDeltas(first_call_index(body), body.offered_tools(), in_thought=in_thought)

    def begin(self) -> Iterator[JsonObject]:
        """See `ChoiceChunks`."""
        yield self._choice({"role": "assistant", "content": ""})

    def add(self, text: str, token: int, logprob: float) -> Iterator[JsonObject]:
        """See `ChoiceChunks`."""
        self._unsent.completion_ids.append(token)
        self._unsent.logprobs.append(logprob)
        yield from map(self._choice, self._deltas.feed(text))

    def end(self, text: str, finish_reason: str) -> Iterator[JsonObject]:
        """See `ChoiceChunks`."""
        yield from map(self._choice, self._deltas.feed(text, is_end=True))
        is_call = finish_reason == "stop" and self._deltas.num_calls
        yield self._choice({}, "tool_calls" if is_call else finish_reason)

    def _choice(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        unsent, self._unsent = self._unsent, Generation([], [], "length")
        has_logprobs = self._body.logprobs and unsent.completion_ids
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": {"content": chat_logprobs(self._body, unsent, None, self._tokenizer)} if has_logprobs else None,
            "finish_reason": finish_reason,
        }


class TextChunks:
    """Chunks of one choice of a text completion."""

    def __init__(self, index: int) -> None:
        self._index = index

    def begin(self) -> Iterator[JsonObject]:
        """See `ChoiceChunks`."""
        yield from ()

    def add(self, text: str, token: int, logprob: float) -> Iterator[JsonObject]:
        """See `ChoiceChunks`."""
        if text:
            yield self._choice(text, None)

    def end(self, text: str, finish_reason: str) -> Iterator[JsonObject]:
        """See `ChoiceChunks`."""
        yield self._choice(text, finish_reason)

    def _choice(self, text: str, finish_reason: str | None) -> JsonObject:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": finish_reason}
