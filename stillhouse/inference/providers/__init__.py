"""The sellers and servers of models: what is known of each stands in its own file."""

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
    if endpoint.is_local:
        return OWN_SERVER
    return next((one for one in _SELLERS if one.seller.is_at(endpoint.base_url)), VLLM)
