"""Anthropic, by its own API and by the one in OpenAI's form."""

from collections.abc import Mapping
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import HostedProvider
from stillhouse.inference.schema_forms import CLOSED, SchemaForm
from stillhouse.sellers import ANTHROPIC, Seller


class Anthropic(HostedProvider):
    """https://platform.claude.com/docs/en/api/errors."""

    seller: ClassVar[Seller] = ANTHROPIC
    # https://platform.claude.com/docs/en/build-with-claude/structured-outputs
    answer_form: ClassVar[SchemaForm | None] = CLOSED
    codes: ClassVar[Mapping[FailureKind, str]] = {FailureKind.QUOTA: "billing_error"}
    wordings: ClassVar[Mapping[FailureKind, str]] = {
        # With a 400.
        FailureKind.QUOTA: "reached your specified (workspace )?api usage limits|credit balance is too low|extra usage",
    }
