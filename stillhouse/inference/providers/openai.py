"""OpenAI, which refuses keys that it does not know: https://platform.openai.com/docs/api-reference/chat."""

import re
from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import OVERFLOW, Provider
from stillhouse.inference.schema_forms import BOUNDS, SILENT, SchemaForm
from stillhouse.sellers import OPENAI as SELLER

OPENAI: Final = Provider(
    SELLER,
    # Newer models refuse `max_tokens`; most other endpoints know nothing else.
    token_limit="max_completion_tokens",
    # https://platform.openai.com/docs/guides/structured-outputs
    answer_form=SchemaForm(is_closed=True, kept=BOUNDS | SILENT | {"format", "const", "$ref"}),
    codes={
        FailureKind.QUOTA: "insufficient_quota billing_hard_limit_reached billing_not_active",
        FailureKind.RATE: "rate_limit_exceeded",
        # Of flex, whose lack of capacity is no limit of the account.
        FailureKind.BUSY: "resource_unavailable",
        FailureKind.CONTENT: "content_filter content_policy_violation invalid_prompt bio_policy",
        OVERFLOW: "context_length_exceeded",
    },
    wordings={
        FailureKind.QUOTA: r"(requests|tokens) per day",
        FailureKind.CONTENT: "flagged as potentially violating|content was flagged",
        FailureKind.LENGTH: "could not finish the message because max_tokens",
    },
)
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
