"""Tokens and cost of a completion, which providers report under many names.

    prompt_tokens      OpenAI's form, nearly everybody's; Anthropic's `input_tokens` leaves out cache reads and writes
    completion_tokens  the same; Anthropic's `output_tokens`
    reasoning_tokens   `completion_tokens_details.reasoning_tokens`; at the top with some that serve many models
    cached_tokens      `prompt_tokens_details.cached_tokens` (OpenAI, OpenRouter, vLLM); `prompt_cache_hit_tokens`
                       (DeepSeek); `cached_tokens` (Moonshot); `cache_read_input_tokens` (Anthropic)
    cost               `cost` (OpenRouter); no other reports it

What is not reported is left out: unknown is not zero.
"""

from typing import Any

from stillhouse.types import JsonObject, TokenUsage


def read_usage(written: Any) -> TokenUsage:
    """The `usage` of an answer in this project's terms; empty where there is none."""
    usage: TokenUsage = {}
    if not isinstance(written, dict):
        return usage
    if (prompt := _prompt_tokens(written)) is not None:
        usage["prompt_tokens"] = prompt
    if (completion := _first(written, "completion_tokens", "output_tokens")) is not None:
        usage["completion_tokens"] = completion
    if (reasoning := _reasoning_tokens(written)) is not None:
        usage["reasoning_tokens"] = reasoning
    if (cached := _cached_tokens(written)) is not None:
        usage["cached_tokens"] = cached
    return usage


def read_cost(written: Any) -> float | None:
    """The reported cost in USD; None if there is none."""
    cost = written.get("cost") if isinstance(written, dict) else None
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def _prompt_tokens(written: JsonObject) -> int | None:
    count = _first(written, "prompt_tokens")
    if count is not None or (uncached := _first(written, "input_tokens")) is None:
        return count
    return uncached + sum(
        _first(written, key) or 0 for key in ("cache_read_input_tokens", "cache_creation_input_tokens")
    )


def _reasoning_tokens(written: JsonObject) -> int | None:
    details = written.get("completion_tokens_details")
    count = _first(details, "reasoning_tokens") if isinstance(details, dict) else None
    return _first(written, "reasoning_tokens") if count is None else count


def _cached_tokens(written: JsonObject) -> int | None:
    details = written.get("prompt_tokens_details")
    count = _first(details, "cached_tokens") if isinstance(details, dict) else None
    if count is not None:
        return count
    return _first(written, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")


def _first(written: JsonObject, *keys: str) -> int | None:
    for key in keys:
        # `true` is an int to Python.
        if type(value := written.get(key)) is int and value >= 0:
            return value
    return None
