import time
from collections.abc import Callable

import pytest

from stillhouse.verification.result import VerificationResult

Find = Callable[..., VerificationResult]


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("The code is AB-1234.", r"[A-Z]{2}-\d{4}", True),
        ("The code is ab-1234.", r"[A-Z]{2}-\d{4}", False),
        ("the code is ab-1234.", r"(?i)[A-Z]{2}-\d{4}", True),
        ("first\nlast", r"^last$", False),
        ("first\nlast", r"(?m)^last$", True),
        ("x", r"(?<=a+)x", False),
        ("aax", r"(?<=a+)x", True),
        ("anything", "(", None),
    ],
)
def test_pattern_is_searched_in_the_answer(find: Find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("regex", answer, expected).verified is verdict


def test_pattern_that_takes_for_ever_leaves_the_answer_unverified(find: Find) -> None:
    started = time.process_time()
    finding = find("regex", "a" * 60 + "!", r"^(a|aa|aaa)+$(?<=b)")
    assert time.process_time() - started < 10
    assert finding.verified is None
    assert "takes more than 1 s" in str(finding.note)
