"""What the engine asks of an HTTP path: one attempt at one completion.

Everything above knows only `ChatClient`, so that one path can take another's place.
"""

from collections.abc import Sequence
from typing import Protocol

from stillhouse.inference.completion import Completion, Sampling
from stillhouse.types import Message, ToolSchema


class ChatClient(Protocol):
    """Asks an endpoint for one completion."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """The completion of one attempt.

        Raises:
            RequestFailed: there is none; the failure says why and whether to try again.
        """

    async def aclose(self) -> None:
        """Closes the connections."""
