"""Gemini's API in OpenAI's form."""

from collections.abc import Mapping
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import HostedProvider
from stillhouse.sellers import GEMINI, Seller


class Gemini(HostedProvider):
    """https://ai.google.dev/gemini-api/docs/openai; limits stand in the details of its errors alone."""

    seller: ClassVar[Seller] = GEMINI
    codes: ClassVar[Mapping[FailureKind, str]] = {FailureKind.RATE: "RESOURCE_EXHAUSTED"}
    wordings: ClassVar[Mapping[FailureKind, str]] = {
        # In the id of the quota, even where the message asks for a retry within a minute.
        FailureKind.QUOTA: "perday|check your plan and billing details.{0,300}limit: 0",
        FailureKind.AUTH: "api key not valid|api_key_invalid|api key expired",
    }
