"""OpenAI's Responses API, the only one of its pro and codex models, and of newer ones that think between tool calls.

Nothing is stored at OpenAI. What a model wrote goes back item by item as it came, its encrypted reasoning included,
which no other message of ours holds (`sent_back.output`).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from stillhouse.chat.content import calls_of
from stillhouse.inference.apis.api import Api, given, with_extra
from stillhouse.inference.apis.caching import planned_cache
from stillhouse.inference.apis.responses_answer import as_chat
from stillhouse.inference.sampling import ChatRequest
from stillhouse.types import JsonObject, Message

_LOGPROBS: Final = "message.output_text.logprobs"
_REASONING: Final = "reasoning.encrypted_content"
_NO_REASONING: Final = re.compile(r"gpt-[34]|chatgpt|gpt-.*-chat")
"""Models that refuse to be asked for it: those that do not reason."""
_RESPONSES_ALONE: Final = re.compile(
    r"o[13]-pro|gpt-[\d.]+-pro|gpt-[\d.]+-codex|codex-|o[34](?:-mini)?-deep-research|computer-use|gpt-daybreak"
    r"|gpt-[\d.]+-(?:cyber|rosalind)|gpt-rosalind|gpt-[\d.]+-astra-law"
)
_NO_CALLS_AFTER_THOUGHT: Final = (5, 4)
"""First version of gpt whose chat completions take tools only with the effort `none`."""


def needs_responses(model: str, *, has_tools: bool, effort: str | None) -> bool:
    """Return whether a model is asked through this API: https://platform.openai.com/docs/models."""
    if _RESPONSES_ALONE.match(model):
        return True
    version = re.match(r"gpt-(\d+)(?:\.(\d+))?", model)
    if version is None or not has_tools or effort == "none":
        return False
    return (int(version[1]), int(version[2] or 0)) >= _NO_CALLS_AFTER_THOUGHT


class Responses(Api):
    """An `Api`: https://platform.openai.com/docs/api-reference/responses/create. It knows no seed, and is sent none."""

    name = "responses"
    path = "responses"
    as_chat = staticmethod(as_chat)

    def body(self, request: ChatRequest) -> JsonObject:
        endpoint, tools, sampling = self.endpoint, request.tools, request.sampling
        items, cache = planned_cache(endpoint, list(self._items(request.messages)), sampling, "input_text")
        body: JsonObject = {"model": endpoint.model, "input": items, "store": False, **cache}
        body |= given(
            max_output_tokens=sampling.max_tokens,
            service_tier=endpoint.service_tier,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_logprobs=sampling.record_top_k,
        )
        included = [] if _NO_REASONING.match(endpoint.model) else [_REASONING]
        if sampling.record_tokens or sampling.record_top_k is not None:
            included.append(_LOGPROBS)
        if included:
            body["include"] = included
        if tools:
            # Without the last key OpenAI would change the schema so that it is strict.
            body["tools"] = [{"type": "function", **tool["function"], "strict": False} for tool in tools]
            if sampling.tool_choice != "auto":
                body["tool_choice"] = sampling.tool_choice
        if sampling.reasoning_effort is not None:
            body["reasoning"] = {"effort": sampling.reasoning_effort}
        if sampling.response_schema is not None:
            described = {"name": "answer", "strict": True, "schema": sampling.response_schema}
            body["text"] = {"format": {"type": "json_schema", **described}}
        return with_extra(body, sampling.extra_body)

    def _items(self, messages: Sequence[Message]) -> Iterator[JsonObject]:
        # A call may have got an id of this project's own since.
        written_ids: dict[str, str] = {}
        for message in messages:
            calls, output = calls_of(message), message.get("sent_back", {}).get("output")
            if message["role"] == "tool":
                call_id = message["tool_call_id"]
                result = {"call_id": written_ids.get(call_id, call_id), "output": self.text(message)}
                yield {"type": "function_call_output", **result}
            elif output:
                called = [item["call_id"] for item in output if item.get("type") == "function_call"]
                written_ids |= {call.id: call_id for call, call_id in zip(calls, called, strict=False)}
                yield from _whole(output)
            else:
                if text := self.text(message):
                    yield {"type": "message", "role": message["role"], "content": text}
                for call in calls:
                    yield {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _whole(output: list[JsonObject]) -> list[Any]:
    """Return the items as they came; without ids where their reasoning was lost, to which the ids would belong."""
    if all(item.get("encrypted_content") for item in output if item.get("type") == "reasoning"):
        return output
    kept = (item for item in output if item.get("type") != "reasoning")
    return [{key: value for key, value in item.items() if key != "id"} for item in kept]
