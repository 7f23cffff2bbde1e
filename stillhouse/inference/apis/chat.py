"""OpenAI's chat completions, which nearly every endpoint speaks."""

from stillhouse.inference.apis.api import Api, given
from stillhouse.inference.apis.caching import planned_cache
from stillhouse.inference.negotiation.message_keys import resent
from stillhouse.inference.providers import provider_of
from stillhouse.inference.sampling import ChatRequest
from stillhouse.types import JsonObject


class ChatCompletions(Api):
    """An `Api`: https://platform.openai.com/docs/api-reference/chat/create."""

    name = "chat"
    path = "chat/completions"

    def body(self, request: ChatRequest) -> JsonObject:
        endpoint, sampling = self.endpoint, request.sampling
        sent, cache = planned_cache(endpoint, resent(request.messages, request.refused_keys), sampling, "text")
        body = {"model": endpoint.model, "messages": sent, **cache, **given(service_tier=endpoint.service_tier)}
        if request.tools:
            body["tools"] = request.tools
            if sampling.tool_choice != "auto":
                body["tool_choice"] = sampling.tool_choice
        return body | provider_of(endpoint).chat_keys(sampling) | sampling.extra_body
