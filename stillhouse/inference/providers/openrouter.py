"""OpenRouter, a router to many sellers: https://openrouter.ai/docs/api-reference/chat-completion."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider
from stillhouse.inference.sampling import Sampling
from stillhouse.sellers import OPENROUTER as SELLER
from stillhouse.types import JsonObject


class _OpenRouter(Provider):
    def chat_keys(self, sampling: Sampling) -> JsonObject:
        # Without `usage` OpenRouter does not say what a request cost.
        return {**super().chat_keys(sampling), "usage": {"include": True}}

    def effort_keys(self, effort: str) -> JsonObject:
        return {"reasoning": {"effort": effort}}


OPENROUTER: Final = _OpenRouter(
    SELLER,
    has_token_ids=True,
    wordings={
        # A 402 while other requests hold the rest of the credit.
        FailureKind.RATE: "in_flight_budget_exhausted",
        FailureKind.BUSY: "upstream_provider_shared_pool",
        FailureKind.QUOTA: "free-models-per-day|limit_rpd/",
    },
)
