"""OpenAI's chat completions, which nearly every endpoint speaks."""

from collections.abc import Sequence, Set
from typing import ClassVar, Literal

from stillhouse.inference.apis.api import Api
from stillhouse.inference.apis.caching import planned_cache
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.negotiation.message_keys import resent
from stillhouse.inference.providers import provider_of
from stillhouse.inference.sampling import Sampling
from stillhouse.types import JsonObject, Message, ToolSchema


class ChatCompletions(Api):
    """An `Api`: https://platform.openai.com/docs/api-reference/chat/create."""

    name: ClassVar[Literal["chat"]] = "chat"
    path: ClassVar[str] = "chat/completions"

    def request(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampling: Sampling,
        refused: Set[str] = frozenset(),
    ) -> JsonObject:
        sent, cache = planned_cache(endpoint, resent(messages, refused), sampling, "text")
        body: JsonObject = {"model": endpoint.model, "messages": sent, **cache, **self.tier_keys(endpoint.service_tier)}
        if tools:
            body["tools"] = tools
            if sampling.tool_choice != "auto":
                body["tool_choice"] = sampling.tool_choice
        return body | provider_of(endpoint).chat_keys(sampling) | sampling.extra_body
