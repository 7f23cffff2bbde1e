"""The setting of the config that an endpoint's refusal is about, by its words; public reports are in the tests."""

import re
from typing import Final

from stillhouse.config import ModelRole
from stillhouse.errors import EndpointError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure

_SETTINGS: Final = {
    # OpenAI; Gemini; Bedrock, whose models some regions sell by an inference profile alone.
    r"unsupported_country|country, region|location is not supported|on-demand throughput|in (your|this) region": (
        "{section}.base_url to another region's, or {section}.model"
    ),
    r"reasoning_effort.*v1/responses": "{section}.api to responses, or rollouts.reasoning_effort to none",
    r"not a chat model|v1/completions|embedding|allowed to sample": "{section}.api, or {section}.model",
    r"v1/responses": "{section}.api to responses",
    r"logprob": "rollouts.record_top_k (OpenAI takes 20, vLLM its --max-logprobs) or rollouts.record_tokens",
    r"\btools?\b|function": "tools (builtin, file, mcp), or {section}.model",
    r"reasoning|effort|thinking": "rollouts.reasoning_effort",
    r"response_?(format|schema)|json_?schema|structured": "rollouts.response_schema",
    r"temperature": "rollouts.temperature",
    r"top_p": "rollouts.top_p",
    r"max_(completion_|output_|new_)?tokens": "rollouts.max_tokens",
    r"seed": "rollouts.seed",
}


def setting_named(message: str, role: ModelRole) -> str | None:
    """Return the setting to change after a refusal, with what to know of it; None where its message names none."""
    found = next((one for words, one in _SETTINGS.items() if re.search(words, message, re.IGNORECASE)), None)
    if found is not None and role is ModelRole.JUDGE and found.startswith("rollouts."):
        name = found.removeprefix("rollouts.")
        found = f"dataset.judge.{name}" if name in ("temperature", "max_tokens") else "{section}.model"
    return found and found.format(section=role.section)


def refused_alike(failure: Failure, endpoint: Endpoint, text: str) -> EndpointError:
    """Return the error of a model that refuses whatever it is asked, with the setting to change.

    `text` has places for the model and the refusal.
    """
    message = failure.message.rstrip(".")
    if not failure.is_of_settings:
        message += f". Change {setting_named(message, endpoint.role) or f'{endpoint.role.section}.model'}"
    return EndpointError(f"{endpoint.base_url}: {text.format(repr(endpoint.model), message)}", code="refused-alike")
