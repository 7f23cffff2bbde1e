"""Tokens and cost of a completion, which providers report under many names.

    prompt_tokens      OpenAI's form, nearly everybody's; Anthropic's `input_tokens` leaves out cache reads and writes
    completion_tokens  the same; Anthropic's `output_tokens`
    reasoning_tokens   `completion_tokens_details.reasoning_tokens`; at the top with some that serve many models
    cached_tokens      `prompt_tokens_details.cached_tokens` (OpenAI, OpenRouter, vLLM); `prompt_cache_hit_tokens`
                       (DeepSeek); `cached_tokens` (Moonshot); `cache_read_input_tokens` (Anthropic)
    cost               `cost` (OpenRouter); no other reports it

What is not reported is left out: unknown is not zero.
"""

from typing import Any, cast

from stillhouse.types import TokenUsage


def read_usage(written: Any) -> TokenUsage:
    """Return the `usage` of an answer in this project's terms; empty where there is none."""
    if not isinstance(written, dict):
        return {}
    prompt = _first([written], "prompt_tokens")
    if prompt is None and (uncached := _first([written], "input_tokens")) is not None:
        kept_apart = ("cache_read_input_tokens", "cache_creation_input_tokens")
        prompt = uncached + sum(_first([written], key) or 0 for key in kept_apart)
    cache_keys = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": _first([written], "completion_tokens", "output_tokens"),
        "reasoning_tokens": _first([written.get("completion_tokens_details"), written], "reasoning_tokens"),
        "cached_tokens": _first([written.get("prompt_tokens_details"), written], *cache_keys),
    }
    return cast(TokenUsage, {name: count for name, count in counts.items() if count is not None})


def read_cost(written: Any) -> float | None:
    """Return the reported cost in USD; None if there is none."""
    cost = written.get("cost") if isinstance(written, dict) else None
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def _first(places: list[Any], *keys: str) -> int | None:
    found = (place.get(key) for place in places if isinstance(place, dict) for key in keys)
    # `true` is an int to Python.
    return next((value for value in found if type(value) is int and value >= 0), None)
