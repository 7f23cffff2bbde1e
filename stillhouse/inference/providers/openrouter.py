"""OpenRouter, a router to many sellers."""

from collections.abc import Mapping
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider
from stillhouse.inference.sampling import Sampling
from stillhouse.sellers import OPENROUTER, Seller
from stillhouse.types import JsonObject


class OpenRouter(Provider):
    """https://openrouter.ai/docs/api-reference/chat-completion."""

    seller: ClassVar[Seller] = OPENROUTER
    codes: ClassVar[Mapping[FailureKind, str]] = {
        # A 402 while other requests hold the rest of the credit.
        FailureKind.RATE: "in_flight_budget_exhausted",
    }
    wordings: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.RATE: "in_flight_budget_exhausted",
        FailureKind.BUSY: "upstream_provider_shared_pool",
        FailureKind.QUOTA: "free-models-per-day|limit_rpd/",
    }

    def chat_keys(self, sampling: Sampling) -> JsonObject:
        # Without `usage` OpenRouter does not say what a request cost.
        return {**super().chat_keys(sampling), "usage": {"include": True}}

    def effort_keys(self, effort: str) -> JsonObject:
        return {"reasoning": {"effort": effort}}
