"""Answers compared as mathematics: `math`, by math-verify in a process of its own."""

import re
from typing import Final

from stillhouse.processes.worker_pool import WorkerFailed, WorkerPool, WorkerTimeout
from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import bare, stated_answer
from stillhouse.verification.result import VerificationResult, expected_text
from stillhouse.verification.text import normalised_text

TIMEOUT_S: Final = 10.0
"""Seconds one comparison may take. Most take a few milliseconds."""

_WORKERS: Final = WorkerPool("stillhouse.verification.math_worker")
_WHOLE: Final = re.compile(r"-?\d{1,18}")
_LATEX_NOISE: Final = re.compile(r"\s|\$|\\[,;:!]|\\left(?![a-z])|\\right(?![a-z])|\.$")


def mathematics(answer: str, metadata: PromptMetadata) -> VerificationResult:
    r"""Right where the answer is mathematically equal to the expected one, in LaTeX or plain: `\frac12`, `1/2`, `0.5`.

    What the answer marks as such counts, else what math-verify extracts: the last formula or number. Texts that are
    equal, and whole numbers, need no algebra. Where the expected answer is no mathematics, only an equal text is right
    and nothing is wrong; neither is an answer that cannot be compared within `TIMEOUT_S`.
    """
    expected = expected_text(metadata)
    stated = stated_answer(answer)
    seen = answer if stated is None else stated
    if _plain(seen) == _plain(expected) or normalised_text(bare(seen)) == normalised_text(bare(expected)):
        return VerificationResult(True)
    if _WHOLE.fullmatch(_plain(seen)) and _WHOLE.fullmatch(_plain(expected)):
        return VerificationResult(int(_plain(seen)) == int(_plain(expected)))
    question = {"expected": expected, "answer": answer, "stated": stated}
    try:
        found = _WORKERS.request(question, TIMEOUT_S)
    except WorkerTimeout:
        return VerificationResult(None, f"the comparison takes more than {TIMEOUT_S:g} s")
    except WorkerFailed as error:
        return VerificationResult(None, str(error))
    if found["verified"] is None:
        return VerificationResult(None, f"the expected answer cannot be read as mathematics: {expected[:80]!r}")
    return VerificationResult(found["verified"])


def _plain(text: str) -> str:
    """Without what changes a formula's looks only."""
    return _LATEX_NOISE.sub("", text.strip()).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
