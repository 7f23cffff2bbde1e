"""One completion: the body of its request, and the answer as it is read from the endpoint or the journal."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import orjson

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed, classify, error_of
from stillhouse.inference.rate_limit.headers import RateLimits
from stillhouse.inference.usage import read_cost, read_usage
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message, TokenUsage, ToolSchema, Turn

_LOG = logging.getLogger(__name__)
_SAID: Final = ("content", "tool_calls", "reasoning", "reasoning_content", "reasoning_details", "refusal")
CUT_REASONS: Final = frozenset({"length", "max_tokens", "model_length"})
"""Finish reasons of a completion that reached its bound; the last two are Anthropic's and Mistral's."""
WITHHELD_REASONS: Final = ("content_filter", "safety")
"""Beginnings of finish reasons of a provider's filter; Gemini adds which one."""

ToolChoice = Literal["auto", "none"]


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float
    top_p: float
    max_tokens: int
    seed: int | None
    record_tokens: bool = False
    record_top_k: int | None = None
    """Most probable tokens to ask for at each sampled one; None asks for none."""
    tool_choice: ToolChoice = "auto"
    """`none` shows the tools and forbids to call them."""
    response_schema: JsonObject | None = None
    """JSON schema of the answer; None takes any text."""
    reasoning_effort: str | None = None
    """One of `rollouts.reasoning_effort`; None leaves it to the endpoint."""
    extra_body: JsonObject = field(default_factory=dict)
    """Further keys of the request, which win over all others."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model said in one turn, and the facts of it."""

    message: Message
    """As the endpoint wrote it, less the keys whose value is null."""
    turn: Turn
    limits: RateLimits | None = None
    """What the headers said of the endpoint's limits; true for a moment, so no journal keeps it."""


def encode_completion(completion: Completion) -> bytes:
    """The completion as the journal keeps it."""
    return exact_json.dumps({"message": completion.message, "turn": completion.turn})


def decode_completion(body: bytes) -> Completion:
    """The completion that `encode_completion` wrote, equal in every field but `limits`."""
    row = exact_json.loads(body)
    return Completion(row["message"], Turn(**row["turn"]))


def read_completion(
    content: bytes,
    headers: Mapping[str, str],
    *,
    latency_s: float,
    model: str,
    record_tokens: bool,
    record_top_k: int | None = None,
) -> Completion:
    """The completion in the body of an answer with HTTP 200.

    An empty message counts as an answer unless its usage contradicts it: a model may end its turn at once, and with a
    seed it would do so again. If tokens were sampled and none are there, the answer was lost on the way.

    `headers` are looked up by names in lower case; `model` is used where the body does not name one.

    Raises:
        RequestFailed: the body is cut, carries an error, or has no message in it.
    """
    body = _parse(content)
    choice = _first_choice(body, headers)
    message = _message(choice)
    usage = read_usage(body.get("usage"))
    prompt_ids, completion_ids, logprobs = _tokens(body, choice) if record_tokens else (None, None, None)
    if not any(message.get(key) for key in _SAID) and completion_ids is None and _is_lost(choice, usage):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, "the endpoint answered with an empty message", 200))
    turn = Turn(
        finish_reason=_text(choice.get("finish_reason")) or ("tool_calls" if message.get("tool_calls") else "unknown"),
        usage=usage,
        latency_s=latency_s,
        model=_text(body.get("model")) or model,
        provider=_text(body.get("provider")),
        request_id=headers.get("x-request-id") or _text(body.get("id")),
        cost_usd=read_cost(body.get("usage")),
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        sampling_logprobs=logprobs,
        top_logprobs=None if record_top_k is None else _top_logprobs(choice, record_top_k),
    )
    return Completion(message, turn)


def _parse(content: bytes) -> JsonObject:
    try:
        body = exact_json.loads(content)
    except orjson.JSONDecodeError:
        # A completion cut inside a character carries half of a surrogate pair, which orjson refuses.
        try:
            # Given bytes, json would take UTF-16 as well, in which keys are not looked for.
            body = _repaired(json.loads(content.decode("utf-8", "surrogatepass")))
        except ValueError as error:
            message = f"the answer is not valid JSON: {error}; it ends with {content[-80:]!r}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200)) from error
    if not isinstance(body, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer is not a JSON object: {content[:80]!r}", 200))
    return body


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return {_repaired(key): _repaired(item) for key, item in value.items()}
    return value


def _first_choice(body: JsonObject, headers: Mapping[str, str]) -> JsonObject:
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    error = error_of(body) or (error_of({"error": choice.get("error")}) if choice is not None else {})
    if error:
        code = str(error.get("code"))
        status = int(code) if code.isdecimal() and 400 <= int(code) < 600 else 200
        raise RequestFailed(classify(status, headers, {"error": error}, datetime.now(UTC)))
    if choice is None or choice.get("finish_reason") == "error":
        message = f"the answer has no completion in it: {str(body)[:200]}"
        raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200))
    return choice


