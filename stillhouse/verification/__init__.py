"""Whether an answer is right: right, wrong, or unverified."""

from stillhouse.verification.answers import final_answer
from stillhouse.verification.result import Verdict
from stillhouse.verification.verdicts import (
    INFRASTRUCTURE_STOPS,
    examine,
    examine_trajectory,
    verify,
    verify_ending,
    verify_trajectory,
)

__all__ = [
    "INFRASTRUCTURE_STOPS",
    "Verdict",
    "examine",
    "examine_trajectory",
    "final_answer",
    "verify",
    "verify_ending",
    "verify_trajectory",
]
