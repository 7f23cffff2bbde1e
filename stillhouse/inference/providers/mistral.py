"""Mistral's API."""

from typing import ClassVar

from stillhouse.inference.providers.provider import HostedProvider
from stillhouse.inference.sampling import Sampling
from stillhouse.sellers import MISTRAL, Seller
from stillhouse.types import JsonObject


class Mistral(HostedProvider):
    """https://docs.mistral.ai/api: keys that it does not know are refused."""

    seller: ClassVar[Seller] = MISTRAL

    def chat_keys(self, sampling: Sampling) -> JsonObject:
        keys = super().chat_keys(sampling)
        return {"random_seed" if key == "seed" else key: value for key, value in keys.items()}
