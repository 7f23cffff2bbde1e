"""The body of a chat completion request, and where providers want the same thing said differently."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from stillhouse.inference.completion import Sampling
from stillhouse.inference.endpoint import Endpoint
from stillhouse.types import JsonObject, Message, ToolSchema


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
    if openrouter:
        # Without it OpenRouter does not say what a request cost.
        body["usage"] = {"include": True}
    return body | sampling.extra_body
