import pytest

from stillhouse.verification.result import VerificationResult

CITIES = ["Rome", "Paris", "Athens", "A cat"]


COMMITTED = {
    "A": "A | A.",
    "B": (
        "B | b | (B) | **B** | B) | B. | B) Paris | B. Paris is the capital. | The answer is (B)."
        " | The correct answer is **B** | The answer is B) Paris | The answer is B because it is | Answer: B"
        " | **Answer:** (B) | Final answer: B - Paris | \\boxed{B} | \\boxed{\\text{(B)}} | <answer>B</answer>"
        " | A) is wrong, since ...\nB) is right.\n\nSo I choose option B. | I would pick B | Thinking...\n\nB"
        " | First I thought (A), but it must be (B). | Option A is out. Option B is correct. | Answer: A\nAnswer: B"
        " | (A) fails. Final answer: B. | (C) is tempting. Final answer: B | Antwort: B | \u7b54\u6848\uff1aB"
        ' | \u6b63\u786e\u7b54\u6848\u662fB | Answer\uff1aB | {"answer": "B"} | Answer: B\n\n#### Why not A or C'
        " | **Answer: B**\n\nbecause \\boxed{A \\gg C} holds. | The answer is B. A is close."
        " | It's not A or C; it's B. | R\u00e9ponse : B | \u7b54\u3048\u306fB\u3067\u3059\u3002 | \uff22"
        " | B) is correct. Option A is incorrect, and (C) is not even close. | B, because A has no capital."
    ),
    "C": "It holds that C is correct here",
    None: (
        "A cat is an animal. | I think so. | Vitamin C and plan B are things | The answer is a matter of taste"
        " | I don't know | Answer: A or B | The answer is not B. | I would eliminate (C). | \\boxed{A} or \\boxed{B}"
    ),
}
"""Answers by the letter that they commit themselves to."""


@pytest.mark.parametrize(
    ("answer", "chosen"), [(answer, letter) for letter, answers in COMMITTED.items() for answer in answers.split(" | ")]
)
def test_the_letter_an_answer_commits_itself_to_is_found(find, answer: str, chosen: str | None) -> None:
    for letter in "ABC":
        assert find("choice", answer, letter).verified is (letter == chosen)


@pytest.mark.parametrize("expected", ["B", "(b)", "B.", "Paris", " paris ", "1", "B) Paris"])
def test_expected_option_is_a_letter_a_text_or_an_index(find, expected: str) -> None:
    assert find("choice", "The answer is (B)", expected, options=CITIES).verified is True
    assert find("choice", "The answer is (C)", expected, options=CITIES) == VerificationResult(False, "chose C", "C")


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        *((answer, "B") for answer in ("Paris", "Answer: Paris.", "The answer is Paris", "It is Paris, I think.")),
        *((answer, "D") for answer in ("A cat", "Answer: A cat", "Answer: D")),
        *((answer, None) for answer in ("Neither Rome nor Athens", "Answer: E")),
    ],
)
def test_options_are_known_by_their_texts(find, answer: str, chosen: str | None) -> None:
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
def test_options_come_in_the_forms_of_common_datasets(find, metadata: dict[str, object]) -> None:
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
    find, expected: str, metadata: dict[str, object]
) -> None:
    result = find("choice", "B", expected, **metadata)
    assert result.verified is None
    assert result.note
