import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import InputError
from stillhouse.types import JsonObject
from tests.stillhouse.interop.result import Result

Write = Callable[..., Path]
ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
USER = {"role": "user", "content": "2 + 2?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALLED]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "4"}
FOUR = {"role": "assistant", "content": "4."}


def roles(trajectory: Any) -> list[str]:
    return [message["role"] for message in trajectory.messages]


def attributes(**values: Any) -> list[JsonObject]:
    """Attributes in OTLP's JSON: structured ones as the JSON text that instrumentations write."""

    def typed(value: Any) -> JsonObject:
        if isinstance(value, int):
            return {"intValue": str(value)}
        if isinstance(value, tuple):
            return {"arrayValue": {"values": [{"stringValue": one} for one in value]}}
        return {"stringValue": value if isinstance(value, str) else json.dumps(value)}

    return [{"key": f"gen_ai.{key.replace('__', '.')}", "value": typed(value)} for key, value in values.items()]


def span(number: int, sent: list[JsonObject], answer: JsonObject, **more: Any) -> JsonObject:
    told = {
        "operation__name": "chat",
        "request__model": "gpt-5.4",
        "response__model": "gpt-5.4-2026",
        "response__finish_reasons": ("stop",),
        "usage__input_tokens": 10 * number,
        "usage__output_tokens": number,
        "system_instructions": [{"type": "text", "content": "Be terse."}],
        "tool__definitions": [{"type": "function", **ADD}],
        "input__messages": sent,
        "output__messages": [answer],
    }
    ids = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": f"eee19b7ec3c1b17{number}"}
    times = {"startTimeUnixNano": str(1544712660000000000 + number), "name": "chat gpt-5.4", "kind": 3}
    return {**ids, **times, "attributes": attributes(**{**told, **more})}


def exported(*spans: JsonObject) -> JsonObject:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "agent"}, "spans": [*spans]}]}]}


def part(role: str, kind: str, **keys: Any) -> JsonObject:
    return {"role": role, "parts": [{"type": kind, **keys}]}


ASKED = part("user", "text", content="2 + 2?")
CALLING = {
    "role": "assistant",
    "parts": [
        {"type": "reasoning", "content": "A sum."},
        {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 2}},
    ],
}
CALLING_AGAIN = {"role": "assistant", "parts": [CALLING["parts"][1]]}
ANSWERED = part("tool", "tool_call_response", id="c1", response={"sum": 4})
SAID = part("assistant", "text", content="4.")


def test_the_last_span_of_a_conversation_is_its_only_trajectory(tmp_path: Path, write: Write) -> None:
    agent = {**span(9, [ASKED], SAID, operation__name="invoke_agent"), "name": "invoke_agent"}
    last = span(2, [ASKED, CALLING_AGAIN, ANSWERED], SAID)
    told = Result(write(tmp_path / "spans.jsonl", exported(last, agent), exported(span(1, [ASKED], CALLING))))
    assert (told.report.form, told.report.rows) == ("otel", 1)
    trajectory = told.trajectory
    assert roles(trajectory) == ["system", "user", "assistant", "tool", "assistant"]
    assert trajectory.messages[0]["content"] == "Be terse."
    assert trajectory.messages[2]["reasoning_content"] == "A sum.", "of the span that wrote it"
    assert trajectory.messages[3]["content"] == '{"sum":4}'
    assert trajectory.tools == [{"type": "function", "function": ADD}]
    assert trajectory.model == "gpt-5.4-2026"
    assert told.beside.metadata["source_spans"] == ["eee19b7ec3c1b171", "eee19b7ec3c1b172"]


def test_a_history_that_was_cut_short_learns_no_turn_twice(tmp_path: Path, write: Write) -> None:
    more = part("user", "text", content="And 3 + 3?")
    spans = [span(1, [ASKED], SAID), span(2, [part("user", "text", content="Summary"), SAID, more], SAID)]
    first, second = Result(write(tmp_path / "spans.jsonl", exported(*spans))).trajectories
    assert (len(first.turns), len(second.turns)) == (1, 1)


def test_examples_in_a_prompt_are_context(tmp_path: Path, write: Write) -> None:
    example = [part("user", "text", content="1 + 1?"), part("assistant", "text", content="2.")]
    told = Result(write(tmp_path / "spans.jsonl", exported(span(1, [*example, ASKED], SAID))))
    assert (len(told.trajectory.turns), told.beside.metadata["source_spans"]) == (1, [None, "eee19b7ec3c1b171"])
    assert any("no call of the log answered" in row["reason"] for row in told.unmapped)


