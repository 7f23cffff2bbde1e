"""The sellers and servers of models, and what is known of each."""

from functools import lru_cache
from typing import Final

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.providers import known
from stillhouse.inference.providers.provider import Provider

_SELLERS: Final[tuple[Provider, ...]] = (
    *(known.OPENAI, known.AZURE, known.OPENROUTER, known.ANTHROPIC, known.GEMINI, known.MISTRAL, known.GROQ),
    known.DEEPSEEK,
)
PROVIDERS: Final = (*_SELLERS, known.VLLM, known.SGLANG, known.OTHERS)
"""All whose codes and wordings are read, whoever the endpoint is."""

__all__ = ["PROVIDERS", "Provider", "provider_of"]


def provider_of(endpoint: Endpoint) -> Provider:
    """Return the provider behind an endpoint, by its host; a host that is not known is asked as vLLM is."""
    return known.OWN_SERVER if endpoint.is_local else _provider_at(endpoint.base_url)


@lru_cache(maxsize=64)
def _provider_at(base_url: str) -> Provider:
    return next((one for one in _SELLERS if one.seller.is_at(base_url)), known.VLLM)
