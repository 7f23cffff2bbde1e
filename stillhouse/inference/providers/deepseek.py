"""DeepSeek's API: https://api-docs.deepseek.com."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider
from stillhouse.sellers import DEEPSEEK as SELLER

DEEPSEEK: Final = Provider(SELLER, wordings={FailureKind.CONTENT: "content exists risk"})
