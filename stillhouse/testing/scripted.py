"""Completions, and an endpoint that answers from a script of them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import orjson

from stillhouse.types import JsonObject

Script = Sequence[Mapping[str, Any]] | Callable[[JsonObject], Mapping[str, Any]]
"""A completion for each request, or a function from a request's body to its completion."""


def completion(
    content: str | None = None,
    *,
    tool_calls: Sequence[tuple[str, str]] = (),
    finish_reason: str | None = None,
    completion_tokens: int | None = 5,
    message: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body of a chat completion in OpenAI's form.

    `tool_calls` are pairs of a name and arguments as JSON text; `finish_reason` is then `tool_calls`, else `stop`.
    `completion_tokens` are the reported usage, None reports none; `message` holds further keys of the message.
    """
    calls = [
        {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(tool_calls)
    ]
    reply = {"role": "assistant", "content": content, "refusal": None, **({"tool_calls": calls} if calls else {})}
    usage = {"prompt_tokens": 7, "completion_tokens": completion_tokens, "total_tokens": 7 + (completion_tokens or 0)}
    reason = finish_reason or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "simulated-1",
        "choices": [{"index": 0, "message": {**reply, **(message or {})}, "finish_reason": reason}],
        **({} if completion_tokens is None else {"usage": usage}),
    }


class ScriptedEndpoint:
    """Answers at `url` on loopback, as a context manager; `requests` are the bodies that came."""

    def __init__(self, script: Script) -> None:
        self.requests: list[JsonObject] = []
        self._script = script
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status, body = endpoint._answer(orjson.loads(self.rfile.read(int(self.headers["content-length"]))))
                content = orjson.dumps(body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def _answer(self, request: JsonObject) -> tuple[int, Mapping[str, Any]]:
        self.requests.append(request)
        if callable(self._script):
            return 200, self._script(request)
        if len(self.requests) <= len(self._script):
            return 200, self._script[len(self.requests) - 1]
        asked = f"the rollout asks for completion {len(self.requests)}, and {len(self._script)} are scripted"
        return 400, {"error": {"message": asked, "type": None, "param": None, "code": None}}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
