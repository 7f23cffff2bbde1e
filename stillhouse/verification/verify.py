"""Whether a trajectory's answer is right: True, False, or None where nobody can say.

Failures of the infrastructure are never wrong answers. Equivalence of formulas, tests of code and judges are not here.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Final

from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory

INFRASTRUCTURE_STOPS: Final = frozenset({StopReason.ERROR, StopReason.TIMEOUT, StopReason.CONTENT_FILTER})
"""Ends of a trajectory that say nothing about the model that was sampled."""
RELATIVE_TOLERANCE: Final = Decimal("1e-6")
"""Largest relative difference of numbers that are not both whole; whole numbers must be equal."""

_SEPARATOR: Final = "[,_\u00a0\u202f]"
_MINUS: Final = "[-\u2212]"
# A minus after a digit or a closing bracket subtracts; a comma separates thousands only before exactly three digits.
_NUMBER: Final = re.compile(
    rf"(?:(?<![\w)\]]){_MINUS})?"
    rf"(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{{1,3}}(?![\w.]))?"
    r"(?:/\d+(?![/\d]))?"
)


def final_answer(messages: Sequence[Message]) -> str | None:
    """The text of the last message if that is the assistant's and calls no tool; None otherwise, or if it is blank."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or last.get("tool_calls"):
        return None
    content = last.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content if content and not content.isspace() else None


def verify(answer: str, metadata: PromptMetadata) -> bool | None:
    """Whether `answer` agrees with `metadata.expected_answer` under `metadata.verifier`.

    None if no answer is expected, or if the expected answer of a `numeric` prompt holds no number. A number under
    `metadata.metadata["tolerance"]` is the largest absolute difference accepted instead of `RELATIVE_TOLERANCE`.
    """
    if metadata.expected_answer is None:
        return None
    return _VERIFIERS[metadata.verifier](answer, metadata.expected_answer, metadata)


def verify_trajectory(trajectory: Trajectory, metadata: PromptMetadata | None) -> bool | None:
    """Whether a trajectory ended with the right answer; see `verify_ending`."""
    # Without a turn the last assistant message is the prompt's own.
    return verify_ending(trajectory.messages if trajectory.turns else [], trajectory.stop_reason, metadata)


def verify_ending(
    messages: Sequence[Message], stop_reason: StopReason | None, metadata: PromptMetadata | None
) -> bool | None:
    """Whether a conversation that stopped for `stop_reason` ended with the right answer.

    None if no answer is expected or the infrastructure failed; False if the model did not come to an answer.
    """
    if metadata is None or metadata.expected_answer is None or stop_reason in INFRASTRUCTURE_STOPS:
        return None
    answer = final_answer(messages)
    if stop_reason is not StopReason.ANSWERED or answer is None:
        return False
    return verify(answer, metadata)


def last_number(text: str) -> Decimal | None:
    """The last number written in `text`: signed, with thousands separators, decimals, an exponent, or a fraction."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    numerator, _, denominator = re.sub(_SEPARATOR, "", found[-1]).replace("\u2212", "-").partition("/")
    if not denominator:
        return Decimal(numerator)
    below = Decimal(denominator)
    return Decimal(numerator) / below if below else Decimal(numerator)


def _numeric(answer: str, expected: str, metadata: PromptMetadata) -> bool | None:
    wanted = last_number(expected)
    if wanted is None:
        return None
    seen = last_number(answer)
    if seen is None:
        return False
    tolerance = metadata.metadata.get("tolerance")
    with localcontext(prec=50):
        if isinstance(tolerance, int | float):
            return abs(seen - wanted) <= Decimal(str(tolerance))
        if seen == wanted or (_is_whole(seen) and _is_whole(wanted)):
            return seen == wanted
        return abs(seen - wanted) <= RELATIVE_TOLERANCE * max(abs(seen), abs(wanted))


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()


def _exact(answer: str, expected: str, metadata: PromptMetadata) -> bool:
    return _normalised(answer) == _normalised(expected)


def _contains(answer: str, expected: str, metadata: PromptMetadata) -> bool:
    # Whole words: an expected "4" is not in "14".
    return re.search(rf"(?<!\w){re.escape(_normalised(expected))}(?!\w)", _normalised(answer)) is not None


def _normalised(text: str) -> str:
    """Compatibility forms, case, runs of white space, outer quotes and a closing full stop do not count."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip("\"'`").removesuffix(".").strip("\"'` ")


_VERIFIERS: Final[dict[str, Callable[[str, str, PromptMetadata], bool | None]]] = {
    "numeric": _numeric,
    "exact": _exact,
    "contains": _contains,
}
