"""Which models can score what a student sampled, as far as their names tell."""

import re
from typing import Final

_API_ONLY: Final = re.compile(
    # Not gpt-oss, gpt2, gpt-j or gpt-neo, whose weights are open.
    r"(?:(?:openrouter/)?(?:openai|anthropic|google)/)?(?:gpt-(?!oss|2\b|j\b|neo)|chatgpt-|o[134](?:-|$)|claude|gemini)",
    re.IGNORECASE,
)


def cannot_score(model: str) -> str | None:
    """Why the model cannot score what a student sampled, as a clause; None if its name is no obstacle.

    OpenAI's chat models give the log-probabilities of tokens they sampled themselves and of no others, those of
    Anthropic and Gemini give none.
    """
    if _API_ONLY.match(model) is None:
        return None
    return f"{model} cannot score what a student sampled: its API gives no log-probabilities of given tokens"
