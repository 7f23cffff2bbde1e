"""Responses of the OpenAI API from token ids and log-probabilities."""

import itertools
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stillhouse.chat.parse import parse_completion
from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ChatRequest, CompletionRequest
from stillhouse.serving.score import RankedToken
from stillhouse.types import JsonObject, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Completion(NamedTuple):
    """A finished completion."""

    generation: Generation
    text: str
    """Without the token that ended it, cut before a stop string."""
    ranked: Sequence[RankedToken] | None = None
    """The sampled tokens with alternatives, if requested."""


def envelope(kind: str, model: str, choices: list[JsonObject], usage: dict[str, int]) -> JsonObject:
    """Return the response around the choices; `kind` is `chat.completion` or `text_completion`."""
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
    }


def chat_choice(
    index: int,
    body: ChatRequest,
    completion: Completion,
    tokenizer: "PreTrainedTokenizerBase",
) -> JsonObject:
    """Return one choice of a chat completion.

    As in vLLM, `token_ids` and `logprobs` include the end-of-turn token and a stop string, the message does not.
    """
    generation, text, ranked = completion
    tools = body.offered_tools()
    message = parse_completion(text, first_call_index(body), tools, with_calls=bool(tools))
    is_call = generation.finish_reason == "stop" and "tool_calls" in message
    choice: JsonObject = {
        "index": index,
        "message": message,
        "logprobs": {"content": _chat_logprobs(body, generation, ranked, tokenizer)} if body.logprobs else None,
        "finish_reason": "tool_calls" if is_call else generation.finish_reason,
    }
    if body.return_token_ids:
        choice["token_ids"] = generation.completion_ids
    return choice


class RankedPrompt(NamedTuple):
    """The prompt of a text completion."""

    given: str | list[int]
    """Text or token ids, as the client sent it."""
    ids: list[int]
    ranked: list[RankedToken]
    """Tokens 1, 2, ... with alternatives, if requested."""


def text_choice(
    index: int,
    body: CompletionRequest,
    prompt: RankedPrompt,
    completion: Completion,
    tokenizer: "PreTrainedTokenizerBase",
) -> JsonObject:
    generation, text, ranked = completion
    if body.echo:
        text = (prompt.given if isinstance(prompt.given, str) else tokenizer.decode(prompt.ids)) + text
    choice: JsonObject = {"index": index, "text": text, "logprobs": None, "finish_reason": generation.finish_reason}
    if body.logprobs is not None:
        choice["logprobs"] = _text_logprobs(body, prompt, generation, ranked or [], tokenizer)
    if body.prompt_logprobs is not None:
        choice["prompt_logprobs"] = [
            None,
            *(
                _vllm_entry(token, entry, body.prompt_logprobs, tokenizer)
                for token, entry in zip(prompt.ids[1:], prompt.ranked, strict=True)
            ),
        ]
    if body.return_token_ids:
        choice["token_ids"] = generation.completion_ids
        choice["prompt_token_ids"] = prompt.ids
    return choice


def first_call_index(body: ChatRequest) -> int:
    """Return a number n such that no tool call of the conversation is named `call_n` or higher."""
    messages: list[Message] = body.conversation()
    names = [call["id"] for message in messages for call in message.get("tool_calls") or []]
    numbers = [int(name.removeprefix("call_")) for name in names if name.removeprefix("call_").isdecimal()]
    return max([len(names), *(number + 1 for number in numbers)])


def _chat_logprobs(
    body: ChatRequest,
    generation: Generation,
    ranked: Sequence[RankedToken] | None,
    tokenizer: "PreTrainedTokenizerBase",
) -> list[JsonObject]:
    """Return log-probabilities of a completion's tokens in the form of a chat completion."""

    def written(token_id: int, logprob: float) -> JsonObject:
        text = f"token_id:{token_id}" if body.return_tokens_as_token_ids else tokenizer.decode([token_id])
        # For part of a character the text is a replacement sign, and the bytes are unknown.
        return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}

    tops = [[]] * len(generation.completion_ids) if ranked is None else [entry.top for entry in ranked]
    logprobs = [entry.logprob for entry in ranked] if ranked and body.raw_logprobs else generation.logprobs
    return [
        {**written(token, logprob), "top_logprobs": [written(*entry) for entry in top]}
        for token, logprob, top in zip(generation.completion_ids, logprobs, tops, strict=True)
    ]


def _text_logprobs(
    body: CompletionRequest,
    prompt: RankedPrompt,
    generation: Generation,
    ranked: Sequence[RankedToken],
    tokenizer: "PreTrainedTokenizerBase",
) -> JsonObject:
    """Return the lists `tokens`, `token_logprobs`, `top_logprobs`, `text_offset`; echoed ones start with None.

    Alternatives include the actual token, so that there may be one more than requested.
    """

    def name(token_id: int) -> str:
        return f"token_id:{token_id}" if body.return_tokens_as_token_ids else tokenizer.decode([token_id])

    echoed: list[RankedToken | None] = [None, *prompt.ranked] if body.echo else []
    ids = [*(prompt.ids if body.echo else []), *generation.completion_ids]
    logprobs = [*(None if entry is None else entry.logprob for entry in echoed), *generation.logprobs]
    tops: list[dict[str, float] | None] | None = None
    if body.logprobs:
        tops = [
            None if entry is None else {name(i): p for i, p in [*entry.top[: body.logprobs], (token, entry.logprob)]}
            for token, entry in zip(ids, [*echoed, *ranked], strict=True)
        ]
    lengths = [len(tokenizer.decode([token_id])) for token_id in ids]
    return {
        "tokens": [name(token_id) for token_id in ids],
        "token_logprobs": logprobs,
        "top_logprobs": tops,
        "text_offset": list(itertools.accumulate(lengths, initial=0))[: len(ids)],
    }


def _vllm_entry(
    token_id: int, entry: RankedToken, num_top: int, tokenizer: "PreTrainedTokenizerBase"
) -> dict[str, Any]:
    """Return one prompt token in vLLM's form: the actual token first, then the other alternatives."""
    ranked = {token_id: (entry.logprob, entry.rank)}
    for rank, (other, logprob) in enumerate(entry.top[:num_top], start=1):
        ranked.setdefault(other, (logprob, rank))
    return {
        str(other): {"logprob": logprob, "rank": rank, "decoded_token": tokenizer.decode([other])}
        for other, (logprob, rank) in ranked.items()
    }
