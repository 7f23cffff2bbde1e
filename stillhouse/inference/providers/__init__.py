"""The sellers and servers of models, and what is known of each, in a file each."""

from functools import lru_cache
from typing import Final

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.providers.anthropic import ANTHROPIC
from stillhouse.inference.providers.azure import AZURE
from stillhouse.inference.providers.deepseek import DEEPSEEK
from stillhouse.inference.providers.gemini import GEMINI
from stillhouse.inference.providers.groq import GROQ
from stillhouse.inference.providers.mistral import MISTRAL
from stillhouse.inference.providers.openai import OPENAI
from stillhouse.inference.providers.openrouter import OPENROUTER
from stillhouse.inference.providers.others import OTHERS
from stillhouse.inference.providers.own_server import OWN_SERVER
from stillhouse.inference.providers.provider import Provider
from stillhouse.inference.providers.sglang import SGLANG
from stillhouse.inference.providers.vllm import VLLM

_SELLERS: Final[tuple[Provider, ...]] = (OPENAI, AZURE, OPENROUTER, ANTHROPIC, GEMINI, MISTRAL, GROQ, DEEPSEEK)
PROVIDERS: Final = (*_SELLERS, VLLM, SGLANG, OTHERS)
"""All whose codes and wordings are read, whoever the endpoint is."""

__all__ = ["PROVIDERS", "Provider", "provider_of"]


def provider_of(endpoint: Endpoint) -> Provider:
    """Return the provider behind an endpoint, by its host; a host that is not known is asked as vLLM is."""
    return OWN_SERVER if endpoint.is_local else _provider_at(endpoint.base_url)


@lru_cache(maxsize=64)
def _provider_at(base_url: str) -> Provider:
    return next((one for one in _SELLERS if one.seller.is_at(base_url)), VLLM)
