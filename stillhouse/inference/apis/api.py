"""`Api`: a wire form, which writes requests and reads answers and knows no connection."""

from collections.abc import Sequence, Set
from typing import Protocol

from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.transport import HttpAnswer
from stillhouse.types import JsonObject, Message, ToolSchema


class Api(Protocol):
    """One way to ask for a completion over HTTP."""

    @property
    def path(self) -> str:
        """Return the path below the endpoint's `base_url`."""

    def request(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        sampling: Sampling,
        refused: Set[str] = frozenset(),
    ) -> JsonObject:
        """Return the body that asks for one completion, without keys that are not needed.

        `refused` are keys of messages that the endpoint does not take. `sampling.extra_body` has the last word.
        """

    def completion(
        self, endpoint: Endpoint, answer: HttpAnswer, tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """Return the completion in an answer with HTTP 200; raise RequestFailed if there is none in it."""
