"""One completion as the engine handles it, read from an endpoint's answer or from the journal."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from stillhouse.rollouts.failures import Failure, FailureKind, RequestFailed, classify, error_of
from stillhouse.types import JsonObject, Message, TokenUsage, Turn


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is sampled."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int | None
    record_tokens: bool = False
    """Ask for token ids and log-probabilities."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model said in one turn, and the facts of it."""

    message: Message
    """As the endpoint wrote it, less the keys whose value is null."""
    turn: Turn


def encode_completion(completion: Completion) -> bytes:
    """The completion as the journal keeps it."""
    return orjson.dumps(completion)


def decode_completion(body: bytes) -> Completion:
    """The completion that `encode_completion` wrote, equal in every field."""
    row = orjson.loads(body)
    return Completion(row["message"], Turn(**row["turn"]))


def read_completion(
    content: bytes, headers: dict[str, str], *, latency_s: float, model: str, record_tokens: bool
) -> Completion:
    """The completion in the body of an answer with HTTP 200.

    An empty message counts as an answer where the endpoint says that tokens were sampled for it: a model may end its
    turn at once, and with a seed it would do so again. Where none were, the answer was lost on the way.

    Args:
        content: the body.
        headers: names in lower case.
        latency_s: seconds from sending to the last byte.
        model: the model asked for, where the body does not name one.
        record_tokens: whether token ids were asked for.

    Raises:
        RequestFailed: the body is cut, carries an error, or has no message in it.
    """
    body = _parse(content)
    choice = _first_choice(body, headers)
    message = _message(choice)
    usage = _usage(body.get("usage"))
    calls = message.get("tool_calls")
    empty = not (message.get("content") or calls or message.get("reasoning_content") or message.get("reasoning"))
    if empty and not usage.get("completion_tokens"):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, "the endpoint answered with an empty message", 200))
    prompt_ids, completion_ids, logprobs = _tokens(body, choice) if record_tokens else (None, None, None)
    turn = Turn(
        finish_reason=choice.get("finish_reason") or ("tool_calls" if calls else "unknown"),
        usage=usage,
        latency_s=latency_s,
        model=body.get("model") or model,
        provider=body.get("provider"),
        request_id=headers.get("x-request-id") or body.get("id"),
        cost_usd=_cost(body.get("usage")),
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        sampling_logprobs=logprobs,
    )
    return Completion(message, turn)


def _parse(content: bytes) -> JsonObject:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        # A completion cut inside a character carries half of a surrogate pair, which orjson refuses.
        try:
            body = _whole_characters(json.loads(content))
        except ValueError as error:
            told = f"the answer is not valid JSON: {error}; it ends with {content[-80:]!r}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, told, 200)) from error
    if not isinstance(body, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer is not a JSON object: {content[:80]!r}", 200))
    return body


def _whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


def _first_choice(body: JsonObject, headers: dict[str, str]) -> JsonObject:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    error = error_of(body) or (error_of({"error": choice.get("error")}) if choice is not None else {})
    if error:
        code = str(error.get("code"))
        status = int(code) if code.isdecimal() and 400 <= int(code) < 600 else 200
        raise RequestFailed(classify(status, headers, {"error": error}, datetime.now(UTC)))
    if choice is None or choice.get("finish_reason") == "error":
        told = f"the answer has no completion in it: {str(body)[:200]}"
        raise RequestFailed(Failure(FailureKind.TRANSIENT, told, 200))
    return choice


def _message(choice: JsonObject) -> Message:
    written = choice.get("message")
    if not isinstance(written, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer has no message: {str(choice)[:200]}", 200))
    message = {key: value for key, value in written.items() if value is not None}
    if not message.get("tool_calls"):
        # vLLM writes an empty list where there is no call, and OpenAI refuses to be sent one.
        message.pop("tool_calls", None)
    return {**message, "role": "assistant"}


def _usage(written: Any) -> TokenUsage:
    usage: TokenUsage = {}
    if not isinstance(written, dict):
        return usage
    prompt_details = written.get("prompt_tokens_details") or {}
    completion_details = written.get("completion_tokens_details") or {}
    if isinstance(value := written.get("prompt_tokens"), int):
        usage["prompt_tokens"] = value
    if isinstance(value := written.get("completion_tokens"), int):
        usage["completion_tokens"] = value
    if isinstance(value := completion_details.get("reasoning_tokens"), int):
        usage["reasoning_tokens"] = value
    if isinstance(value := prompt_details.get("cached_tokens"), int):
        usage["cached_tokens"] = value
    return usage


def _cost(usage: Any) -> float | None:
    """OpenRouter tells what a request cost; others do not."""
    cost = usage.get("cost") if isinstance(usage, dict) else None
    return float(cost) if isinstance(cost, int | float) else None


def _tokens(body: JsonObject, choice: JsonObject) -> tuple[list[int] | None, list[int] | None, list[float] | None]:
    """Prompt ids, completion ids and log-probabilities in vLLM's places; None for what the endpoint does not give."""
    completion_ids = choice.get("token_ids")
    entries = (choice.get("logprobs") or {}).get("content")
    logprobs = [float(entry["logprob"]) for entry in entries] if entries is not None else None
    if completion_ids is not None and logprobs is not None and len(completion_ids) != len(logprobs):
        told = f"the answer has {len(completion_ids)} token ids but {len(logprobs)} log-probabilities; expected as many"
        raise RequestFailed(Failure(FailureKind.PERMANENT, told, 200))
    return body.get("prompt_token_ids"), completion_ids, logprobs
