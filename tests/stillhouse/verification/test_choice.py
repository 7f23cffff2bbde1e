from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.verification.result import VerificationResult

Find = Callable[..., VerificationResult]
CITIES = ["Rome", "Paris", "Athens", "A cat"]


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B)", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        ("B. Paris is the capital.", "B"),
        ("The answer is (B).", "B"),
        ("The correct answer is **B**", "B"),
        ("The answer is B) Paris", "B"),
        ("The answer is B because it is", "B"),
        ("Answer: B", "B"),
        ("**Answer:** (B)", "B"),
        ("Final answer: B - Paris", "B"),
        ("\\boxed{B}", "B"),
        ("\\boxed{\\text{(B)}}", "B"),
        ("<answer>B</answer>", "B"),
        ("A) is wrong, since ...\nB) is right.\n\nSo I choose option B.", "B"),
        ("First I thought (A), but it must be (B).", "B"),
        ("Option A is out. Option B is correct.", "B"),
        ("I would pick B", "B"),
        ("B) is correct. Option A is incorrect, and (C) is not even close.", "B"),
        ("B, because A has no capital.", "B"),
        ("It holds that C is correct here", "C"),
        ("Thinking...\n\nB", "B"),
        ("Answer: A\nWait.\nAnswer: B", "B"),
        ("A", "A"),
        ("A.", "A"),
        ("A cat is an animal.", None),
        ("I think so.", None),
        ("Vitamin C and plan B are things", None),
        ("The answer is a matter of taste", None),
        ("I don't know", None),
    ],
)
def test_the_letter_an_answer_commits_itself_to_is_found(find: Find, answer: str, chosen: str | None) -> None:
    for letter in "ABC":
        assert find("choice", answer, letter).verified is (letter == chosen)


@pytest.mark.parametrize("expected", ["B", "(b)", "B.", "Paris", " paris ", "1", "B) Paris"])
def test_expected_option_is_a_letter_a_text_or_an_index(find: Find, expected: str) -> None:
    assert find("choice", "The answer is (B)", expected, options=CITIES).verified is True
    assert find("choice", "The answer is (C)", expected, options=CITIES) == VerificationResult(False, "chose C")


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        ("Paris", "B"),
        ("Answer: Paris.", "B"),
        ("The answer is Paris", "B"),
        ("It is Paris, without any doubt.", "B"),
        ("Neither Rome nor Athens", None),
        ("A cat", "D"),
        ("Answer: A cat", "D"),
        ("Answer: D", "D"),
        ("Answer: E", None),
    ],
)
def test_options_are_known_by_their_texts(find: Find, answer: str, chosen: str | None) -> None:
    for letter in "ABCD":
        assert find("choice", answer, letter, options=CITIES).verified is (letter == chosen)


@pytest.mark.parametrize(
    "metadata",
    [
        {"options": ["Rome", "Paris"]},
        {"choices": ["Rome", "Paris"]},
        {"options": '["Rome", "Paris"]'},
        {"options": {"A": "Rome", "B": "Paris"}},
        {"choices": {"label": ["A", "B"], "text": ["Rome", "Paris"]}},
        {"options": ["A) Rome", "B) Paris"]},
    ],
)
def test_options_come_in_the_forms_of_common_datasets(find: Find, metadata: dict[str, object]) -> None:
    assert find("choice", "Paris", "B", **metadata).verified is True
    assert find("choice", "Rome", "B", **metadata).verified is False


@pytest.mark.parametrize(
    ("expected", "metadata"),
    [
        ("Paris", {}),
        ("Berlin", {"options": CITIES}),
        ("B", {"options": 5}),
        ("1", {"options": {"label": ["1", "2"], "text": ["Rome", "Paris"]}}),
        ("B", {"options": "Rome or Paris"}),
    ],
)
def test_options_that_cannot_be_told_leave_the_answer_unverified(
    find: Find, expected: str, metadata: dict[str, object]
) -> None:
    result = find("choice", "B", expected, **metadata)
    assert result.verified is None
    assert result.note


@given(
    st.sampled_from("ABCDEFGH"), st.sampled_from(["{}", "({})", "**{}**", "Answer: {}", "\\boxed{{{}}}", "{}) it is"])
)
def test_a_choice_equals_itself(find: Find, letter: str, form: str) -> None:
    assert find("choice", form.format(letter), letter).verified is True
