"""OpenAI's own API."""

from typing import ClassVar

from stillhouse.inference.providers.provider import Provider
from stillhouse.types import JsonObject


class OpenAI(Provider):
    """https://platform.openai.com/docs/api-reference/chat: keys that it does not know are refused."""

    hosts: ClassVar[tuple[str, ...]] = ("openai.com",)
    # Newer models refuse `max_tokens`; most other endpoints know nothing else.
    token_limit: ClassVar[str] = "max_completion_tokens"

    def token_id_keys(self) -> JsonObject:
        return {}

    def top_token_keys(self) -> JsonObject:
        return {}
