"""OpenAI's models at Azure: https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle."""

from dataclasses import replace
from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.openai import OPENAI
from stillhouse.sellers import AZURE as SELLER

AZURE: Final = replace(
    OPENAI,
    seller=SELLER,
    codes={FailureKind.CONTENT: "ResponsibleAIPolicyViolation"},
    wordings={FailureKind.CONTENT: "content management policy|contentpolicyviolation"},
)
