"""Which models can score what a student sampled, as far as their names and addresses tell."""

import re
from typing import Final
from urllib.parse import urlsplit

_API_ONLY: Final = re.compile(
    # Not gpt-oss, gpt2, gpt-j or gpt-neo, whose weights are open.
    r"(?:(?:openrouter/)?(?:openai|anthropic|google)/)?(?:gpt-(?!oss|2\b|j\b|neo)|chatgpt-|o[134](?:-|$)|claude|gemini)",
    re.IGNORECASE,
)
_API_HOSTS: Final = (
    "api.openai.com",
    "openai.azure.com",
    "api.anthropic.com",
    "generativelanguage.googleapis.com",
    "openrouter.ai",
)


def cannot_score(model: str) -> str | None:
    """Why the model cannot score what a student sampled, as a clause; None if its name is no obstacle.

    OpenAI's chat models give the log-probabilities of tokens they sampled themselves and of no others, those of
    Anthropic and Gemini give none.
    """
    if _API_ONLY.match(model) is None:
        return None
    return f"{model} cannot score what a student sampled: its API gives no log-probabilities of given tokens"


def cannot_score_at(base_url: str) -> str | None:
    """Why no model of the server can score what a student sampled, as a clause; None if its address is no obstacle."""
    host = urlsplit(base_url).hostname or ""
    if not any(host == known or host.endswith(f".{known}") for known in _API_HOSTS):
        return None
    return f"{host} cannot score what a student sampled: its API gives no log-probabilities of given tokens"