def test_images_of_a_span_are_counted_and_an_answer_cut_off_is_told(tmp_path: Path, write: Write) -> None:
    blob = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="}
    asked = {"role": "user", "parts": [*ASKED["parts"], blob, {"type": "uri", "modality": "image", "uri": "http://x"}]}
    told = Result(write(tmp_path / "s.jsonl", exported(span(1, [asked], SAID, response__finish_reasons=("length",)))))
    assert (told.trajectory.stop_reason, told.trajectory.messages[1]["content"]) == ("length", "2 + 2?")
    assert [row["key"] for row in told.unmapped] == ["blob", "uri"]


def test_a_span_without_content_names_the_switch(tmp_path: Path, write: Write) -> None:
    bare = span(1, [ASKED], SAID)
    bare["attributes"] = [one for one in bare["attributes"] if not one["key"].endswith("messages")]
    with pytest.raises(InputError, match="OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"):
        Result(write(tmp_path / "spans.jsonl", exported(bare)))


def test_a_malformed_span_costs_itself_alone(tmp_path: Path, write: Write) -> None:
    torn = span(1, [ASKED], SAID, input__messages="[{")
    odd = {
        **span(3, [ASKED], SAID),
        "traceId": None,
        "attributes": attributes(operation__name="chat", request__model="m"),
    }
    told = Result(write(tmp_path / "spans.jsonl", exported(torn, odd, span(2, [ASKED], SAID))))
    assert (told.report.rows, told.report.rows_left_out, len(told.trajectories)) == (3, 2, 1)


def generation(number: int, sent: Any, answer: Any, **more: Any) -> JsonObject:
    return {
        "id": f"obs-{number}",
        "traceId": "trace-1",
        "type": "GENERATION",
        "parentObservationId": "obs-0",
        "startTime": f"2026-03-01T10:00:0{number}.000Z",
        "model": "gpt-5.4",
        "usageDetails": {"input": 10, "output": 2, "total": 12},
        "level": "DEFAULT",
        "input": sent,
        "output": answer,
        **more,
    }


SENT = {"tools": [{"type": "function", "function": ADD}], "messages": [USER]}
OBSERVATIONS = [
    {**generation(0, {"q": "2 + 2?"}, "4."), "type": "SPAN", "parentObservationId": None},
    generation(2, {**SENT, "messages": [USER, CALLS, RESULT]}, FOUR),
    generation(1, SENT, CALLS),
]


def as_stored(row: JsonObject) -> JsonObject:
    """An observation as the export to storage writes it: other names, and JSON text."""
    renamed = {"traceId": "trace_id", "startTime": "start_time", "usageDetails": "usage_details"}
    renamed |= {"model": "provided_model_name", "parentObservationId": "parent_observation_id"}
    texts = {"input": json.dumps(row["input"]), "output": json.dumps(row["output"])}
    return {renamed.get(key, key): texts.get(key, value) for key, value in row.items()}


@pytest.mark.parametrize(
    "rows",
    [OBSERVATIONS, [as_stored(row) for row in OBSERVATIONS], [{"id": "trace-1", "observations": OBSERVATIONS}]],
    ids=["observations", "storage", "trace"],
)
def test_generations_of_langfuse_are_one_trajectory(tmp_path: Path, write: Write, rows: list[JsonObject]) -> None:
    told = Result(write(tmp_path / "observations.jsonl", *rows))
    assert (told.report.form, roles(told.trajectory)) == ("langfuse", ["user", "assistant", "tool", "assistant"])
    assert (told.trajectory.tools, told.trajectory.model) == ([{"type": "function", "function": ADD}], "gpt-5.4")
    assert told.beside.metadata["source_spans"] == ["obs-1", "obs-2"]


def test_a_generation_that_failed_is_left_out(tmp_path: Path, write: Write) -> None:
    rows = [generation(1, [USER], None, level="ERROR"), generation(2, [USER], {"role": "assistant", "content": "4."})]
    told = Result(write(tmp_path / "observations.jsonl", *rows))
    assert (len(told.trajectories), told.report.rows_left_out) == (1, 1)


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """MLflow with a database of its own."""
    import mlflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
        # It asks for prices of models over the network otherwise.
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        # MLflow sets them, for its subprocesses.
        patch.setenv("MLFLOW_TRACKING_URI", "")
        patch.setenv("MLFLOW_EXPERIMENT_ID", "")
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")
        yield mlflow
        mlflow.set_tracking_uri(None)
        mlflow.tracking.fluent._active_experiment_id = None


