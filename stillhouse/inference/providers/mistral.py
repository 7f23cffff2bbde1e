"""Mistral's API, which refuses keys that it does not know: https://docs.mistral.ai/api."""

from typing import Final

from stillhouse.inference.providers.provider import Provider
from stillhouse.sellers import MISTRAL as SELLER

MISTRAL: Final = Provider(SELLER, seed="random_seed")
