import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.verification import final_answer
from stillhouse.verification.answers import spoken_answer, stated_answer, whole_answers


def test_final_answer_is_the_text_of_a_last_message_without_calls() -> None:
    question: Any = {"role": "user", "content": "q"}
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert final_answer([question, {"role": "assistant", "content": "a"}]) == "a"
    parts: Any = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert final_answer([question, {"role": "assistant", "content": parts}]) == "ab"
    calling: Any = {"role": "assistant", "content": "a", "tool_calls": calls}
    assert final_answer([question, calling]) is None
    assert final_answer([{"role": "assistant", "content": "a"}, question]) is None
    assert final_answer([question, {"role": "assistant", "content": " \n"}]) is None
    assert final_answer([question, {"role": "assistant", "content": None}]) is None
    assert final_answer([question, {"role": "assistant", "reasoning": "5", "content": ""}]) is None
    assert final_answer([]) is None
    assert final_answer([{"role": "assistant", "content": "<think>71? no, 72</think>\n\n72"}]) == "72"
    assert final_answer([{"role": "assistant", "content": "<think>never ends"}]) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{72}.", "72"),
        ("\\boxed{1}, or rather \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{ \\text{Paris} }", "Paris"),
        ("\\boxed {\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{1} and then \\boxed{2", "1"),
        ("48 + 24 = 72\n#### 72", "72"),
        ("#### Step 1\nAdd.\n#### 1,234\n", "1,234"),
        ("#### Step 1\nAdd.", None),
        ("Answer: Paris", "Paris"),
        ("**Final Answer:** Paris", "Paris"),
        ("**Answer**: *Paris*", "Paris"),
        ("Think.\n### Final answer\n\nParis", "Paris"),
        ("The answer: 5", "5"),
        ("Answer: 5\nNo.\nAnswer: 6", "6"),
        ("Answer: $\\boxed{5}$", "5"),
        ("<answer>\nParis\n</answer> I hope.", "Paris"),
        ("<answer>\\boxed{5}</answer>", "5"),
        ("The answer is 5", None),
        ("Nothing is marked: 5", None),
    ],
)
def test_the_last_mark_stands(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So the final answer is: Paris.", "Paris."),
        ("The answer to your question is **Paris**", "Paris"),
        ("The answer is 1. No, the answer is 2", "1. No, the answer is 2"),
        ("Paris", None),
    ],
)
def test_what_is_said_to_be_the_answer_reaches_to_the_end_of_the_line(text: str, answer: str | None) -> None:
    assert spoken_answer(text) == answer


def test_a_mark_is_believed_over_words() -> None:
    assert list(whole_answers("Answer: Paris\nThe answer is sure.")) == ["Answer: Paris\nThe answer is sure.", "Paris"]


@given(st.text(alphabet="ab1 +-/", min_size=1).map(str.strip).filter(bool))
def test_what_is_put_into_a_box_comes_out_of_it(answer: str) -> None:
    assert stated_answer(f"thus \\boxed{{{answer}}}, as was asked") == answer


@pytest.mark.parametrize("text", ["\\boxed{" * 40_000, "answer to " * 40_000, "#### x\n" * 40_000, "<answer>" * 40_000])
def test_long_texts_are_read_in_linear_time(text: str) -> None:
    started = time.process_time()
    list(whole_answers(text))
    assert time.process_time() - started < 5
