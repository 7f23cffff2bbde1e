"""`Conversation`: what was said in a rollout so far, and what identifies and sizes its next request."""

from collections.abc import Iterable

from stillhouse.inference.keys import RequestDigest
from stillhouse.types import Message, Turn


class Conversation:
    """Messages in order and the facts of those that were sampled.

    It outlives the agent loop, so that a rollout that is cut off keeps its part. Messages are added and never changed,
    so each is written out once for the digests of all requests that hold it.

    Args:
        messages: what the rollout begins with.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.digest = RequestDigest()
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Appends a message."""
        self.messages.append(message)
        self.digest.add(message)

    @property
    def num_characters(self) -> int:
        """Length of the messages as JSON in UTF-8."""
        return self.digest.num_characters
