from datetime import UTC, datetime
from typing import Any

import pytest

from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import FailureKind

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def body(message: str = "no", **error: Any) -> dict[str, Any]:
    return {"error": {"message": message, **error}}


@pytest.mark.parametrize(
    ("status", "answer", "kind"),
    [
        (429, body(code="rate_limit_exceeded"), "rate"),
        (503, body(status="RESOURCE_EXHAUSTED"), "rate"),
        (503, body(), "transient"),
        (500, "<html>oops</html>", "transient"),
        (502, "", "transient"),
        (408, body(), "transient"),
        (200, body("Provider returned error"), "transient"),
        (429, body(code="insufficient_quota"), "quota"),
        (402, body("Insufficient credits", code=402), "quota"),
        (429, body("Rate limit reached on requests per day (RPD): Limit 200, Used 200"), "quota"),
        (429, body("Rate limit reached on tokens per day (TPD): Limit 9, Used 9"), "quota"),
        (401, body(code="invalid_api_key"), "auth"),
        (403, body("country not supported"), "auth"),
        (403, body("flagged", metadata={"reasons": ["violence"]}), "content"),
        (400, body(code="content_filter"), "content"),
        (400, body(code="content_policy_violation"), "content"),
        (400, body("no", code="data_inspection_failed"), "content"),
        (400, body("Content Exists Risk", code="invalid_request_error"), "content"),
        (400, body("<400> InternalError.Algo.DataInspectionFailed: Input text data may contain it."), "content"),
        (400, body(innererror={"code": "ResponsibleAIPolicyViolation"}), "content"),
        (400, body(code="1301"), "content"),
        (400, body("litellm.ContentPolicyViolationError: AzureException", code="400"), "content"),
        (200, body("Error code: 400 - triggering Azure OpenAI's content management policy"), "content"),
        (502, body("This content was flagged for possible cybersecurity risk", code=502), "content"),
        (403, body("Your paid balance is insufficient. Please top up and try again.", code=30011), "quota"),
        (422, body("input new_sensitive (1026)"), "content"),
        (200, {"base_resp": {"status_code": 1027, "status_msg": "output new_sensitive"}}, "content"),
        (200, {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, "rate"),
        (200, {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, "quota"),
        (200, {"base_resp": {"status_code": 2049, "status_msg": "invalid api key"}}, "auth"),
        (200, {"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}, "transient"),
        (200, {"detail": "Model overloaded"}, "transient"),
        (429, body("Insufficient balance or no resource package", code="1113"), "quota"),
        (429, body("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389"), "permanent"),
        (
            413,
            body("Request too large for model `x` on tokens per minute (TPM)", code="rate_limit_exceeded"),
            "permanent",
        ),
        (400, body("The model is overloaded. Please try again later."), "transient"),
        (400, body("Failed to generate JSON.", code="json_validate_failed"), "malformed"),
        (400, body("unsupported parameter"), "permanent"),
        (404, body(code="model_not_found"), "permanent"),
        (422, {"message": "bad field", "object": "error"}, "permanent"),
    ],
)
def test_kind_follows_status_and_type(status: int, answer: Any, kind: str) -> None:
    failure = classify(status, {}, answer, NOW)
    assert failure.kind is FailureKind(kind)
    assert failure.status == status
    assert failure.message.startswith(f"HTTP {status}: ")
    assert not failure.context_overflow


@pytest.mark.parametrize("status", [400, 413, 422, 500])
@pytest.mark.parametrize(
    "answer",
    [
        body(code="context_length_exceeded"),
        body("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens"),
        {"object": "error", "message": "This model's maximum context length is 4096", "code": 400},
        [body("The input token count (5000) exceeds the maximum number of tokens allowed (4096).", code=400)],
        {"detail": "Prompt exceeds max length"},
        body("Provider returned error", metadata={"raw": '{"message": "Input length 9 exceeds the maximum length 8"}'}),
    ],
)
def test_a_context_that_is_too_long_is_told_from_other_bad_requests(status: int, answer: Any) -> None:
    failure = classify(status, {}, answer, NOW)
    assert failure.kind is FailureKind.PERMANENT
    assert failure.context_overflow


def test_what_an_upstream_provider_said_is_kept() -> None:
    answer = body("Provider returned error", metadata={"raw": "upstream is down", "provider_name": "X"})
    assert "upstream is down" in classify(502, {}, answer, NOW).message
    written = body("Failed to call a function.", code="tool_use_failed", failed_generation="<function=f>{}")
    assert "<function=f>{}" in classify(400, {}, written, NOW).message


def test_a_failure_becomes_a_record() -> None:
    assert classify(500, {}, "oops", NOW).record() == {"kind": "transient", "message": "HTTP 500: oops", "status": 500}


@pytest.mark.parametrize(
    ("answer", "headers", "scope"),
    [
        (body("Rate limit reached for m on requests per min (RPM): Limit 3, Used 3"), {}, "requests"),
        (body("Rate limit reached for m on tokens per min (TPM): Limit 9, Used 9"), {}, "tokens"),
        (body("slow", type="tokens_per_minute_exceeded"), {}, "tokens"),
        (body("too many requests at once", code="rate_limit_exceeded"), {}, "concurrency"),
        (body("Too many concurrent requests"), {}, "concurrency"),
        (body("Overloaded", type="overloaded_error"), {}, "concurrency"),
        (body("slow down"), {"x-ratelimit-limit-requests": "9", "x-ratelimit-remaining-requests": "0"}, "requests"),
        (body("slow down"), {"x-ratelimit-limit-tokens": "9", "x-ratelimit-remaining-tokens": "0"}, "tokens"),
        (body("slow down"), {}, None),
    ],
)
def test_a_refusal_tells_what_there_was_too_much_of(answer: Any, headers: dict[str, str], scope: str | None) -> None:
    assert classify(429, headers, answer, NOW).scope == scope
