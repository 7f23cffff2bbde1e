import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import TrackedRun, start_run
from stillhouse.tracking.fallback import FALLBACK_FILE, is_refusal, outage_of
from stillhouse.tracking.send import send_fallback
from stillhouse.tracking.traces import trace_of
from stillhouse.types import Message, StopReason, Trajectory, Turn

STARTED_AT = 1_700_000_000.0
LABELS = {"stage": "rollouts", "model": "teacher"}
ASKED: list[Message] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 6 * 7?"}]
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6 * 7"}'}}
CALLED: Message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Message = {"role": "tool", "tool_call_id": "c1", "content": "42"}
ANSWER: Message = {"role": "assistant", "content": "It is 42."}


def trajectory(**changes: Any) -> Trajectory:
    usage: Any = {"prompt_tokens": 30, "completion_tokens": 5, "cached_tokens": 20}
    fields: dict[str, Any] = {
        "rollout_key": "a" * 64,
        "prompt_id": "b" * 64,
        "sample_index": 1,
        "messages": [*ASKED, CALLED, RESULT, ANSWER],
        "tools": [{"type": "function", "function": {"name": "calculator"}}],
        "turns": [
            Turn("tool_calls", usage, 0.5, "big-1", provider="acme", cost_usd=0.25),
            Turn("stop", {"prompt_tokens": 40, "completion_tokens": 6}, None, "big-1", cost_usd=0.5),
        ],
        "stop_reason": StopReason.ANSWERED,
        "model": "big",
    }
    return Trajectory(**{**fields, **changes})


def spans_of(one: Trajectory, num_given: int = 2) -> list[dict[str, Any]]:
    """Return the spans with what is JSON in them read, and without its prefix."""
    read = []
    for span in trace_of(one, num_given, STARTED_AT, LABELS)["spans"]:
        facts = {key.removeprefix("mlflow."): json.loads(value) for key, value in span.pop("attributes").items()}
        read.append({**span, **facts})
    return read


def record(one: Trajectory, verdict: str = "right", num_given: int = 2) -> dict[str, Any]:
    told = {"question": "What is 6 * 7?", "answer": "It is 42.", "verdict": verdict, "why": "", "expected": "42"}
    return {**trace_of(one, num_given, STARTED_AT, LABELS), **told}


@pytest.fixture
def run(tracking: TrackingConfig, tmp_path: Path) -> Iterator[TrackedRun]:
    with start_run(tracking, tmp_path, "distill") as started:
        yield started


@pytest.fixture
def traces_of(client: Any) -> Callable[[str], list[Any]]:
    def find(run_id: str) -> list[Any]:
        experiment = client.get_run(run_id).info.experiment_id
        return list(client.search_traces(locations=[experiment], run_id=run_id))

    return find


def test_a_trajectory_becomes_a_trace_of_the_run_with_a_span_a_turn_and_a_tool_call(
    run: TrackedRun, traces_of: Any
) -> None:
    run.send("trace", record(trajectory()))
    (trace,) = traces_of(run.run_id)
    root, first, call, last = trace.data.spans
    assert [span.span_type for span in trace.data.spans] == ["AGENT", "CHAT_MODEL", "TOOL", "CHAT_MODEL"]
    assert {span.parent_id for span in (first, call, last)} == {root.span_id}
    assert root.inputs == {"messages": ASKED}
    assert root.outputs == {"messages": [ANSWER]}
    assert (
        root.attributes.items()
        >= {**LABELS, "prompt_id": "b" * 64, "sample_index": 1, "stop_reason": "answered"}.items()
    )
    assert (call.name, call.inputs, call.outputs) == ("calculator", {"expression": "6 * 7"}, "42")
    assert first.outputs == {"choices": [{"message": CALLED, "finish_reason": "tool_calls"}]}
    assert first.attributes["mlflow.llm.cost"] == {"total_cost": 0.25}
    assert first.attributes["mlflow.chat.tokenUsage"]["cache_read_input_tokens"] == 20
    assert trace.info.token_usage.items() >= {"input_tokens": 70, "output_tokens": 11, "total_tokens": 81}.items()
    assert trace.info.cost["total_cost"] == 0.75
    assert trace.info.tags.items() >= {**LABELS, "prompt_id": "b" * 64, "mlflow.traceName": "rollouts bbbbbbbb"}.items()
    assert (trace.info.request_preview, trace.info.response_preview) == ("What is 6 * 7?", "It is 42.")


