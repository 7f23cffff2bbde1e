"""Tokens and cost of a completion, which providers report under many names.

    prompt_tokens      OpenAI's form, nearly everybody's; `input_tokens` of its Responses API, and of Anthropic's, which
                       leaves out what was read from and written to the cache
    completion_tokens  the same; `output_tokens`; without the reasoning, which only the total has, with Gemini and xAI
    reasoning_tokens   in the details of the completion; at the top with some that serve many models
    cached_tokens      in the details of the prompt (OpenAI, OpenRouter, vLLM); `prompt_cache_hit_tokens` (DeepSeek);
                       `cached_tokens` (Moonshot); `cache_read_input_tokens` (Anthropic)
    cache_write_tokens in the details of the prompt (OpenAI, OpenRouter); `cache_creation_input_tokens` (Anthropic)
    cost               `cost` (OpenRouter; of an own key, its upstream's on top); `cost.total_cost` (Perplexity);
                       `cost_in_usd_ticks` (xAI)

What is not reported is left out: unknown is not zero.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from stillhouse.types import JsonObject, TokenUsage

_CACHED: Final = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
_WRITTEN: Final = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
_TICKS_PER_USD: Final = 10**10
"""https://docs.x.ai/docs/guides/cost-tracking"""
_TIERS: Final = {"standard": "default", "on_demand": "default", "auto": None}
"""Other sellers' words for tiers that have OpenAI's."""


class Parts(NamedTuple):
    """Tokens of one completion, each counted once."""

    plain: int
    cached: int
    written: int
    written_long: int
    text: int
    reasoning: int

    @property
    def prompt(self) -> int:
        return self.plain + self.cached + self.written + self.written_long


def parts_of(usage: TokenUsage) -> Parts | None:
    """Return the usage in disjoint parts; None if it is unknown, or counts what no price here is for."""
    if "prompt_tokens" not in usage or "completion_tokens" not in usage or usage.get("unpriced_units"):
        return None
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    written = min(usage.get("cache_write_tokens", 0), prompt)
    written_long = min(usage.get("cache_write_long_tokens", 0), written)
    cached = min(usage.get("cached_tokens", 0), prompt - written)
    reasoning = min(usage.get("reasoning_tokens", 0), completion)
    plain = prompt - written - cached
    return Parts(plain, cached, written - written_long, written_long, completion - reasoning, reasoning)


def read_usage(written: Any) -> TokenUsage:
    """Return the `usage` of an answer in this project's terms; empty where there is none."""
    if not isinstance(written, dict):
        return {}
    in_prompt = _part(written, "prompt_tokens_details", "input_tokens_details")
    in_completion = _part(written, "completion_tokens_details", "output_tokens_details")
    lifetimes = [_part(written, "cache_creation"), _part(in_prompt, "cache_write_tokens_details")]
    completion, reasoning = _output(written, in_completion)
    counts = {
        "prompt_tokens": _prompt(written),
        "completion_tokens": completion,
        "reasoning_tokens": reasoning,
        "cached_tokens": _first([in_prompt, written], *_CACHED),
        "cache_write_tokens": _first([in_prompt, written], *_WRITTEN) or None,
        "cache_write_long_tokens": _first(lifetimes, "ephemeral_1h_input_tokens", "ttl_12h_tokens") or None,
        "unpriced_units": _unpriced(written, in_prompt, in_completion) or None,
    }
    return cast(TokenUsage, {name: count for name, count in counts.items() if count is not None})


def read_cost(written: Any) -> float | None:
    """Return the reported cost in USD; None if there is none."""
    if not isinstance(written, dict):
        return None
    cost = _amount(_part(written, "cost").get("total_cost", written.get("cost")))
    if cost is None:
        ticks = _first([written], "cost_in_usd_ticks")
        return None if ticks is None else ticks / _TICKS_PER_USD
    upstream = _part(written, "cost_details").get("upstream_inference_cost") if written.get("is_byok") else None
    return cost + (_amount(upstream) or 0.0)


def read_tier(body: Any) -> str | None:
    """Return the service tier that an answer was charged by, in OpenAI's words; None if it names none.

    A speed or a region that Anthropic charges more for is part of it: `default in us`.
    """
    if not isinstance(body, dict):
        return None
    usage = _part(body, "usage")
    words = (place.get("service_tier") for place in (body, usage))
    tier = next((word for word in words if isinstance(word, str)), None)
    tier = "fast" if usage.get("speed") == "fast" else _TIERS.get(tier or "", tier)
    region = usage.get("inference_geo")
    return f"{tier or 'default'} in {region}" if region not in (None, "global", "not_available") else tier


def _prompt(written: JsonObject) -> int | None:
    prompt = _first([written], "prompt_tokens", "input_tokens")
    if prompt is None or "prompt_tokens" in written or "input_tokens_details" in written:
        return prompt
    return prompt + sum(_first([written], key) or 0 for key in ("cache_read_input_tokens", _WRITTEN[-1]))


def _output(written: JsonObject, details: JsonObject) -> tuple[int | None, int | None]:
    """Return the tokens of the completion with its reasoning, and of the reasoning."""
    completion = _first([written], "completion_tokens", "output_tokens")
    reasoning = _first([details, written], "reasoning_tokens")
    total = _first([written], "total_tokens")
    unseen = (total or 0) - (_prompt(written) or 0) - (completion or 0)
    if completion is not None and unseen > 0 and unseen == (reasoning or unseen):
        return completion + unseen, unseen
    return completion, reasoning


def _unpriced(written: JsonObject, in_prompt: JsonObject, in_completion: JsonObject) -> int:
    calls = _part(written, "server_tool_use")
    places = ((in_prompt, "audio_tokens"), (in_completion, "audio_tokens"), (in_completion, "image_tokens"))
    return sum(_first([place], key) or 0 for place, key in (*places, *((calls, key) for key in calls)))


def _part(place: JsonObject, *names: str) -> JsonObject:
    return next((part for name in names if isinstance(part := place.get(name), dict)), {})


def _first(places: Sequence[JsonObject], *keys: str) -> int | None:
    found = (place.get(key) for place in places for key in keys)
    # `true` is an int to Python.
    return next((value for value in found if type(value) is int and value >= 0), None)


def _amount(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
