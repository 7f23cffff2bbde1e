"""The setting of the config that an endpoint's refusal is about, by its words; public reports are in the tests."""

import re
from typing import Final

from stillhouse.config import ModelRole

_SETTINGS: Final = {
    # OpenAI; Gemini; Bedrock, whose models some regions sell by an inference profile alone.
    r"unsupported_country|country, region|location is not supported|on-demand throughput|in (your|this) region": (
        "{section}.base_url to another region's, or {section}.model"
    ),
    r"v1/responses|not a chat model|v1/completions|embedding|allowed to sample": "{section}.api, or {section}.model",
    r"logprob": "rollouts.record_top_k",
    r"\btools?\b|function": "tools (builtin, file, mcp), or {section}.model",
    r"reasoning|effort|thinking": "rollouts.reasoning_effort",
    r"response_?(format|schema)|json_?schema|structured": "rollouts.response_schema",
    r"temperature": "rollouts.temperature",
    r"top_p": "rollouts.top_p",
    r"max_(completion_|output_|new_)?tokens": "rollouts.max_tokens",
    r"seed": "rollouts.seed",
}


def setting_named(message: str, role: ModelRole) -> str | None:
    """Return the setting to change after a refusal; None where its message names none that is known."""
    found = next((one for words, one in _SETTINGS.items() if re.search(words, message, re.IGNORECASE)), None)
    if found is not None and role is ModelRole.JUDGE and found.startswith("rollouts."):
        name = found.removeprefix("rollouts.")
        found = f"dataset.judge.{name}" if name in ("temperature", "max_tokens") else "{section}.model"
    return found and found.format(section=role.section)