def test_each_message_is_the_input_of_one_model_span_however_long_the_conversation() -> None:
    turns = [Turn("tool_calls", {}, 0.1, "m")] * 30
    messages = [*ASKED, *[message for _ in turns for message in (CALLED, RESULT)]]
    spans = spans_of(trajectory(messages=messages, turns=turns))
    given = [span["spanInputs"]["messages"] for span in spans if span["spanType"] == "CHAT_MODEL"]
    inputs = [message for messages in given for message in messages]
    assert inputs == [*ASKED, *[RESULT] * 29]


def test_examples_in_a_prompt_are_its_input_and_no_turns() -> None:
    given: list[Message] = [*ASKED, ANSWER, {"role": "user", "content": "And 6 * 8?"}]
    one = trajectory(messages=[*given, ANSWER], turns=[Turn("stop", {}, 0.1, "m")])
    root, turn = spans_of(one, len(given))
    assert root["spanInputs"] == turn["spanInputs"] == {"messages": given}


def test_spans_last_as_long_as_requests_took_and_say_that_no_more_is_known() -> None:
    root, first, call, last = spans_of(trajectory())
    start, end = (f"{name}_time_unix_nano" for name in ("start", "end"))
    assert (first[start], first[end] - first[start]) == (STARTED_AT * 1e9, 0.5e9)
    assert call[start] == call[end] == last[start] == last[end] == root[end] == first[end]
    assert "of requests alone" in root["times"]


def test_calls_of_different_turns_with_one_id_have_results_of_their_own() -> None:
    second: Message = {**RESULT, "content": "43"}
    messages = [*ASKED, CALLED, RESULT, CALLED, second, ANSWER]
    turns = [Turn("tool_calls", {}, 0.1, "m")] * 3
    spans = spans_of(trajectory(messages=messages, turns=turns))
    assert [span["spanOutputs"] for span in spans if span["spanType"] == "TOOL"] == ["42", "43"]


def test_malformed_arguments_and_a_call_without_a_result_are_shown_as_they_are() -> None:
    function = {"name": "calculator", "arguments": '{"expression": '}
    called: Message = {**CALLED, "tool_calls": [{**CALL, "function": function}]}  # type: ignore[typeddict-item]
    call = spans_of(trajectory(messages=[*ASKED, called]))[2]
    assert call["spanInputs"] == '{"expression": '
    assert "spanOutputs" not in call


def test_text_that_databases_do_not_take_stops_no_trace(run: TrackedRun, traces_of: Any) -> None:
    answer: Message = {"role": "assistant", "content": "a \ud800 b \0 c"}
    odd = record(trajectory(messages=[*ASKED, answer], turns=[Turn("stop", {}, 0.1, "m")]))
    odd |= {"answer": answer["content"], "why": answer["content"]}
    run.send("trace", odd)
    (trace,) = traces_of(run.run_id)
    assert trace.info.response_preview == "a ? b  c"
    assert trace.data.spans[0].outputs["messages"][0]["content"] == "a ? b \0 c"


def test_a_trajectory_of_many_hundred_turns_is_one_trace(run: TrackedRun, traces_of: Any) -> None:
    turns = [Turn("tool_calls", {"prompt_tokens": 1, "completion_tokens": 1}, 0.1, "m")] * 400
    messages = [*ASKED, *[message for _ in turns for message in (CALLED, RESULT)]]
    run.send("trace", record(trajectory(messages=messages, turns=turns)))
    (trace,) = traces_of(run.run_id)
    assert len(trace.data.spans) == 801
    assert trace.info.token_usage["total_tokens"] == 800


def test_a_failed_rollout_is_a_trace_with_its_error(run: TrackedRun, traces_of: Any) -> None:
    error: Any = {"kind": "rate_limited", "message": "429 for an hour"}
    failed = trajectory(messages=ASKED, turns=[], stop_reason=StopReason.ERROR, error=error)
    run.send("trace", record(failed, "unverified"))
    (trace,) = traces_of(run.run_id)
    assert trace.info.state == "ERROR"
    assert trace.data.spans[0].status.description == "rate_limited: 429 for an hour"


