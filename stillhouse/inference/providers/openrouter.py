"""OpenRouter, a router to many sellers."""

from typing import ClassVar

from stillhouse.inference.providers.provider import Provider
from stillhouse.inference.sampling import Sampling
from stillhouse.types import JsonObject


class OpenRouter(Provider):
    """https://openrouter.ai/docs/api-reference/chat-completion."""

    hosts: ClassVar[tuple[str, ...]] = ("openrouter.ai",)

    def chat_keys(self, sampling: Sampling) -> JsonObject:
        # Without `usage` OpenRouter does not say what a request cost.
        return {**super().chat_keys(sampling), "usage": {"include": True}}

    def effort_keys(self, effort: str) -> JsonObject:
        return {"reasoning": {"effort": effort}}