@pytest.mark.parametrize("is_table", [False, True], ids=["to_json", "search_traces"])
def test_traces_that_mlflow_records_are_trajectories(tmp_path: Path, mlflow_store: Any, is_table: bool) -> None:
    mlflow_store.set_experiment(f"table {is_table}")

    @mlflow_store.trace(span_type="CHAT_MODEL")
    def chat(messages: list[JsonObject], tools: list[JsonObject], model: str) -> JsonObject:
        answer = CALLS if messages[-1]["role"] == "user" else FOUR
        return {"choices": [{"message": answer}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}, "model": model}

    @mlflow_store.trace(span_type="AGENT")
    def agent() -> str:
        for messages in ([USER], [USER, CALLS, RESULT]):
            answer = chat(messages, SENT["tools"], "gpt-5.4")
        return str(answer)

    agent()
    source = tmp_path / "traces.json"
    if is_table:
        mlflow_store.search_traces().to_json(source, orient="records")
    else:
        (trace,) = mlflow_store.search_traces(return_type="list")
        source.write_text(trace.to_json())
    told = Result(source)
    assert (told.report.form, roles(told.trajectory)) == ("mlflow-traces", ["user", "assistant", "tool", "assistant"])
    assert (told.trajectory.tools, told.trajectory.model) == ([{"type": "function", "function": ADD}], "gpt-5.4")
    assert len(told.beside.metadata["source_spans"]) == 2


def test_a_malformed_trace_costs_itself_alone(tmp_path: Path, write: Write) -> None:
    rows = [{"info": {"trace_id": "tr-1"}, "data": {}}, {"trace_id": "tr-2", "trace": "{", "info": {}, "data": {}}]
    with pytest.raises(InputError, match="none of 2 rows of mlflow-traces"):
        Result(write(tmp_path / "traces.jsonl", *rows))


def test_chat_attributes_and_messages_of_anthropic_are_read_of_mlflow(tmp_path: Path, mlflow_store: Any) -> None:
    mlflow_store.set_experiment("spans")
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}}
    tools = [{"name": "add", "description": "Add.", "input_schema": ADD["parameters"]}]
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "4"}]}
    with mlflow_store.start_span("messages", span_type="CHAT_MODEL") as recorded:
        asked = [USER, {"role": "assistant", "content": [use]}, result]
        recorded.set_inputs({"system": "Be terse.", "messages": asked, "tools": tools, "model": "claude-opus-4-5"})
        recorded.set_outputs(
            {"role": "assistant", "content": [{"type": "text", "text": "4."}], "stop_reason": "end_turn"}
        )
    with mlflow_store.start_span("chat", span_type="LLM") as recorded:
        recorded.set_inputs("3 + 3?")
        recorded.set_attribute("mlflow.chat.messages", [{"role": "user", "content": "3 + 3?"}, FOUR])
        recorded.set_attribute("mlflow.chat.tools", SENT["tools"])
    source = tmp_path / "traces.jsonl"
    source.write_text("\n".join(trace.to_json() for trace in mlflow_store.search_traces(return_type="list")))
    told = Result(source)
    by_model = {trajectory.model: trajectory for trajectory in told.trajectories}
    assert roles(by_model["claude-opus-4-5"]) == ["system", "user", "assistant", "tool", "assistant"]
    assert roles(by_model["unknown"]) == ["user", "assistant"]
    assert all(one.tools == [{"type": "function", "function": ADD}] for one in told.trajectories)


def completion(message: JsonObject, **more: Any) -> JsonObject:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"object": "chat.completion", "created": 1, "model": "gpt-5.4", "choices": [choice], **more}


def test_pairs_of_request_and_response_are_one_trajectory(tmp_path: Path, write: Write) -> None:
    first = {"request": {"model": "gpt", **SENT}, "response": completion(CALLS)}
    more = {
        "request": {"model": "gpt", **SENT, "messages": [USER, CALLS, RESULT]},
        "response": completion(FOUR, created=2),
    }
    told = Result(write(tmp_path / "log.jsonl", first, more))
    assert (told.report.form, roles(told.trajectory)) == ("openai-log", ["user", "assistant", "tool", "assistant"])
    assert [place.partition(".jsonl")[2] for place in told.beside.metadata["source_spans"]] == [", line 1", ", line 2"]


def test_outputs_of_a_batch_are_refused_with_what_they_lack(tmp_path: Path, write: Write) -> None:
    output = {"id": "b", "custom_id": "q1", "response": {"status_code": 200, "body": completion(FOUR)}, "error": None}
    file = write(tmp_path / "output.jsonl", output)
    with pytest.raises(
        InputError, match="the body of the batch's input with the same custom_id, under the key request"
    ):
        Result(file, output=tmp_path / "out")
    told = Result(write(file, {**output, "request": {"model": "gpt-5.4", "messages": [USER]}}))
    assert roles(told.trajectory) == ["user", "assistant"]
