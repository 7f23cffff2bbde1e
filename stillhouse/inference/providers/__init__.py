"""The sellers and servers of models: what is known of each stands in its own file."""

from typing import Final

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.providers.anthropic import Anthropic
from stillhouse.inference.providers.azure import Azure
from stillhouse.inference.providers.deepseek import DeepSeek
from stillhouse.inference.providers.gemini import Gemini
from stillhouse.inference.providers.groq import Groq
from stillhouse.inference.providers.llama_cpp import LlamaCpp
from stillhouse.inference.providers.mistral import Mistral
from stillhouse.inference.providers.openai import OpenAI
from stillhouse.inference.providers.openrouter import OpenRouter
from stillhouse.inference.providers.others import WORDED
from stillhouse.inference.providers.own_server import OwnServer
from stillhouse.inference.providers.provider import Provider
from stillhouse.inference.providers.sglang import Sglang
from stillhouse.inference.providers.vllm import Vllm

_SELLERS: Final[tuple[Provider, ...]] = (
    *(OpenAI(), Azure(), OpenRouter(), Anthropic(), Gemini(), Mistral(), Groq(), DeepSeek()),
)
_PLAIN: Final = Provider()
_OWN: Final = OwnServer()
PROVIDERS: Final = (*_SELLERS, Vllm(), Sglang(), LlamaCpp(), *WORDED)
"""All whose codes and wordings are read, whoever the endpoint is."""

__all__ = ["PROVIDERS", "Provider", "provider_of"]


def provider_of(endpoint: Endpoint) -> Provider:
    """Return the provider behind an endpoint, by its host; the plain one where the host is not known."""
    if endpoint.is_local:
        return _OWN
    return next((one for one in _SELLERS if one.seller.is_at(endpoint.base_url)), _PLAIN)
