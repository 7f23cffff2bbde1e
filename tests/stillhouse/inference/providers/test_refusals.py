"""Errors as sellers send them: what each means, how long it asks to wait, and which limits it states."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import Failure
from stillhouse.inference.providers import provider_of
from stillhouse.inference.rate_limit.headers import Allowance, RateLimits, read_limits

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def openai(message: str, kind: str = "invalid_request_error", **rest: Any) -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": None, **rest}}


def anthropic(message: str, kind: str = "invalid_request_error") -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011CZLr"}


def gemini(quota: str, delay: str, message: str = "You exceeded your current quota, please check your plan") -> Any:
    violation = {"quotaMetric": "generativelanguage.googleapis.com/x", "quotaId": quota, "quotaValue": "20"}
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    return [{"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details}}]


def router(status: int, **metadata: Any) -> Any:
    return {"error": {"code": status, "message": "Provider returned error", "metadata": metadata}}


LIMITED = "Rate limit reached for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, Used 29000"


@pytest.mark.parametrize(
    ("status", "body", "kind", "wait_s"),
    [
        (400, anthropic("You have reached your specified API usage limits. You will regain access on 2026-04-01 at "
                        "00:00 UTC."), "quota", None),
        (400, anthropic("Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
                        "upgrade or purchase credits."), "quota", None),
        (402, anthropic("Your organization has no credit", "billing_error"), "quota", None),
        (429, anthropic("Extra usage is required for long context requests.", "rate_limit_error"), "quota", None),
        (429, anthropic("This request would exceed your account's rate limit. Please try again later.",
                        "rate_limit_error"), "rate", None),
        (529, anthropic("Overloaded", "overloaded_error"), "rate", None),
        (429, gemini("GenerateContentPaidTierInputTokensPerModelPerMinute", "47s"), "rate", 47.0),
        (429, gemini("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "36s"), "quota", None),
        (429, openai("Quota exceeded for quota metric 'Gemini 2.5 Pro Requests' and limit 'Gemini 2.5 Pro Requests per "
                     "day per user per tier'"), "quota", None),
        (400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
                          "status": "INVALID_ARGUMENT"}}], "auth", None),
        (429, openai(f"{LIMITED}. Please try again in 20s.", "tokens", code="rate_limit_exceeded"), "rate", 20.0),
        (429, openai(f"{LIMITED}. Please try again in 5.289s.", "tokens"), "rate", 5.289),
        (429, openai(f"{LIMITED}. Please try again in 1m2s.", "tokens"), "rate", 62.0),
        (429, openai(f"{LIMITED}. Please try again in 120ms.", "tokens"), "rate", 0.12),
        (429, {"error": {"code": "429", "message": "Requests to the API have exceeded the call rate limit of your "
                         "pricing tier. Please retry after 45 seconds."}}, "rate", 45.0),
        (429, {"error": {"code": "429", "message": "Please retry after 86400 seconds."}}, "quota", None),
        (429, openai("Resource Unavailable", code="resource_unavailable"), "busy", None),
        (498, openai("Flex tier capacity exceeded for this model", code="capacity_exceeded"), "busy", None),
        (400, openai("Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
                     code="invalid_prompt"), "content", None),
        (400, openai("Could not finish the message because max_tokens or model output limit was reached. Please try "
                     "again with higher max_tokens."), "length", None),
        (402, router(402, error_type="in_flight_budget_exhausted"), "rate", None),
        (402, router(402, error_type="insufficient_credits"), "quota", None),
        (429, router(429, raw="x is temporarily rate-limited upstream", limit_source="upstream_provider_shared_pool"),
         "busy", None),
        (429, {"error": {"code": 429, "message": "Rate limit exceeded: limit_rpd/google/gemini-2.5-pro"}}, "quota",
         None),
        (429, {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-day"}}, "quota", None),
        (429, openai("Monthly usage limit reached. Resets in 16 days. Retry after 16 days"), "quota", None),
        (429, {"object": "error", "message": "Service tier capacity exceeded for this model.",
               "type": "service_tier_capacity_exceeded", "param": None, "code": "3505"}, "rate", None),
        (412, {"error": {"message": "Account x is suspended, possibly due to reaching the monthly spending limit",
                         "code": "PRECONDITION_FAILED"}}, "quota", None),
        (400, openai("Failed to call a function.", code="tool_use_failed", failed_generation="requests per day"),
         "malformed", None),
    ],
)  # fmt: skip
def test_each_seller_is_understood(status: int, body: Any, kind: str, wait_s: float | None) -> None:
    failure = classify(status, {}, body, NOW)
    assert failure.kind == kind, failure
    if kind != "quota":
        assert failure.retry_after_s == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("status", "told", "kind"),
    [(503, "false", "permanent"), (400, "true", "transient"), (429, "false", "rate"), (400, "maybe", "permanent")],
)
def test_a_seller_may_say_itself_whether_to_try_again(status: int, told: str, kind: str) -> None:
    assert classify(status, {"x-should-retry": told}, openai("no"), NOW).kind == kind


def test_a_header_is_more_exact_than_the_text_and_hours_are_no_rate() -> None:
    def told(seconds: str) -> Failure:
        return classify(429, {"retry-after": seconds}, openai(f"{LIMITED}. Please try again in 20s."), NOW)

    assert told("21").retry_after_s == 21.0
    assert told("600").kind == "rate"
    assert (told("86400").kind, told("86400").message[-42:]) == ("quota", "(the endpoint asks to wait for 24.0 hours)")


MISTRAL = {
    "x-ratelimit-limit-req-minute": "360",
    "x-ratelimit-remaining-req-minute": "359",
    "x-ratelimit-limit-tokens-minute": "2000000",
    "x-ratelimit-remaining-tokens-minute": "1999000",
    "x-ratelimit-tokens-query-cost": "1000",
}
FIREWORKS = {"x-ratelimit-limit-tokens-prompt": "60000", "x-ratelimit-remaining-tokens-prompt": "59000"}
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "4000",
    "anthropic-ratelimit-requests-remaining": "3999",
    "anthropic-ratelimit-input-tokens-limit": "400000",
    "anthropic-ratelimit-input-tokens-remaining": "399000",
    "anthropic-ratelimit-output-tokens-limit": "80000",
    "anthropic-ratelimit-output-tokens-remaining": "80000",
}
AZURE = {"x-ratelimit-remaining-requests": "-1", "x-ratelimit-remaining-tokens": "0"}


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        (MISTRAL, RateLimits(Allowance(360, 359), Allowance(2_000_000, 1_999_000))),
        (FIREWORKS, RateLimits(None, Allowance(60_000, 59_000))),
        (ANTHROPIC, RateLimits(Allowance(4000, 3999), Allowance(400_000, 399_000))),
        (AZURE, RateLimits(None, Allowance(None, 0))),
    ],
)
def test_limits_are_read_in_each_sellers_headers(headers: dict[str, str], limits: RateLimits) -> None:
    assert read_limits(headers, NOW) == limits


def test_requests_of_a_day_at_groq_are_no_rate() -> None:
    stated = RateLimits(Allowance(14_400, 14_399), Allowance(6000, 5900))
    groq, other = (provider_of(Endpoint(url, "m", "m")) for url in ("https://api.groq.com/openai/v1", "http://h/v1"))
    assert groq.limits(stated) == RateLimits(None, Allowance(6000, 5900))
    assert other.limits(stated) == stated
    assert groq.limits(None) is None
