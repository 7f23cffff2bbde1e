"""`Api`: a wire form, which writes requests and reads answers and knows no connection."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from stillhouse.chat.content import text_of
from stillhouse.inference.answer_body import parse_body
from stillhouse.inference.apis.chat_answer import read_completion
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.sampling import ChatRequest
from stillhouse.inference.transport import HttpAnswer
from stillhouse.types import JsonObject, Message


class Api(ABC):
    """One way to ask an endpoint for a completion over HTTP."""

    name: ClassVar[Literal["chat", "responses", "messages"]]
    path: ClassVar[str]
    """Below the endpoint's `base_url`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @abstractmethod
    def body(self, request: ChatRequest) -> JsonObject:
        """Return the body that asks for one completion, without keys that are not needed.

        `sampling.extra_body` has the last word. Raise ConfigError if a setting cannot be asked for in this form,
        RequestFailed if a message cannot.
        """

    @staticmethod
    def as_chat(body: JsonObject) -> JsonObject:
        """Return the body of an answer in the form of chat completions; raise RequestFailed if it tells a failure."""
        return body

    def completion(self, answer: HttpAnswer, request: ChatRequest) -> Completion:
        """Return the completion in an answer with HTTP 200; raise RequestFailed if there is none in it."""
        return read_completion(self.as_chat(parse_body(answer.content)), answer, request, self.endpoint.model)

    def text(self, message: Message) -> str:
        """Return the text of a message; raise RequestFailed if a part of it is something else, such as an image."""
        content: Any = message.get("content")
        parts = content if isinstance(content, list) else []
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else "text"
            if kind not in ("text", "input_text", "output_text"):
                problem = (
                    f"a message of the {message['role']} holds a part of type {kind!r}; through the API {self.path!r} "
                    "text alone is sent. Leave such parts out of the prompt, or set teacher.api: chat where the model "
                    "is served there"
                )
                raise RequestFailed(Failure(FailureKind.PERMANENT, problem))
        return text_of(message)


def given(**keys: Any) -> JsonObject:
    """Return the keys that have a value, so that all others are left to the endpoint."""
    return {key: value for key, value in keys.items() if value is not None}


def with_extra(body: JsonObject, extra_body: JsonObject) -> JsonObject:
    """Return the body with `rollouts.extra_body`; objects under one key become one."""
    both = ((key, body.get(key), value) for key, value in extra_body.items())
    return body | {
        key: {**mine, **value} if isinstance(mine, dict) and isinstance(value, dict) else value
        for key, mine, value in both
    }
