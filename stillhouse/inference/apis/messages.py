"""Anthropic's Messages API.

While a rollout calls tools, what the model wrote goes back block by block as it came: thinking is signed, and changing
a letter of it is refused (`sent_back.blocks`).
"""

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

from stillhouse.chat.content import calls_of, tool_error_of
from stillhouse.errors import ConfigError
from stillhouse.inference.apis.api import Api, given, with_extra
from stillhouse.inference.apis.caching import MARKED_CHARACTERS
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message

_LOG = logging.getLogger(__name__)
_MARK: Final = {"cache_control": {"type": "ephemeral"}}
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_TIERS: Final = {"auto": "auto", "default": "standard_only"}
_NO_TOP_K: Final = "rollouts.record_top_k: Anthropic gives no log-probabilities. Leave it out"
_NO_EFFORT: Final = "rollouts.reasoning_effort {!r}: Anthropic knows none, {}. Set one of these"
_OBJECTIONS: Final = frozenset({"frontier_llm", "reasoning_extraction"})


class Messages(Api):
    """An `Api`: https://platform.claude.com/docs/en/api/messages. It knows no seed, and is sent none."""

    name = "messages"
    path = "messages"

    def body(self, request: ChatRequest) -> JsonObject:
        messages, tools, sampling, _ = request
        if sampling.record_top_k is not None:
            raise ConfigError(_NO_TOP_K)
        num_first = next((index for index, one in enumerate(messages) if one["role"] != "system"), len(messages))
        body: JsonObject = {
            "model": self.endpoint.model,
            "max_tokens": sampling.max_tokens,
            "messages": self._turns(messages[num_first:]),
            **given(temperature=sampling.temperature, top_p=sampling.top_p, service_tier=self._tier()),
        }
        if system := [_text_block(text) for one in messages[:num_first] if (text := self.text(one)).strip()]:
            body["system"] = system
        if tools:
            body["tools"] = [_tool(tool["function"]) for tool in tools]
            if sampling.tool_choice != "auto":
                body["tool_choice"] = {"type": sampling.tool_choice}
        if tools or sampling.is_shared:
            # The next turn, or the next sample, sends all of this one again.
            body |= _MARK
        # Tools stand before the system's blocks, so that one mark is for both.
        shared = body.get("system") or body.get("tools")
        if shared and len(exact_json.dumps([system, tools])) >= MARKED_CHARACTERS:
            shared[-1] |= _MARK
        return with_extra(body | _thinking(sampling), sampling.extra_body)

    def _tier(self) -> str | None:
        tier = self.endpoint.service_tier
        if tier is not None and tier not in _TIERS:
            raise ConfigError(f"teacher.service_tier {tier!r}: Anthropic has {' and '.join(_TIERS)}. Set one of these")
        return tier and _TIERS[tier]

    def _turns(self, messages: Sequence[Message]) -> list[JsonObject]:
        """Return the conversation: results of tools, and what the user says after them, in one message."""
        turns: list[JsonObject] = []
        written_ids: dict[str, str] = {}
        for message in messages:
            role, calls, blocks = message["role"], calls_of(message), message.get("sent_back", {}).get("blocks")
            if role == "assistant" and blocks:
                # A call may have got an id of this project's own since.
                used = (block["id"] for block in blocks if block.get("type") == "tool_use")
                written_ids |= {call.id: written for call, written in zip(calls, used, strict=False)}
            elif role == "tool":
                role, call_id = "user", message["tool_call_id"]
                result = {"tool_use_id": written_ids.get(call_id, call_id), "content": self.text(message)}
                failed = {} if tool_error_of(message) is None else {"is_error": True}
                blocks = [{"type": "tool_result", **result, **failed}]
            else:
                # Blocks without text are refused.
                blocks = [_text_block(text)] if (text := self.text(message)).strip() else []
                blocks += [_call_block(call.id, call.name, call.arguments) for call in calls]
            if role == "user" and turns and turns[-1]["role"] == "user":
                turns[-1]["content"] += blocks
            elif blocks:
                turns.append({"role": role, "content": list(blocks)})
        return turns

    @staticmethod
    def as_chat(body: JsonObject) -> JsonObject:
        """Return the body of a message in the form of chat completions."""
        if not isinstance(body.get("content"), list):
            return body
        blocks = [block for block in body["content"] if isinstance(block, dict)]
        message: JsonObject = {
            "content": _texts(blocks, "text") or None,
            "reasoning_content": _texts(blocks, "thinking") or None,
            "tool_calls": [
                {
                    "id": block.get("id"),
                    "type": "function",
                    "function": {"name": block.get("name"), "arguments": exact_json.dumps(block.get("input")).decode()},
                }
                for block in blocks
                if block.get("type") == "tool_use"
            ],
        }
        # Claude may end its turn without a word, which is an answer.
        if not blocks or any(block.get("type") != "text" for block in blocks):
            message["sent_back"] = {"blocks": blocks}
        choice = {"message": message, "finish_reason": _finish_reason(body)}
        return {**body, "choices": [choice]}


def _thinking(sampling: Sampling) -> JsonObject:
    keys: JsonObject = {}
    effort = sampling.reasoning_effort
    if effort == "none":
        keys["thinking"] = {"type": "disabled"}
    elif effort is not None:
        if effort not in _EFFORTS:
            raise ConfigError(_NO_EFFORT.format(effort, ", ".join(("none", *_EFFORTS))))
        keys |= {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": effort}}
    if sampling.response_schema is not None:
        schema = {"type": "json_schema", "schema": sampling.response_schema}
        keys["output_config"] = {**keys.get("output_config", {}), "format": schema}
    return keys


def _text_block(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _tool(function: JsonObject) -> JsonObject:
    described = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
    return {**described, "input_schema": {"type": "object", **(function.get("parameters") or {})}}


def _call_block(call_id: str, name: str, arguments: str) -> JsonObject:
    """Return a call that another model made; what it wrote in place of an object is put into one."""
    try:
        value: Any = json.loads(arguments)
    except ValueError:
        value = None
    return {
        "type": "tool_use",
        "id": call_id,
        "name": name,
        "input": value if isinstance(value, dict) else {"arguments": arguments},
    }


def _finish_reason(body: JsonObject) -> Any:
    reason, details = body.get("stop_reason"), body.get("stop_details")
    category = details.get("category") if isinstance(details, dict) else None
    if reason != "refusal" or not category:
        return reason
    if category in _OBJECTIONS:
        _LOG.warning(
            "Anthropic refused a prompt as %r, since it objects to this use of its models: read its terms before you "
            "buy more (https://www.anthropic.com/legal/commercial-terms)",
            category,
        )
    return f"{reason}: {category}"


def _texts(blocks: list[JsonObject], kind: str) -> str:
    said = (block.get(kind) for block in blocks if block.get("type") == kind)
    return "".join(text for text in said if isinstance(text, str))
