"""Results of verification: right, wrong, or unverified."""

from collections.abc import Callable
from typing import NamedTuple

from stillhouse.types import JsonObject, PromptMetadata


class VerificationResult(NamedTuple):
    verified: bool | None
    """True: right; False: wrong; None: unverified."""
    note: str | None = None
    """The reason, if there is more to say."""
    compared: str | None = None
    """The text of the answer that was compared with the expected one; None if there was none."""
    verifier: str | None = None
    """None if the prompt has no metadata."""

    @property
    def columns(self) -> JsonObject:
        return {
            "verifier": self.verifier,
            "verified": self.verified,
            "compared": self.compared,
            "verification": self.note,
        }


VerifyFunction = Callable[[str, PromptMetadata], VerificationResult]
"""A verifier: takes the final answer and what it is compared with. It never raises on any text."""


def expected_text(metadata: PromptMetadata) -> str:
    """Return the expected answer of a prompt; raise ValueError if it has none."""
    if metadata.expected_answer is None:
        raise ValueError(f"prompt {metadata.prompt_id} has no expected answer")
    return metadata.expected_answer
