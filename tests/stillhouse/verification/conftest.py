from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.types import PromptMetadata, StopReason, Trajectory, Turn
from stillhouse.verification.result import VerificationResult
from stillhouse.verification.verdicts import VERIFIERS


@pytest.fixture(scope="session")
def find() -> Callable[..., VerificationResult]:
    """Ask a verifier: `find("numeric", answer, expected, tolerance=0.1)`."""

    def found(verifier: str, answer: str, expected: str | None, **metadata: object) -> VerificationResult:
        return VERIFIERS[verifier](answer, PromptMetadata("p", expected, None, verifier, metadata))

    return found


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    """A finished trajectory of one turn whose answer is 5, unless told otherwise."""

    def make(**changes: Any) -> Trajectory:
        fields: dict[str, Any] = {
            "rollout_key": "key",
            "prompt_id": "p",
            "sample_index": 0,
            "messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}],
            "tools": [],
            "turns": [Turn("stop", {}, 0.5, "teacher-1")],
            "stop_reason": StopReason.ANSWERED,
            "model": "teacher",
        }
        return Trajectory(**(fields | changes))

    return make
