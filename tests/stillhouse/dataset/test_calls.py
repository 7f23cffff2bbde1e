import json
from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.chat.content import calls_of
from stillhouse.config import Criterion, JudgeConfig
from stillhouse.dataset.duplicates.signatures import texts_of
from stillhouse.dataset.judge import question_of
from stillhouse.dataset.label_input import LabelInput
from stillhouse.types import Trajectory

NO_ARGUMENTS = {"id": "c", "function": {"name": "f"}}


def message(*calls: Any) -> Any:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


@pytest.mark.parametrize("written", [NO_ARGUMENTS, "f(1)"])
def test_labels_and_the_judge_read_odd_calls(make_trajectory: Callable[..., Trajectory], written: Any) -> None:
    plain = make_trajectory()
    trajectory = make_trajectory(messages=[plain.messages[0], message(written), *plain.messages[2:]])
    (call,) = calls_of(trajectory.messages[1])
    item = LabelInput.of(trajectory, None)
    assert item.sampled_text == "\n".join(part for part in (call.arguments, item.answer) if part)
    question = question_of(trajectory, None, JudgeConfig(rubric=(Criterion(name="x", question="y"),)))
    assert question is not None
    asked = str(question.prompt.messages[1]["content"])
    assert f"[2] assistant calls {call.name or 'a tool'}:\n{call.arguments}" in asked


def test_arguments_are_the_same_text_to_compare_whether_stored_as_text_or_as_an_object() -> None:
    arguments = {"b": 2, "a": "é"}
    stored = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    written = {"id": "c", "function": {"name": "f", "arguments": json.dumps(arguments, indent=1)}}
    assert texts_of([message(stored)], 1) == texts_of([message(written)], 1)
    assert texts_of([message(NO_ARGUMENTS, "f(1)")], 1).row == "f {}"
