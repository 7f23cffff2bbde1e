import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.verification import final_answer
from stillhouse.verification.answers import Answer, expected_answer, read_answer


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


LABELS = (
    "Antwort: | R\u00e9ponse : | Respuesta correcta: | Resposta: | Risposta: | \u041e\u0442\u0432\u0435\u0442:"
    " | \u7b54\u6848\uff1a | \u7b54\u3048\uff1a | \uc815\ub2f5: | \u0627\u0644\u0625\u062c\u0627\u0628\u0629:"
    " | \u0909\u0924\u094d\u0924\u0930: | Answer\uff1a | Antwoord:"
)
MARKS = {
    "the last mark": [
        ("so \\boxed{72}.", "72"),
        ("\\boxed{1}, or rather \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{ \\text{Paris} }", "Paris"),
        ("\\boxed {\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{1} and then \\boxed{2", "1"),
        ("\\boxed{1} and \\boxed{2}", "1, 2"),
        ("48 + 24 = 72\n#### 72", "72"),
        ("#### Step 1\nAdd.\n#### 1,234\n", "1,234"),
        ("Answer: Paris", "Paris"),
        ("**Final Answer:** Paris", "Paris"),
        ("**Answer**: *Paris*", "Paris"),
        ("Think.\n### Final answer\n\nParis", "Paris"),
        ("The answer: 5", "5"),
        ("Answer: 5\nNo.\nAnswer: 6", "6"),
        ("Answer: 5\nNo. \\boxed{6}", "6"),
        ("\\boxed{5} is a step.\nAnswer: 6", "6"),
        ("Answer: $\\boxed{5}$", "5"),
        ("<answer>\nParis\n</answer> I hope.", "Paris"),
        ("<answer>\\boxed{5}</answer>", "5"),
        ("Answer: __init__", "__init__"),
        ("(A) fails. Final answer: D.", "D."),
        ("Answer: $5", "$5"),
    ],
    "a box behind a label that is a step": [
        ("**Answer: D**\n\nbecause \\boxed{p \\gg k} holds.", "D"),
        ("Answer: 24\n\nHere \\boxed{12} is one row.", "24"),
        ("Answer: 24, since one row has \\boxed{12}.", "24, since one row has 12."),
    ],
    "a heading behind a mark": [("Answer: D\n\n#### Why the others fail", "D"), ("Answer: 5\n#### 6", "6")],
    "languages": [(f"{label} C", "C") for label in LABELS.split(" | ")],
    "blocks": [
        ("**Answer:**\n1. red\n2. green\n\nDone.", "1. red\n2. green"),
        ("Answer:\n```json\n[1]\n```", "[1]"),
        ("Answer:\n$$\n5\n$$", "5"),
    ],
}


@pytest.mark.parametrize(("text", "answer"), [case for cases in MARKS.values() for case in cases])
def test_the_last_mark_stands(text: str, answer: str) -> None:
    read = read_answer(text)
    assert (read.text, read.kind) == (answer, "mark")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So the final answer is: Paris.", "Paris."),
        ("The answer to your question is **Paris**", "Paris"),
        ("The answer is 1. No, the answer is 2", "2"),
        ("Die richtige Antwort ist C.", "C."),
        ("La respuesta correcta es C", "C"),
        ("\u6b63\u786e\u7b54\u6848\u662fC", "C"),
        ("\uc815\ub2f5\uc740 C", "C"),
    ],
)
def test_what_is_said_to_be_the_answer_reaches_to_the_end_of_the_line(text: str, answer: str) -> None:
    read = read_answer(text)
    assert (read.text, read.kind) == (answer, "said")


def test_other_evidence_is_weaker_than_a_mark() -> None:
    assert read_answer("Answer: Paris\nThe answer is sure.").text == "Paris"
    assert read_answer(' {"answer": "B", "why": "A fails"}') == Answer("B", 2, "key")
    assert read_answer('{"answer": [1, 2]}').text == "[1, 2]"
    for text in ("#### Step 1\nAdd.", "The wrong answer: 5", "Nothing is marked: 5"):
        assert read_answer(text) == Answer(text, 0, "whole")


@pytest.mark.parametrize("stored", ["72", "\\boxed{72}", "48 + 24 = 72\n#### 72", "It is $\\boxed{72}$."])
def test_expected_answers_are_read_like_answers(find, stored: str) -> None:
    assert expected_answer(stored) == "72"
    for verifier in ("exact", "normalised", "contains", "numeric", "math", "list", "json"):
        assert find(verifier, "\\boxed{72}", stored).verified is True
        assert find(verifier, "\\boxed{73}", stored).verified is False


@given(st.text(alphabet="ab1 +-/", min_size=1).map(str.strip).filter(bool))
def test_what_is_put_into_a_box_comes_out_of_it(answer: str) -> None:
    assert read_answer(f"thus \\boxed{{{answer}}}, as was asked").text == answer


# The bodies of texts of about 100,000 characters.
LONG = [
    "\\boxed{", "answer to ", "#### x\n", "<answer>", "*", "9", "answer: $$", " ", "\\boxed{x} and ", "1 ", "1/",
    "(A) ", "- x\n", "-", "\\frac{1}{2}", "a. ",
]  # fmt: skip


@pytest.mark.parametrize(
    "text", [*(part * (100_000 // len(part)) for part in LONG), "answer:" + "\n" * 100_000, '"answer":' + "[" * 100_000]
)
@pytest.mark.parametrize("verifier", ["normalised", "contains", "numeric", "choice", "list", "json"])
def test_long_texts_are_read_in_linear_time(find, verifier: str, text: str) -> None:
    started = time.process_time()
    find(verifier, text, "5", options=None)
    assert time.process_time() - started < 5
