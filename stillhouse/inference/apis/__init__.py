"""The wire forms in which a completion is asked for."""

import logging
import re
from importlib.util import find_spec
from typing import Final

from stillhouse.errors import ConfigError
from stillhouse.inference.apis.api import Api
from stillhouse.inference.apis.chat import ChatCompletions
from stillhouse.inference.apis.messages import Messages
from stillhouse.inference.apis.responses import Responses, needs_responses
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure
from stillhouse.inference.sampling import ChatRequest
from stillhouse.sellers import AZURE, OPENAI

__all__ = ["Api", "ApiChoice", "require_client"]

_LOG = logging.getLogger(__name__)
_NAMES_RESPONSES: Final = re.compile(r"only supported in v1/responses|use /?v1/responses", re.IGNORECASE)


class ApiChoice:
    """The form in which an endpoint's model is asked: that of the config, or by endpoint, model and request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._apis: dict[str, Api] = {api.name: api(endpoint) for api in (ChatCompletions, Responses, Messages)}
        self._learnt = "chat"
        # Known once: each request asks.
        self._given = "messages" if endpoint.speaks_messages else None if endpoint.api == "auto" else endpoint.api
        self._is_openai = OPENAI.is_at(endpoint.base_url) or AZURE.is_at(endpoint.base_url)

    def of(self, request: ChatRequest) -> Api:
        """Return the form of a request. It is the same for all turns of a rollout."""
        if self._given is not None:
            return self._apis[self._given]
        effort = request.sampling.reasoning_effort
        if self._is_openai and needs_responses(self._endpoint.model, has_tools=bool(request.tools), effort=effort):
            return self._apis["responses"]
        return self._apis[self._learnt]

    def learn(self, asked: Api, failure: Failure) -> bool:
        """Return whether a refused request is to be made again, as the refusal names the form to make it in."""
        if self._endpoint.api != "auto" or asked.name != "chat" or not _NAMES_RESPONSES.search(failure.message):
            return False
        if self._learnt == "chat":
            self._learnt = "responses"
            _LOG.warning("model %s is asked through the Responses API: %s", self._endpoint.model, failure.message)
        return True


def require_client(endpoint: Endpoint) -> None:
    """Raise ConfigError if the package is missing that an endpoint's API is spoken with."""
    if endpoint.speaks_messages and find_spec("anthropic") is None:
        raise ConfigError(
            f"{endpoint.base_url} is asked through Anthropic's Messages API, which needs the package anthropic: pip "
            f"install 'stillhouse[anthropic]'. Or set {endpoint.role.section}.api: chat, which loses thinking, schemas "
            "of answers and the cache"
        )
