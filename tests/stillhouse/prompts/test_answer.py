import json
from collections import Counter
from typing import Any

import pytest

from stillhouse.config import PromptsConfig
from stillhouse.prompts.answer import as_text
from stillhouse.prompts.row import RowProblem, parse_row

BIG = 98765432109876543210
STDIN = {"inputs": ["1\n"], "outputs": ["2\n"]}
CALL = {"type": "function_call", "fn_name": "f", "input": "1", "output": "2"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"answer": "So.\n#### 72"}}, "72"),
        ({"reward_model": json.dumps({"ground_truth": 34})}, "34"),
        ({"reward_model": {"ground_truth": '["34"]'}}, "34"),
        ({"reward_model": {"ground_truth": ["a", "b"]}}, '["a","b"]'),
        ({"reward_model": {"ground_truth": {"target": ["a", "b"]}}}, '{"target":["a","b"]}'),
        ({"reward_model": {"style": "model", "ground_truth": ""}, "answer": "5"}, "5"),
        ({"reward_model": "none", "answer": "5"}, "5"),
        ({"verification_info": '{"ground_truth": "5"}'}, "5"),
        ({"answer": "72", "solution": "It is\n\\boxed{72}"}, "72"),
        ({"answer": "He sold 24.\n#### 1,072\n"}, "He sold 24.\n#### 1,072\n"),
        ({"solution": "So\nit is $\\boxed{2}$."}, "So\nit is $\\boxed{2}$."),
        ({"solution": "def f():\n    return 1"}, None),
        ({"label": "72"}, "72"),
        ({"label": 0}, "0"),
        ({"label": True}, None),
    ],
)
def test_the_expected_answer_is_found_under_the_names_of_other_programs(row: dict[str, Any], expected: str) -> None:
    _, metadata = parse_row({"prompt": "q", **row}, PromptsConfig())
    assert metadata.expected_answer == expected


@pytest.mark.parametrize(
    ("row", "test_cases"),
    [
        ({"reward_model": {"ground_truth": json.dumps(STDIN)}}, json.dumps(STDIN)),
        ({"input_output": json.dumps({**STDIN, "fn_name": "f"})}, json.dumps({**STDIN, "fn_name": "f"})),
        ({"verification_info": json.dumps({"language": "python", "test_cases": [CALL]})}, [CALL]),
        ({"test_list": ["assert f(1) == 2"]}, ["assert f(1) == 2"]),
        ({"test_cases": ["assert f(1) == 2"], "input_output": STDIN}, ["assert f(1) == 2"]),
        ({"input_output": "", "test_list": "see below"}, None),
    ],
)
def test_test_cases_are_found_under_the_names_of_other_programs(row: dict[str, Any], test_cases: object) -> None:
    _, metadata = parse_row({"prompt": "q", **row}, PromptsConfig())
    assert (metadata.expected_answer, metadata.metadata.get("test_cases")) == (None, test_cases)
    assert metadata.verifier == ("python" if test_cases else "normalised")


@pytest.mark.parametrize(
    ("row", "note", "left"),
    [
        (
            {"answer": "7", "ground_truth": "8", "label": 9},
            "have `answer` as expected answer, not `ground_truth` or `label`; name the one that is meant "
            "`expected_answer`",
            {"ground_truth": "8", "label": 9},
        ),
        ({"answer": "7", "solution": "So\n\\boxed{7}"}, None, {"solution": "So\n\\boxed{7}"}),
        ({"label": "7"}, "have `label` as expected answer; name the one that is meant `expected_answer`", {}),
        ({"reward_model": {"ground_truth": "7"}}, None, {"reward_model": {"ground_truth": "7"}}),
        ({"solution": "def f():\n    return 1"}, None, {"solution": "def f():\n    return 1"}),
    ],
)
def test_a_doubtful_column_is_named_and_nothing_else_is_lost(
    row: dict[str, Any], note: str | None, left: dict[str, Any]
) -> None:
    notes: Counter[str] = Counter()
    _, metadata = parse_row({"prompt": "q", **row}, PromptsConfig(), notes)
    assert notes == Counter([note] if note else [])
    assert metadata.metadata == left


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (BIG, str(BIG)),
        (-BIG, str(-BIG)),
        ([BIG], f"[{BIG}]"),
        (0.1, "0.1"),
        (1e5, "100000"),
        (29.0, "29"),
        (1e-7, "1e-07"),
        (True, "true"),
        (False, "false"),
        (None, None),
        (" ", None),
        ("29.0", "29.0"),
        ({"a": [1.0, None]}, '{"a":[1.0,null]}'),
    ],
)
def test_values_of_json_become_text(value: object, text: str | None) -> None:
    assert as_text(value, "answer") == text


def test_a_float_that_cannot_hold_all_digits_is_refused() -> None:
    with pytest.raises(RowProblem, match=r"answer, .* 9\.876543210987654e\+19"):
        parse_row({"prompt": "q", "answer": float(BIG)}, PromptsConfig())
