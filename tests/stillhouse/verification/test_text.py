import time

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("verifier", ["exact", "normalised", "contains"])
@given(answer=st.text())
def test_a_text_equals_itself(find, verifier: str, answer: str) -> None:
    assert find(verifier, answer, answer).verified is True


def test_pattern_that_takes_for_ever_leaves_the_answer_unverified(find) -> None:
    started = time.process_time()
    result = find("regex", "a" * 60 + "!", r"^(a|aa|aaa)+$(?<=b)")
    assert time.process_time() - started < 10
    assert result.verified is None
    assert "takes more than 1 s" in str(result.note)
