"""The request for one completion: what is sampled, and the body that asks for it in OpenAI's form."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind
from stillhouse.inference.resending import resent
from stillhouse.types import JsonObject, Message, ToolSchema

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


def request_body(
    endpoint: Endpoint,
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
    sampling: Sampling,
    refused: Set[str] = frozenset(),
) -> JsonObject:
    """Return what is sent for one completion, in OpenAI's form; keys that are not needed are left out.

    `refused` are keys of messages that the endpoint does not take. `sampling.extra_body` has the last word, key by key.
    """
    host = urlsplit(endpoint.base_url).hostname or ""
    openai, openrouter = host.endswith("openai.com"), host.endswith("openrouter.ai")
    body: JsonObject = {
        "model": endpoint.model,
        "messages": resent(messages, refused),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # Newer models of OpenAI refuse `max_tokens`; most other endpoints know nothing else.
        "max_completion_tokens" if openai else "max_tokens": sampling.max_tokens,
    }
    if endpoint.service_tier is not None:
        body["service_tier"] = endpoint.service_tier
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
    # This project's own server samples freely; answers are checked here in any case.
    if sampling.response_schema is not None and not endpoint.is_local:
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


def explain_refusal(failure: Failure, sampling: Sampling) -> Failure:
    """Return the failure, with what to do where the endpoint refuses to give log-probabilities."""
    if sampling.record_top_k is None or failure.kind is not FailureKind.PERMANENT or "logprob" not in failure.message:
        return failure
    return replace(
        failure,
        message=f"{failure.message}. The endpoint refuses rollouts.record_top_k {sampling.record_top_k}: lower it "
        "(OpenAI gives 20, vLLM what its --max-logprobs says), or leave it out where a model gives none, as those that "
        "reason at OpenAI",
    )
