from stillhouse.report import SampleTrajectory
from stillhouse.report.conversation import CallView, view
from stillhouse.types import Message


def call(name: str, arguments: str) -> Message:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def trajectory(*messages: Message) -> SampleTrajectory:
    return SampleTrajectory(messages=messages, stop_reason="answered", verified=True, stage="teacher")


def test_a_tool_call_reads_as_code() -> None:
    shown = view(trajectory(call("search", '{"query": "caf\u00e9", "top": 3, "deep": true}')))
    assert shown.messages[0].calls == [CallView("search", 'query="caf\u00e9", top=3, deep=true', malformed=False)]


def test_arguments_that_are_no_object_are_shown_as_written() -> None:
    for raw in ('{"a": ', "[1]", "7", ""):
        assert view(trajectory(call("f", raw))).messages[0].calls == [CallView("f", raw, malformed=True)]


def test_a_long_question_is_cut_and_turns_are_counted() -> None:
    answer: Message = {"role": "assistant", "content": "a"}
    shown = view(trajectory({"role": "system", "content": "s"}, {"role": "user", "content": "word " * 99}, answer))
    assert shown.question.endswith("\u2026")
    assert len(shown.question) < 120
    assert shown.num_turns == 1
    assert shown.verdict == "right"


def test_content_in_parts_and_no_content_are_readable() -> None:
    parts: Message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}  # type: ignore[typeddict-item]
    assert view(trajectory(parts)).messages[0].content == "hi"
    assert view(trajectory({"role": "assistant", "content": None})).question == "(no user message)"


def test_arguments_of_a_datasets_row_are_objects_and_read_the_same() -> None:
    message: Message = {"role": "assistant", "content": None}
    message["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]  # type: ignore[typeddict-item]
    assert view(trajectory(message)).messages[0].calls == [CallView("f", "a=1", malformed=False)]


def test_a_call_that_an_endpoint_wrote_otherwise_is_shown_with_what_it_says() -> None:
    message: Message = {"role": "assistant", "content": None}
    message["tool_calls"] = [{"function": {"name": "f"}}, {"function": None}, "g(1)"]  # type: ignore[list-item, typeddict-item]
    empty = CallView("", "", malformed=True)
    assert view(trajectory(message)).messages[0].calls == [CallView("f", "", malformed=True), empty, empty]


def test_reasoning_is_shown_under_either_of_its_names() -> None:
    for key in ("reasoning", "reasoning_content"):
        message: Message = {"role": "assistant", "content": "a", key: "because"}  # type: ignore[misc]
        assert view(trajectory(message)).messages[0].reasoning == "because"


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    (shown,) = view(trajectory({"role": "user", "content": "x" * 1_000_000})).messages
    assert shown.content.endswith("[996,000 more characters]")
    assert len(shown.content) < 4100


def test_of_a_long_conversation_start_and_end_are_shown() -> None:
    shown = view(trajectory(*({"role": "user", "content": str(number)} for number in range(1000)))).messages
    assert [message.content for message in shown[18:23]] == ["18", "19", "960 messages", "980", "981"]
    assert shown[-1].content == "999"
