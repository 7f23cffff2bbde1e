"""OpenAI's Responses API as a script of a simulated provider: strict, with the package's own types as the judge."""

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter, ValidationError

from tests.provider import ReceivedRequest, Reply

Item = dict[str, Any]
_KNOWN = frozenset(ResponseCreateParamsNonStreaming.__annotations__)
_REQUEST: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsNonStreaming)


class FakeResponses:
    """Answers as a model that reasons before each call and answer; `answer` gives the texts and calls of an input."""

    def __init__(self, answer: Callable[[list[Item]], str | list[tuple[str, Item]]]) -> None:
        self.answer = answer
        self.issued: dict[str, Item] = {}
        self.refused: tuple[str, ...] = ("temperature", "top_p", "top_logprobs")
        self.extra: Item = {}
        """Further keys of each answer."""
        self._after: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, request: ReceivedRequest) -> Reply:
        if request.path.endswith("/chat/completions"):
            message = "This model is only supported in v1/responses and not in v1/chat/completions."
            return _refused(message, "model", status=404)
        if not request.path.endswith("/v1/responses"):
            return _refused(f"Invalid URL (POST {request.path})", None, status=404)
        body = request.body
        with self._lock:
            if (problem := self._problem(body)) is not None:
                return _refused(*problem)
            output = self._output(body["input"])
        response = {
            "id": f"resp_{request.index}",
            "object": "response",
            "created_at": 1_790_000_000,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": body["model"] + "-2026-10-06",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "top_p": 1.0,
            "service_tier": "default",
            "usage": {
                "input_tokens": 90,
                "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
                "output_tokens": 30,
                "output_tokens_details": {"reasoning_tokens": 20},
                "total_tokens": 120,
            },
            **self.extra,
        }
        Response.model_validate(response)
        return Reply(response, headers={"x-request-id": f"req_{request.index}"})

    def _problem(self, body: Item) -> tuple[str, str | None] | None:
        for key in body:
            if key not in _KNOWN:
                return f"Unknown parameter: '{key}'.", key
        for key in self.refused:
            if key in body:
                return f"Unsupported parameter: '{key}' is not supported with this model.", key
        try:
            # Lists are checked as they are read.
            _REQUEST.dump_json(_REQUEST.validate_python(body), warnings=False)
        except ValidationError as error:
            return f"Invalid value: {error}", "input"
        if body.get("store") is not False or "reasoning.encrypted_content" not in body.get("include", ()):
            return "the test wants nothing stored and reasoning encrypted", "store"
        if any("strict" not in tool for tool in body.get("tools", ())):
            return "the test wants strict to be said", "tools"
        return self._problem_of_items(body["input"])

    def _problem_of_items(self, items: list[Item]) -> tuple[str, str | None] | None:
        seen: set[str] = set()
        calls: set[str] = set()
        for item in items:
            written = item.get("id")
            if written is not None and item != self.issued.get(written):
                return f"Item '{written}' was changed: {json.dumps(item)}", "input"
            if item["type"] == "reasoning" and not item.get("encrypted_content"):
                stored = "Items are not persisted when `store` is set to false."
                return f"Item with id '{written}' not found. {stored}", "input"
            if written is not None and (needed := self._after.get(written)) not in (None, *seen):
                return (
                    f"Item '{written}' of type '{item['type']}' was provided without its required 'reasoning' item: "
                    f"'{needed}'.",
                    "input",
                )
            if item["type"] == "function_call_output":
                if item["call_id"] not in calls:
                    return f"No tool call found for function call output with call_id {item['call_id']}.", "input"
                calls.discard(item["call_id"])
            if item["type"] == "function_call":
                calls.add(item["call_id"])
            seen.add(str(written))
        if calls:
            return f"No tool output found for function call {calls.pop()}.", "input"
        return None

    def _output(self, items: list[Item]) -> list[Item]:
        number = len(self.issued)
        said = self.answer(items)
        secret = hashlib.sha256(json.dumps(items).encode()).hexdigest()
        reasoning: Item = {
            "type": "reasoning",
            "id": f"rs_{number}",
            "summary": [{"type": "summary_text", "text": "weighed it"}],
            "encrypted_content": f"gAAAA{secret}",
        }
        output = [reasoning]
        if isinstance(said, str):
            part = {"type": "output_text", "annotations": [], "text": said}
            message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
            output.append({**message, "content": [part], "phase": "final_answer"})
        else:
            for index, (name, arguments) in enumerate(said):
                call = {"type": "function_call", "id": f"fc_{number}_{index}", "call_id": f"call_{number}_{index}"}
                output.append({**call, "name": name, "arguments": json.dumps(arguments), "status": "completed"})
        for item in output:
            self.issued[item["id"]] = item
            if item is not reasoning:
                self._after[item["id"]] = reasoning["id"]
        return output


def _refused(message: str, param: str | None, status: int = 400) -> Reply:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return Reply({"error": error}, status)
