"""OpenAI's Responses API, the only one of its pro and codex models, and of newer ones that think between tool calls.

Nothing is stored at OpenAI. What a model wrote goes back item by item as it came, its encrypted reasoning included,
which no other message of ours holds (`sent_back.output`).
"""

import logging
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from stillhouse.chat.content import calls_of
from stillhouse.inference.apis.api import Api, given, with_extra
from stillhouse.inference.apis.caching import planned_cache
from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.sampling import ChatRequest
from stillhouse.types import JsonObject, Message

_LOG = logging.getLogger(__name__)
_PASSING: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout", "server_is_overloaded"})
_CONTENT: Final = frozenset(
    {"invalid_prompt", "bio_policy", "misalignment_policy_violation", "image_content_policy_violation"}
)
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

    @staticmethod
    def as_chat(body: JsonObject) -> JsonObject:
        """Return the body of a response in the form of chat completions; raise RequestFailed if it tells a failure."""
        if not isinstance(body.get("output"), list) or body.get("status") == "failed":
            _raise_failure(body)
            return body
        if removed := body.get("input_transformations"):
            _LOG.warning("OpenAI left out some of the model's own reasoning that was sent back: %s", removed)
        items = [item for item in body["output"] if isinstance(item, dict)]
        calls = [item for item in items if item.get("type") == "function_call"]
        said = [item for item in items if item.get("type") == "message"]
        # Comments between calls are no part of the answer that they lead to.
        said = [item for item in said if item.get("phase") == "final_answer"] or said
        parts = [part for item in said for part in item.get("content") or () if isinstance(part, dict)]
        message: JsonObject = {
            "content": "\n\n".join(text for item in said if (text := _texts(item.get("content"), "text"))) or None,
            "reasoning_content": "\n\n".join(filter(None, map(_thoughts, items))) or None,
            "refusal": _texts(parts, "refusal") or None,
            "tool_calls": [
                {
                    "id": item.get("call_id"),
                    "type": "function",
                    "function": {key: item[key] for key in ("name", "arguments") if key in item},
                }
                for item in calls
            ],
        }
        if said or calls:
            message["sent_back"] = {"output": items}
        tokens = [token for part in parts for token in part.get("logprobs") or ()]
        choice = {"message": message, "finish_reason": _finish_reason(body, message)}
        return {**body, "choices": [{**choice, "logprobs": {"content": tokens} if tokens else None}]}


def _whole(output: list[JsonObject]) -> list[Any]:
    """Return the items as they came; without ids where their reasoning was lost, to which the ids would belong."""
    if all(item.get("encrypted_content") for item in output if item.get("type") == "reasoning"):
        return output
    kept = (item for item in output if item.get("type") != "reasoning")
    return [{key: value for key, value in item.items() if key != "id"} for item in kept]


def _raise_failure(body: JsonObject) -> None:
    error: Any = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if code is None or code in _PASSING:
        # Read as any error inside HTTP 200.
        if body.get("status") == "failed" and not error:
            raise RequestFailed(Failure(FailureKind.TRANSIENT, "the response failed; no more is known", 200))
        return
    kind = FailureKind.CONTENT if code in _CONTENT else FailureKind.PERMANENT
    raise RequestFailed(Failure(kind, classify(200, {}, body, datetime.now(UTC)).message + f" ({code})", 200))


def _finish_reason(body: JsonObject, message: JsonObject) -> str | None:
    """Return the reason in a word of chat completions or, where the response is not complete, its own.

    None where it is complete and empty, as servers other than OpenAI's call one that met its limit of tokens.
    """
    status, details = body.get("status") or "completed", body.get("incomplete_details")
    if status != "completed":
        return str((details or {}).get("reason") or status)
    if message["tool_calls"]:
        return "tool_calls"
    return "stop" if message["content"] or message["refusal"] else None


def _thoughts(item: JsonObject) -> str:
    """Return what a reasoning item shows: all of it of open models, of OpenAI's own a summary if it was asked for."""
    if item.get("type") != "reasoning":
        return ""
    return _texts(item.get("content"), "text") or _texts(item.get("summary"), "text", "\n\n")


def _texts(parts: Any, key: str, between: str = "") -> str:
    found = (part.get(key) for part in parts or () if isinstance(part, dict))
    return between.join(text for text in found if isinstance(text, str))
