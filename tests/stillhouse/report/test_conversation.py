from typing import Any

import pytest

from stillhouse.report import SampleTrajectory
from stillhouse.report.conversation import CallView, comparison


def trajectory(*messages: Any) -> SampleTrajectory:
    return SampleTrajectory(messages=messages, stop_reason="answered", verified=True, stage="teacher")


@pytest.mark.parametrize(
    ("call", "view"),
    [
        (
            {"function": {"name": "search", "arguments": '{"query": "caf\u00e9", "top": 3, "deep": true}'}},
            CallView("search", 'query="caf\u00e9", top=3, deep=true', malformed=False),
        ),
        # A dataset's row holds objects.
        ({"function": {"name": "f", "arguments": {"a": 1}}}, CallView("f", "a=1", malformed=False)),
        *(
            ({"function": {"name": "f", "arguments": text}}, CallView("f", text, malformed=True))
            for text in ('{"a": ', "[1]", "7")
        ),
        *(
            ({"function": function}, CallView("f", "", malformed=False))
            for function in ({"name": "f"}, {"name": "f", "arguments": ""})
        ),
        ({"function": None}, CallView("", "", malformed=True)),
        ("g(1)", CallView("", "", malformed=True)),
    ],
)
def test_a_tool_call_reads_as_code_and_a_malformed_one_as_it_was_written(call: Any, view: CallView) -> None:
    assert trajectory({"role": "assistant", "content": None, "tool_calls": [call]}).views[0].calls == [view]


def test_a_long_question_is_cut_and_turns_are_counted() -> None:
    question = {"role": "user", "content": "word " * 99}
    sample = trajectory({"role": "system", "content": "s"}, question, {"role": "assistant", "content": "a"})
    assert sample.question.endswith("\u2026")
    assert len(sample.question) < 120
    assert (sample.num_turns, sample.verdict) == (1, "right")


def test_content_in_parts_and_no_content_are_readable() -> None:
    parts = trajectory({"role": "user", "content": [{"type": "text", "text": "hi"}]})
    assert parts.views[0].content == "hi"
    assert trajectory({"role": "assistant", "content": None}).question == "(no user message)"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_is_shown_under_either_of_its_names(key: str) -> None:
    assert trajectory({"role": "assistant", "content": "a", key: "because"}).views[0].reasoning == "because"


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    (view,) = trajectory({"role": "user", "content": "x" * 1_000_000}).views
    assert view.content.endswith("[996,000 more characters]")
    assert len(view.content) < 4100


def test_of_a_long_conversation_start_and_end_are_shown() -> None:
    views = trajectory(*({"role": "user", "content": str(number)} for number in range(1000))).views
    assert [view.content for view in views[18:23]] == ["18", "19", "960 messages", "980", "981"]
    assert views[-1].content == "999"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((False, "4", "5", None), "compared “4” with expected “5”: wrong"),
        ((True, "5", "5.0", None), "compared “5” with expected “5.0”: right"),
        ((True, "5", "five" * 60 + "\n#### 5", None), f"compared “5” with expected “e{'five' * 48} #### 5”: right"),
        ((None, "x", "y", "too long"), "compared “x” with expected “y”: unverified; too long"),
        ((False, "def f():", None, "test 1 fails"), "compared “def f():”: wrong; test 1 fails"),
        ((False, None, "5", "no answer"), "wrong: expected “5”; no answer"),
        ((True, None, "5", None), ""),
        ((None, None, None, None), ""),
        ((True, "a\n" * 300, "a", None), f"compared “{'a ' * 99}a…” with expected “a”: right"),
    ],
)
def test_a_verdict_says_what_was_compared_with_what(row: tuple[bool | None, str | None, ...], words: str) -> None:
    columns = dict(zip(("verified", "compared", "expected_answer", "verification"), row, strict=True))
    assert comparison(columns) == words
    assert comparison({name: value for name, value in columns.items() if value is not None}) == words
