import time

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("Paris", "Paris", True),
        ("  Paris\n", "Paris ", True),
        ("Let me see.\n\nAnswer: Paris", "Paris", True),
        ("\\boxed{Paris}", "Paris", True),
        ("paris", "Paris", False),
        ("Paris.", "Paris", False),
        ("I think Paris", "Paris", False),
    ],
)
def test_exact_compares_to_the_letter(find, answer: str, expected: str, verdict: bool) -> None:
    assert find("exact", answer, expected).verified is verdict


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("  Paris. ", "paris", True),
        ('"New\n York"', "new york", True),
        ("\uff11\uff12", "12", True),
        ("STRASSE", "stra\u00dfe", True),
        ("The answer is Paris.", "paris", True),
        ("So:\n**Answer:** Paris", "paris", True),
        ("Paris, France", "paris", False),
        ("don\u2019t", "don't", True),
        ("1990\u20131995", "1990-1995", True),
        ("\u22123", "-3", True),
        ("**Paris**", "Paris", True),
        ("Lyon is larger. Final answer: Paris.", "Paris", True),
        ("Paris is larger. Final answer: Lyon.", "Paris", False),
        ("Answer: Rome\nThe answer is not Paris", "paris", False),
    ],
)
def test_normalised_ignores_form_only(find, answer: str, expected: str, verdict: bool) -> None:
    assert find("normalised", answer, expected).verified is verdict


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("It is PARIS, of course", "Paris", True),
        ("The answer is 14", "4", False),
        ("It costs $5 (five)", "$5", True),
        ("a + b", "+", True),
        ("It is 2.5", "5", False),
        ("It is -5", "5", False),
        ("Not Paris. Answer: Lyon", "Paris", None),
    ],
)
def test_contains_looks_for_whole_words(find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("contains", answer, expected).verified is verdict


@pytest.mark.parametrize("verifier", ["exact", "normalised", "contains"])
@given(answer=st.text())
def test_a_text_equals_itself(find, verifier: str, answer: str) -> None:
    assert find(verifier, answer, answer).verified is True


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
        ("AB-1 is wrong. Answer: CD-2", "AB-1", None),
    ],
)
def test_pattern_is_searched_in_the_answer(find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("regex", answer, expected).verified is verdict


def test_pattern_that_takes_for_ever_leaves_the_answer_unverified(find) -> None:
    started = time.process_time()
    result = find("regex", "a" * 60 + "!", r"^(a|aa|aaa)+$(?<=b)")
    assert time.process_time() - started < 10
    assert result.verified is None
    assert "takes more than 1 s" in str(result.note)
