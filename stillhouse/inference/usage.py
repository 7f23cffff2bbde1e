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

from stillhouse.types import TokenUsage


def read_usage(written: Any) -> TokenUsage:
    """The `usage` of an answer in this project's terms; empty where there is none."""
    if not isinstance(written, dict):
        return {}
    prompt = _first(written, "prompt_tokens")
    if prompt is None and (uncached := _first(written, "input_tokens")) is not None:
        cache_keys = ("cache_read_input_tokens", "cache_creation_input_tokens")
        prompt = uncached + sum(_first(written, key) or 0 for key in cache_keys)
    reasoning = _first(written.get("completion_tokens_details"), "reasoning_tokens")
    if reasoning is None:
        reasoning = _first(written, "reasoning_tokens")
    cached = _first(written.get("prompt_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _first(written, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    usage: TokenUsage = {}
    if prompt is not None:
        usage["prompt_tokens"] = prompt
    if (completion := _first(written, "completion_tokens", "output_tokens")) is not None:
        usage["completion_tokens"] = completion
    if reasoning is not None:
        usage["reasoning_tokens"] = reasoning
    if cached is not None:
        usage["cached_tokens"] = cached
    return usage


def read_cost(written: Any) -> float | None:
    """The reported cost in USD; None if there is none."""
    cost = written.get("cost") if isinstance(written, dict) else None
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def _first(written: Any, *keys: str) -> int | None:
    for key in keys if isinstance(written, dict) else ():
        # `true` is an int to Python.
        if type(value := written.get(key)) is int and value >= 0:
            return value
    return None
