"""Groq's API: https://console.groq.com/docs/api-reference; limits: https://console.groq.com/docs/rate-limits."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import OVERFLOW, Provider
from stillhouse.inference.schema_forms import CLOSED
from stillhouse.sellers import GROQ as SELLER

GROQ: Final = Provider(
    SELLER,
    token_limit="max_completion_tokens",
    limits_requests_by_day=True,
    answer_form=CLOSED,
    codes={FailureKind.MALFORMED: "tool_use_failed json_validate_failed output_parse_failed"},
    wordings={OVERFLOW: r"reduce the length of the (messages|prompt)"},
)
