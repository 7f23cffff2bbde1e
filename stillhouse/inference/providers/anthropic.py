"""Anthropic, by its own API and by the one in OpenAI's form: https://platform.claude.com/docs/en/api/errors."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider
from stillhouse.inference.schema_forms import CLOSED
from stillhouse.sellers import ANTHROPIC as SELLER

ANTHROPIC: Final = Provider(
    SELLER,
    # https://platform.claude.com/docs/en/build-with-claude/structured-outputs
    answer_form=CLOSED,
    codes={FailureKind.QUOTA: "billing_error"},
    wordings={
        # With a 400, but for the last.
        FailureKind.QUOTA: "reached your specified (workspace )?api usage limits|credit balance is too low|extra usage",
    },
)
