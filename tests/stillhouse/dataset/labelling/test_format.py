from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.format import format_labels
from stillhouse.types import Turn

Label = Callable[..., Any]

BROKEN = (
    ("<think>2 + 3", "messages[3], line 1: <think> is never closed"),
    ("2 + 3\n</think>\n5", "messages[3], line 2: saw </think>, expected no tag"),
    ("</think>5<think>", "messages[3], line 1: saw </think>, expected no tag"),
    ("<think>a<think>b</think>5", "messages[3], line 1: saw <think>, expected </think>"),
    ("<think>a</thinking>5", "messages[3], line 1: saw </thinking>, expected </think>"),
    ("<think>a</think>b</think>5", "messages[3], line 1: saw </think>, expected no tag"),
    ("<think>\n```\nx</think>5", "messages[3], line 2: a code fence is never closed"),
    ("So:\n\n```python\nprint(5)", "messages[3], line 3: a code fence is never closed"),
    ('<tool_call>\n{"name": "calculator"}', "messages[3], line 1: <tool_call> was left in the content"),
    ("5\n<|im_end|>", "messages[3], line 2: <|im_end|> was left in the content"),
    ("5<|eot_id|>", "messages[3], line 1: <|eot_id|> was left in the content"),
    ("<\uff5ctool▁calls▁begin\uff5c>", "messages[3], line 1: <\uff5ctool▁calls▁begin\uff5c> was left in the content"),
    ("<function=calculator>", "messages[3], line 1: <function=calculator> was left in the content"),
    ("<minimax:tool_call>", "messages[3], line 1: <minimax:tool_call> was left in the content"),
    ('[TOOL_CALLS] [{"name": "x"}]', "messages[3], line 1: [TOOL_CALLS] was left in the content"),
    ("5<end_of_turn>", "messages[3], line 1: <end_of_turn> was left in the content"),
    ('{"name": "calculator", "arguments": {}}', "messages[3]: the content is a call of the tool calculator"),
    (' {"name": "calculator", "parameters": {"x": 1}}', "messages[3]: the content is a call of the tool calculator"),
)
WELL_FORMED = (
    None,
    "The answer is 5.",
    "<think>2 + 3</think>5",
    "<thinking>2 + 3</thinking>\n5",
    "I think, therefore 5 > 4 and 3 < 4.",
    "The tag `<think>` opens the reasoning.",
    "```\n<think>\n<|im_start|>\n```",
    "```python\nprint(5)\n```",
    "1. Run\n   ```sh\n   make\n   ```\n2. Done",
    "~~~\n```\n~~~",
    "It ends with `<|endoftext|>` or `</tool_call>`.",
    "In F#, x <| f and a |> b pipe values.",
    "In Haskell, p <|> q tries p first.",
    "<b>5</b> is the <i>tool call</i> count.",
    "a <function> of x",
    "[INSTRUCTIONS] and [tool_calls] are words.",
    '{"name": "Anna", "arguments": 2}',
    '{"name": "calculator", "price": 2}',
    '{"name": ["calculator"], "arguments": 2}',
    "{x: x < 5}",
    '["name", "arguments"]',
    "$|a| < |b|$ and <|x|>2",
)


@pytest.mark.parametrize(("answer", "problem"), BROKEN)
def test_what_is_broken_is_named_with_its_place(label_of: Label, answer: str, problem: str) -> None:
    assert label_of(format_labels, "format_problem", answer) == problem


@pytest.mark.parametrize("answer", WELL_FORMED)
def test_what_is_well_formed_has_no_problem(label_of: Label, answer: str | None) -> None:
    assert label_of(format_labels, "format_problem", answer) is None


def test_earlier_turns_are_looked_at_and_the_prompt_is_not(make_input: Callable[..., LabelInput]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "<think>"},
        {"role": "assistant", "content": "<|im_end|>"},
        {"role": "user", "content": "```"},
        {"role": "assistant", "content": [{"type": "text", "text": "<tool_call>"}], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "<think>"},
        {"role": "assistant", "content": "5"},
    ]
    assert format_labels([make_input(messages=messages)])["format_problem"] == [
        "messages[3], line 1: <tool_call> was left in the content"
    ]
    last = make_input(messages=messages, turns=[Turn("stop", {}, 0.0, "teacher")])
    assert format_labels([last])["format_problem"] == [None]
