"""The wire forms in which a completion is asked for."""

from stillhouse.inference.apis.api import Api
from stillhouse.inference.apis.chat import ChatCompletions
from stillhouse.inference.endpoint import Endpoint

__all__ = ["Api", "api_of"]


def api_of(endpoint: Endpoint) -> Api:
    """Return the form in which this endpoint's model is asked."""
    return ChatCompletions()
