"""DeepSeek's API."""

from collections.abc import Mapping
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import HostedProvider
from stillhouse.sellers import DEEPSEEK, Seller


class DeepSeek(HostedProvider):
    """https://api-docs.deepseek.com."""

    seller: ClassVar[Seller] = DEEPSEEK
    wordings: ClassVar[Mapping[FailureKind, str]] = {FailureKind.CONTENT: "content exists risk"}
