"""What verification finds: right, wrong, or unverified."""

from collections.abc import Callable
from typing import NamedTuple

from stillhouse.types import PromptMetadata


class VerificationResult(NamedTuple):
    """What one verifier says of an answer."""

    verified: bool | None
    """True: right; False: wrong; None: unverified, since nobody can say."""
    note: str | None = None
    """Why, where there is more to say than that."""


VerifyFunction = Callable[[str, PromptMetadata], VerificationResult]
"""A verifier: the final answer and what it is compared with. It never raises on any text."""


class Verdict(NamedTuple):
    """A `VerificationResult` and the verifier it came from."""

    verified: bool | None
    verifier: str | None
    """None where the prompt came without metadata."""
    note: str | None = None


def expected_text(metadata: PromptMetadata) -> str:
    """The expected answer of a prompt that has one.

    Raises:
        ValueError: it has none.
    """
    if metadata.expected_answer is None:
        raise ValueError(f"prompt {metadata.prompt_id} has no expected answer")
    return metadata.expected_answer
