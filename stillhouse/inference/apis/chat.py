"""OpenAI's chat completions, which nearly every endpoint speaks."""

from collections.abc import Sequence, Set
from typing import ClassVar

from stillhouse.inference.apis.chat_answer import read_completion
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.negotiation.message_keys import resent
from stillhouse.inference.providers import provider_of
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.transport import HttpAnswer
from stillhouse.types import JsonObject, Message, ToolSchema


class ChatCompletions:
    """An `Api`: https://platform.openai.com/docs/api-reference/chat/create."""

    path: ClassVar[str] = "chat/completions"

    def request(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampling: Sampling,
        refused: Set[str] = frozenset(),
    ) -> JsonObject:
        body: JsonObject = {"model": endpoint.model, "messages": resent(messages, refused)}
        if endpoint.service_tier is not None:
            body["service_tier"] = endpoint.service_tier
        if tools:
            body["tools"] = tools
            if sampling.tool_choice != "auto":
                body["tool_choice"] = sampling.tool_choice
        return body | provider_of(endpoint).chat_keys(sampling) | sampling.extra_body

    def completion(
        self, endpoint: Endpoint, answer: HttpAnswer, tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        return read_completion(
            answer.content,
            answer.headers,
            latency_s=answer.latency_s,
            model=endpoint.model,
            record_tokens=sampling.record_tokens,
            record_top_k=sampling.record_top_k,
            tools=tools,
            max_tokens=sampling.max_tokens,
        )