def test_mlflow_finds_traces_by_their_verdict(run: TrackedRun, client: Any) -> None:
    run.send("trace", record(trajectory()))
    run.send("trace", record(trajectory(rollout_key="c" * 64), "wrong"))
    experiment = client.get_run(run.run_id).info.experiment_id
    find = partial(client.search_traces, locations=[experiment])
    (wrong,) = find(filter_string="feedback.verdict = 'wrong'")
    assert {one.name: one.value for one in wrong.info.assessments} == {"verdict": "wrong", "expected_answer": "42"}
    assert len(find(filter_string="tags.model = 'teacher'")) == 2


def test_a_trace_that_is_sent_again_replaces_the_first(run: TrackedRun, traces_of: Any) -> None:
    for verdict in ("wrong", "right"):
        run.send("trace", record(trajectory(), verdict))
    (trace,) = traces_of(run.run_id)
    assert len(trace.data.spans) == 4
    assert trace.info.token_usage["total_tokens"] == 81
    assert sorted(one.value for one in trace.info.assessments) == ["42", "right"]


def test_a_cost_that_is_not_known_is_not_guessed_by_mlflow(run: TrackedRun, traces_of: Any) -> None:
    known_to_mlflow = Turn("stop", {"prompt_tokens": 40, "completion_tokens": 6}, 0.1, "gpt-4o")
    run.send("trace", record(trajectory(messages=[*ASKED, ANSWER], turns=[known_to_mlflow], model="gpt-4o")))
    (trace,) = traces_of(run.run_id)
    assert trace.data.spans[1].attributes["model"] == "gpt-4o"
    assert not trace.info.cost
    assert trace.info.token_usage["total_tokens"] == 46
    assert "litellm" not in sys.modules


def test_traces_of_two_runs_with_the_same_trajectory_stay_apart(
    run: TrackedRun, tracking: TrackingConfig, tmp_path: Path, traces_of: Any
) -> None:
    with start_run(tracking, tmp_path, "again") as other:
        for one in (run, other):
            one.send("trace", record(trajectory()))
    assert len(traces_of(run.run_id)) == len(traces_of(other.run_id)) == 1


def test_traces_that_mlflow_did_not_take_are_sent_with_their_run_later(
    tmp_path: Path, database: str, client: Any, closed_port: int, request: pytest.FixtureRequest, traces_of: Any
) -> None:
    away = f"http://127.0.0.1:{closed_port}"
    outage_of(away).until = float("inf")
    with start_run(TrackingConfig(uri=away, experiment=request.node.name), tmp_path, "distill") as run:
        run.send("trace", record(trajectory()))
    path = tmp_path / FALLBACK_FILE
    path.write_text(path.read_text().replace(away, database))
    client.create_experiment(request.node.name, artifact_location=(tmp_path / "artifacts").as_uri())
    assert send_fallback(tmp_path).by_kind["trace"] == 1
    (sent,) = client.search_runs([client.get_experiment_by_name(request.node.name).experiment_id])
    assert len(traces_of(sent.info.run_id)) == 1


def test_a_server_that_takes_no_traces_begins_no_outage() -> None:
    assert is_refusal(NotImplementedError("log_spans is not supported: MLflow server version 3.3 is less than 3.4"))


def test_a_whole_table_replaces_the_one_that_an_earlier_attempt_sent(run: TrackedRun, client: Any) -> None:
    for answer in ("41", "42"):
        run.log_table([{"question": "6 * 7?", "answer": answer}], "evaluation/sft.json", whole=True)
    table = json.loads(Path(client.download_artifacts(run.run_id, "evaluation/sft.json")).read_text())
    assert table == {"columns": ["question", "answer"], "data": [["6 * 7?", "42"]]}
    tables = json.loads(client.get_run(run.run_id).data.tags["mlflow.loggedArtifacts"])
    assert tables == [{"path": "evaluation/sft.json", "type": "table"}]
