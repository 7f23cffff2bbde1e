"""Verdicts on trajectories by their final answers: True, False, or None if unverified.

Failures of the infrastructure, of the rollout or of a verifier, are never wrong answers.
"""

from collections.abc import Sequence
from typing import Final

from stillhouse.chat.thoughts import split_thoughts
from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory
from stillhouse.verification.answers import final_answer
from stillhouse.verification.choice import choice
from stillhouse.verification.code.check import python
from stillhouse.verification.json_value import json_value
from stillhouse.verification.mathematics import mathematics
from stillhouse.verification.numeric import numeric
from stillhouse.verification.result import VerificationResult, VerifyFunction
from stillhouse.verification.sets import list_, set_
from stillhouse.verification.text import contains, exact, normalised, pattern

INFRASTRUCTURE_STOPS: Final = frozenset(
    {StopReason.ERROR, StopReason.TIMEOUT, StopReason.CONTENT_FILTER, StopReason.UNFINISHED}
)
"""Stop reasons that say nothing about the sampled model."""
JUDGE: Final = "judge"
"""The verifier that is not a function: a language model decides, elsewhere."""
VERIFIERS: Final[dict[str, VerifyFunction]] = {
    "exact": exact,
    "normalised": normalised,
    "contains": contains,
    "numeric": numeric,
    "math": mathematics,
    "choice": choice,
    "set": set_,
    "list": list_,
    "regex": pattern,
    "json": json_value,
    "python": python,
}
_EXPECTED_ANSWER_KEYS: Final = {"json": "answer_schema", "python": "test_cases"}
"""Metadata keys that replace the expected answer of a verifier."""


def examine(
    messages: Sequence[Message], stop_reason: StopReason | None, metadata: PromptMetadata | None
) -> VerificationResult:
    """Return whether a conversation, empty if nothing was sampled, ended with the right answer, and why not.

    Unverified if there is nothing to compare with, the infrastructure failed, or a judge decides; wrong if the model
    gave no answer. It never raises because of what a model wrote.
    """
    if metadata is None:
        return VerificationResult(None)
    obstacle = _obstacle(metadata)
    answer = final_answer(messages)
    if obstacle is not None:
        result = VerificationResult(None, obstacle)
    elif stop_reason in INFRASTRUCTURE_STOPS:
        result = VerificationResult(None, f"the trajectory stopped for {stop_reason}")
    elif stop_reason is not StopReason.ANSWERED:
        result = VerificationResult(False, f"the trajectory stopped for {stop_reason} before it came to an answer")
    elif answer is None:
        result = VerificationResult(False, "the last message holds no answer")
    else:
        result = VERIFIERS[metadata.verifier](answer, metadata)
    return result._replace(verifier=metadata.verifier)


def examine_trajectory(trajectory: Trajectory, metadata: PromptMetadata | None) -> VerificationResult:
    """Return what `examine` finds of a trajectory."""
    # Without a turn the last assistant message is the prompt's own.
    return examine(trajectory.messages if trajectory.turns else [], trajectory.stop_reason, metadata)


def verify(answer: str, metadata: PromptMetadata) -> bool | None:
    """Return whether an answer's text agrees with what `metadata` expects, under `metadata.verifier`."""
    if _obstacle(metadata):
        return None
    return VERIFIERS[metadata.verifier](split_thoughts(answer).answer, metadata).verified


def _obstacle(metadata: PromptMetadata) -> str | None:
    """Return why no answer to this prompt can be verified here; None if one can."""
    if metadata.verifier == JUDGE:
        return "left to the judge"
    if metadata.verifier not in VERIFIERS:
        return f"expected a verifier among {', '.join(VERIFIERS)}, saw {metadata.verifier!r}"
    if metadata.expected_answer is None and not metadata.metadata.get(_EXPECTED_ANSWER_KEYS.get(metadata.verifier, "")):
        return "no answer is expected"
    return None
