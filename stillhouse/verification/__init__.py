"""Verdicts on answers: right, wrong, or unverified."""

from stillhouse.verification.answers import final_answer
from stillhouse.verification.result import VerificationResult
from stillhouse.verification.verdicts import INFRASTRUCTURE_STOPS, examine, examine_trajectory, verify

__all__ = ["INFRASTRUCTURE_STOPS", "VerificationResult", "examine", "examine_trajectory", "final_answer", "verify"]
