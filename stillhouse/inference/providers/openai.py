"""OpenAI's own API."""

import re
from typing import ClassVar, Final

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


_RESPONSES_ALONE: Final = re.compile(
    r"o[13]-pro|gpt-[\d.]+-pro|gpt-[\d.]+-codex|codex-|o[34](?:-mini)?-deep-research|computer-use|gpt-daybreak"
    r"|gpt-[\d.]+-(?:cyber|rosalind)|gpt-rosalind|gpt-[\d.]+-astra-law"
)
_NO_CALLS_AFTER_THOUGHT: Final = (5, 4)
"""First version of gpt whose chat completions take tools only with the effort `none`."""


def needs_responses(model: str, *, has_tools: bool, effort: str | None) -> bool:
    """Return whether a model is asked through the Responses API: https://platform.openai.com/docs/models."""
    if _RESPONSES_ALONE.match(model):
        return True
    version = re.match(r"gpt-(\d+)(?:\.(\d+))?", model)
    if version is None or not has_tools or effort == "none":
        return False
    return (int(version[1]), int(version[2] or 0)) >= _NO_CALLS_AFTER_THOUGHT
