"""The completion in an answer to OpenAI's chat completions API."""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from stillhouse.chat.assistant_message import assistant_message
from stillhouse.inference.completion import Completion
from stillhouse.inference.error_body import classify, error_of
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.finish_reasons import UNSTATED, stop_of
from stillhouse.inference.sampling import ChatRequest
from stillhouse.inference.transport import HttpAnswer
from stillhouse.inference.usage import read_cost, read_tier, read_usage
from stillhouse.types import JsonObject, Message, StopReason, TokenUsage, ToolSchema, Turn

_LOG = logging.getLogger(__name__)
_SAID: Final = ("content", "tool_calls", "reasoning", "reasoning_content", "reasoning_details", "refusal", "sent_back")


def read_completion(body: JsonObject, answer: HttpAnswer, request: ChatRequest, model: str) -> Completion:
    """Return the completion in the body of an answer with HTTP 200.

    An empty message counts as an answer unless its usage contradicts it: a model may end its turn at once, and with a
    seed it would do so again. If tokens were sampled and none are there, the answer was lost on the way.

    `model` is used where the body does not name one. Raise RequestFailed if the body carries an error, has no message
    in it, or one that its endpoint broke off.
    """
    sampling = request.sampling
    choice = _first_choice(body, answer.headers)
    message = _message(choice, request.tools)
    usage = read_usage(body.get("usage"))
    finish_reason = str(choice.get("finish_reason") or _unstated(message, usage, sampling.max_tokens))
    stop = stop_of(finish_reason)
    if stop in (StopReason.ERROR, StopReason.MALFORMED):
        kind = FailureKind.MALFORMED if stop is StopReason.MALFORMED else FailureKind.TRANSIENT
        raise RequestFailed(
            Failure(kind, f"the endpoint ended the completion with finish_reason {finish_reason!r}", 200)
        )
    prompt_ids, completion_ids, logprobs = _tokens(body, choice) if sampling.record_tokens else (None, None, None)
    is_empty = not any(message.get(key) for key in _SAID) and completion_ids is None
    if is_empty and stop is StopReason.ANSWERED and _is_lost(usage):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, "the endpoint answered with an empty message", 200))
    turn = Turn(
        finish_reason=finish_reason,
        usage=usage,
        latency_s=answer.latency_s,
        model=_text(body.get("model")) or model,
        provider=_text(body.get("provider")),
        request_id=answer.headers.get("x-request-id") or _text(body.get("id")),
        cost_usd=read_cost(body.get("usage")),
        service_tier=read_tier(body),
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        sampling_logprobs=logprobs,
        top_logprobs=None if sampling.record_top_k is None else _top_logprobs(choice, sampling.record_top_k),
    )
    return Completion(message, turn)


def _first_choice(body: JsonObject, headers: Mapping[str, str]) -> JsonObject:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    error = error_of(body) or (error_of({"error": choice.get("error")}) if choice is not None else {})
    if error:
        code = str(error.get("code"))
        status = int(code) if code.isdecimal() and 400 <= int(code) < 600 else 200
        raise RequestFailed(classify(status, headers, {"error": error}, datetime.now(UTC)))
    if choice is None:
        message = f"the answer has no completion in it: {str(body)[:200]}"
        raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200))
    return choice


def _unstated(message: Message, usage: TokenUsage, max_tokens: int) -> str:
    """Return the finish reason of a completion whose endpoint gives none, as some local servers do of whole ones."""
    if usage.get("completion_tokens", 0) >= max_tokens:
        return "length"
    return "tool_calls" if message.get("tool_calls") else UNSTATED


def _is_lost(usage: TokenUsage) -> bool:
    """Return whether an empty message lacks sampled tokens other than the end of the turn and withheld reasoning."""
    num_sampled = usage.get("completion_tokens", 0)
    return num_sampled == 0 or num_sampled - usage.get("reasoning_tokens", 0) > 1


def _message(choice: JsonObject, tools: Sequence[ToolSchema]) -> Message:
    written = choice.get("message")
    if written is None and stop_of(str(choice.get("finish_reason") or UNSTATED)) is not StopReason.ANSWERED:
        # Gemini says why there is none.
        written = {}
    elif written is None and isinstance(choice.get("text"), str):
        # A server that completes texts alone.
        written = {"content": choice["text"]}
    if not isinstance(written, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer has no message: {str(choice)[:200]}", 200))
    message = assistant_message(written, tools)
    content: Any = message.get("content")
    if not isinstance(content, str | list | None):
        seen = f"the answer's content is {str(content)[:200]} of type {type(content).__name__}"
        raise RequestFailed(Failure(FailureKind.PERMANENT, f"{seen}, expected text or a list of parts", 200))
    return message


def _tokens(body: JsonObject, choice: JsonObject) -> tuple[list[int] | None, list[int] | None, list[float] | None]:
    """Return prompt ids, completion ids and log-probabilities; None for what the endpoint does not give.

    Ids stand where vLLM and this project's own server put them, log-probabilities where OpenAI does. Those that do not
    belong one to one to the ids are dropped: the completion is paid for, and the ids are right without them.
    """
    prompt_ids, completion_ids = _list(body.get("prompt_token_ids")), _list(choice.get("token_ids"))
    logprobs = _logprobs(choice.get("logprobs"))
    if completion_ids is not None and logprobs is not None and len(completion_ids) != len(logprobs):
        _LOG.warning(
            "an answer has %d token ids but %d log-probabilities, which are dropped", len(completion_ids), len(logprobs)
        )
        logprobs = None
    return prompt_ids, completion_ids, logprobs


def _logprobs(written: Any) -> list[float] | None:
    entries = _list(written.get("content")) if isinstance(written, dict) else None
    if entries is None:
        return None
    logprobs = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    values = [float(value) for value in logprobs if isinstance(value, int | float)]
    return values if len(values) == len(logprobs) else None


def _top_logprobs(choice: JsonObject, top_k: int) -> str | None:
    # Few collections need numpy, which takes a tenth of a second to import.
    from stillhouse.inference.top_tokens import read_top_tokens

    top = read_top_tokens(choice.get("logprobs"), top_k)
    return None if top is None else top.pack()


def _list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