def _is_lost(choice: JsonObject, usage: TokenUsage) -> bool:
    """Whether an empty message lacks sampled tokens other than the end of the turn and withheld reasoning."""
    reason = str(choice.get("finish_reason"))
    if reason in CUT_REASONS or reason.startswith(WITHHELD_REASONS):
        return False
    num_sampled = usage.get("completion_tokens", 0)
    return num_sampled == 0 or num_sampled - usage.get("reasoning_tokens", 0) > 1


def _message(choice: JsonObject) -> Message:
    written = choice.get("message")
    if not isinstance(written, dict):
        raise RequestFailed(Failure(FailureKind.TRANSIENT, f"the answer has no message: {str(choice)[:200]}", 200))
    message = {key: value for key, value in written.items() if value is not None}
    if not message.get("tool_calls"):
        # vLLM writes an empty list where there is no call, and OpenAI refuses to be sent one.
        message.pop("tool_calls", None)
    return {**message, "role": "assistant"}


def _tokens(body: JsonObject, choice: JsonObject) -> tuple[list[int] | None, list[int] | None, list[float] | None]:
    """Prompt ids, completion ids and log-probabilities; None for what the endpoint does not give.

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


def explain_refusal(failure: Failure, sampling: Sampling) -> Failure:
    """The failure, with what to do where the endpoint refuses to give log-probabilities."""
    if sampling.record_top_k is None or failure.kind is not FailureKind.PERMANENT or "logprob" not in failure.message:
        return failure
    return replace(
        failure,
        message=f"{failure.message}. The endpoint refuses rollouts.record_top_k {sampling.record_top_k}: lower it "
        "(OpenAI gives 20, vLLM what its --max-logprobs says), or leave it out where a model gives none, as those that "
        "reason at OpenAI",
    )


class ChatClient(Protocol):
    """Asks an endpoint for one completion."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """The completion of one attempt.

        Raises:
            RequestFailed: there is none; the failure says why and whether to try again.
        """

    async def aclose(self) -> None:
        """Closes the connections."""


def request_body(
    endpoint: Endpoint, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
) -> JsonObject:
    """What is sent for one completion, in OpenAI's form; keys that are not needed are left out.

    `sampling.extra_body` has the last word, key by key.
    """
    host = urlsplit(endpoint.base_url).hostname or ""
    openai, openrouter = host.endswith("openai.com"), host.endswith("openrouter.ai")
    body: JsonObject = {
        "model": endpoint.model,
        "messages": messages,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # Newer models of OpenAI refuse `max_tokens`; most other endpoints know nothing else.
        "max_completion_tokens" if openai else "max_tokens": sampling.max_tokens,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if tools:
        body["tools"] = tools
        if sampling.tool_choice != "auto":
            body["tool_choice"] = sampling.tool_choice
    if sampling.reasoning_effort is not None:
        body |= (
            {"reasoning": {"effort": sampling.reasoning_effort}}
            if openrouter
            else {"reasoning_effort": sampling.reasoning_effort}
        )
    if sampling.response_schema is not None:
        described = {"name": "answer", "strict": True, "schema": sampling.response_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": described}
    if sampling.record_tokens:
        body["logprobs"] = True
        if not openai:
            # vLLM's key, and this project's own server's; OpenAI refuses keys it does not know.
            body["return_token_ids"] = True
    if sampling.record_top_k is not None:
        body |= {"logprobs": True, "top_logprobs": sampling.record_top_k}
        if not openai:
            # vLLM's key likewise: tokens as ids, since the texts of parts of characters are all alike.
            body["return_tokens_as_token_ids"] = True
        if endpoint.is_local:
            # This project's own server gives them under the sampling temperature, unless it is asked otherwise.
            body["raw_logprobs"] = True
    if openrouter:
        # Without it OpenRouter does not say what a request cost.
        body["usage"] = {"include": True}
    return body | sampling.extra_body
