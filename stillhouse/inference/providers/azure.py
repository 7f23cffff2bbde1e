"""OpenAI's models at Azure."""

from collections.abc import Mapping
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.openai import OpenAI
from stillhouse.sellers import AZURE, Seller


class Azure(OpenAI):
    """https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle: OpenAI's API below `/openai/v1`."""

    seller: ClassVar[Seller] = AZURE
    codes: ClassVar[Mapping[FailureKind, str]] = {FailureKind.CONTENT: "ResponsibleAIPolicyViolation"}
    wordings: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.CONTENT: "content management policy|contentpolicyviolation"
    }
    overflow_codes: ClassVar[str] = ""
