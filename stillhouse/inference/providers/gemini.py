"""Gemini in OpenAI's form; limits stand in its errors alone: https://ai.google.dev/gemini-api/docs/openai."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider
from stillhouse.sellers import GEMINI as SELLER

GEMINI: Final = Provider(
    SELLER,
    codes={FailureKind.RATE: "RESOURCE_EXHAUSTED"},
    wordings={
        # In the id of the quota, even where the message asks for a retry within a minute.
        FailureKind.QUOTA: "perday|check your plan and billing details.{0,300}limit: 0",
        FailureKind.AUTH: "api key not valid|api_key_invalid|api key expired",
    },
)
