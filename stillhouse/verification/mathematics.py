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
    r"""Right if the answer is mathematically equal to the expected one, in LaTeX or plain: `\frac12`, `1/2`, `0.5`.

    The answer's marked part counts, else what math-verify extracts: the last formula or number. Equal texts and whole
    numbers need no algebra. If the expected answer is not mathematics, only an equal text is right and all others are
    unverified, as is an answer that cannot be compared within `TIMEOUT_S`.
    """
    expected = expected_text(metadata)
    stated = stated_answer(answer)
    candidate = answer if stated is None else stated
    plain, plain_expected = _plain(candidate), _plain(expected)
    if plain == plain_expected or normalised_text(bare(candidate)) == normalised_text(bare(expected)):
        return VerificationResult(True)
    if _WHOLE.fullmatch(plain) and _WHOLE.fullmatch(plain_expected):
        return VerificationResult(int(plain) == int(plain_expected))
    request = {"expected": expected, "answer": answer, "stated": stated}
    try:
        verified = _WORKERS.request(request, TIMEOUT_S)["verified"]
    except WorkerTimeout:
        return VerificationResult(None, f"the comparison takes more than {TIMEOUT_S:g} s")
    except WorkerFailed as error:
        return VerificationResult(None, str(error))
    if verified is None:
        return VerificationResult(None, f"the expected answer cannot be read as mathematics: {expected[:80]!r}")
    return VerificationResult(verified)


def _plain(text: str) -> str:
    """A formula without commands that only change its looks."""
    return _LATEX_NOISE.sub("", text.strip()).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
