"""The sellers and servers of models: what is known of each stands in its own file."""

from typing import Final
from urllib.parse import urlsplit

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.providers.openai import OpenAI
from stillhouse.inference.providers.openrouter import OpenRouter
from stillhouse.inference.providers.own_server import OwnServer
from stillhouse.inference.providers.provider import Provider

_PROVIDERS: Final[tuple[Provider, ...]] = (OpenAI(), OpenRouter())
_PLAIN: Final = Provider()
_OWN: Final = OwnServer()

__all__ = ["Provider", "provider_of"]


def provider_of(endpoint: Endpoint) -> Provider:
    """Return the provider behind an endpoint, by its host; the plain one where the host is not known."""
    if endpoint.is_local:
        return _OWN
    host = urlsplit(endpoint.base_url).hostname or ""
    return next((one for one in _PROVIDERS if one.is_at(host)), _PLAIN)
