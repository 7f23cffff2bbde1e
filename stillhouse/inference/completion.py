"""One completion, as a client gives it and as the journal keeps it."""

from dataclasses import dataclass

from stillhouse.inference.rate_limit.headers import RateLimits
from stillhouse.store import exact_json
from stillhouse.types import Message, Turn


@dataclass(frozen=True, slots=True)
class Completion:
    """One turn of the model, and the facts of it."""

    message: Message
    """In the form of `stillhouse.chat.assistant_message`; as its endpoint wrote it in journals of older versions."""
    turn: Turn
    limits: RateLimits | None = None
    """The endpoint's limits by the headers; true for a moment, so no journal keeps it."""


def encode_completion(completion: Completion) -> bytes:
    """Return the completion as the journal keeps it."""
    return exact_json.dumps({"message": completion.message, "turn": completion.turn})


def decode_completion(body: bytes) -> Completion:
    """Return the completion that `encode_completion` wrote, equal in every field but `limits`."""
    row = exact_json.loads(body)
    return Completion(row["message"], Turn(**row["turn"]))
