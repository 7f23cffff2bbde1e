"""Groq's API."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import HostedProvider
from stillhouse.inference.rate_limit.headers import RateLimits
from stillhouse.inference.schema_forms import CLOSED, SchemaForm
from stillhouse.sellers import GROQ, Seller


class Groq(HostedProvider):
    """https://console.groq.com/docs/api-reference."""

    seller: ClassVar[Seller] = GROQ
    token_limit: ClassVar[str] = "max_completion_tokens"
    answer_form: ClassVar[SchemaForm | None] = CLOSED
    codes: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.MALFORMED: "tool_use_failed json_validate_failed output_parse_failed",
    }
    overflow: ClassVar[str] = r"reduce the length of the (messages|prompt)"

    def limits(self, stated: RateLimits | None) -> RateLimits | None:
        """Return the tokens of a minute; requests are those of a day (https://console.groq.com/docs/rate-limits)."""
        return None if stated is None else replace(stated, requests=None)
