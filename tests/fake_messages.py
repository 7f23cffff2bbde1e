"""Anthropic's Messages API as a script of a simulated provider: strict, with the package's own types as the judge."""

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter, ValidationError

from tests.provider import ReceivedRequest, Reply

Item = dict[str, Any]
_KNOWN = frozenset(MessageCreateParamsNonStreaming.__annotations__)
_REQUEST: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)


class FakeMessages:
    """Answers as a model that thinks before it calls; `answer` gives the text, or the calls, of a conversation."""

    def __init__(self, answer: Callable[[list[Item]], str | list[tuple[str, Item]]]) -> None:
        self.answer = answer
        self.stop: Item = {}
        """Further keys of each answer."""
        self.shows_thinking = True
        self.refused: tuple[str, ...] = ("temperature", "top_p", "top_k")
        self._issued: dict[str, list[Item]] = {}
        self._lock = threading.Lock()

    def __call__(self, request: ReceivedRequest) -> Reply:
        if not request.path.endswith("/v1/messages"):
            return refused("not_found_error", request.path, 404)
        with self._lock:
            if (problem := self.problem(request.body)) is not None:
                return refused("invalid_request_error", problem)
            return Reply(self.message(request.body), headers={"request-id": f"req_{request.index}"})

    def message(self, body: Item) -> Item:
        """Return the message that answers a request."""
        said = self.answer(body["messages"])
        number = len(self._issued)
        text = "weighed it é\u2028" if self.shows_thinking else ""
        signature = hashlib.sha256(f"{number}{text}".encode()).hexdigest()
        content: list[Item] = [{"type": "thinking", "thinking": text, "signature": signature}]
        if isinstance(said, str):
            content.append({"type": "text", "text": said, "citations": None})
        else:
            content.append({"type": "redacted_thinking", "data": f"hidden{signature}"})
            for index, (name, arguments) in enumerate(said):
                call = {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": name, "input": arguments}
                content.append({**call, "caller": {"type": "direct"}})
        self._issued[signature] = content
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "end_turn" if isinstance(said, str) else "tool_use",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 20,
                "cache_creation_input_tokens": 10,
                "cache_read_input_tokens": 60,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 0},
                "output_tokens": 30,
                "service_tier": "standard",
            },
            **self.stop,
        }
        Message.model_validate(message)
        return message

    def problem(self, body: Item) -> str | None:
        """Return why a request is refused."""
        for key in body:
            if key in self.refused:
                return f"`{key}` is deprecated for this model."
            if key not in _KNOWN | {"temperature", "top_p", "top_k"}:
                return f"{key}: Extra inputs are not permitted"
        try:
            # Lists are checked as they are read.
            _REQUEST.dump_json(_REQUEST.validate_python(body), warnings=False)
        except ValidationError as error:
            return str(error)
        blocks = [*body.get("system", []), *body.get("tools", [])]
        blocks += [block for message in body["messages"] for block in message["content"]]
        if any(block.get("type") == "text" and not block["text"].strip() for block in blocks):
            return "messages: text content blocks must be non-empty"
        if sum("cache_control" in block for block in [*blocks, body]) > 4:
            return "A maximum of 4 blocks with cache_control may be provided."
        return self._problem_of_turns(body["messages"])

    def _problem_of_turns(self, messages: list[Item]) -> str | None:
        if messages[-1]["role"] != "user":
            return "This model does not support assistant message prefill."
        for index, message in enumerate(messages):
            used = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
            if message["role"] == "assistant":
                if (problem := self._problem_of_blocks(index, message["content"])) is not None:
                    return problem
                following = messages[index + 1]["content"][: len(used)]
                if [block.get("tool_use_id") for block in following] != used:
                    return f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after"
        return None

    def _problem_of_blocks(self, index: int, content: list[Item]) -> str | None:
        if not any(block["type"] == "tool_use" for block in content):
            return None
        if content[0]["type"] != "thinking":
            return f"messages.{index}.content.0.type: Expected `thinking`, but found `{content[0]['type']}`"
        if json.dumps(content) != json.dumps(self._issued.get(content[0]["signature"])):
            return f"messages.{index}.content: `thinking` blocks in the latest assistant message cannot be modified"
        return None


def refused(kind: str, message: str, status: int = 400) -> Reply:
    return Reply({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_x"}, status)
