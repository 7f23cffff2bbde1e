"""Trajectories as MLflow traces: a span for each model turn and tool call below one for the trajectory.

MLflow's functions for live spans are not used: they send in a thread that hides errors, so that nothing would reach the
fallback file, and to the tracking URI of the process.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import chain, islice, takewhile
from typing import Any, Final

from stillhouse.types import JsonObject, Message, Trajectory, Turn

_PREVIEW_CHARS: Final = 1000
"""Longest text of a trace in MLflow's list of traces."""
_MAX_SPANS_PER_CALL: Final = 500
"""MLflow writes those of a call by one statement, whose variables databases limit."""
_TAGS: Final = ("stage", "model", "prompt_id")
"""Attributes of the root by which MLflow's list of traces is searched."""
_USAGE: Final = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "cache_read_input_tokens": "cached_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}
"""Names of token counts, MLflow's and ours."""


def trace_of(trajectory: Trajectory, num_given: int, started_at: float, labels: JsonObject) -> JsonObject:
    """Return the spans of a trajectory that begins with `num_given` messages of its prompt, the root first.

    A trajectory holds how long each request took and nothing else of time: turns follow each other from `started_at`,
    in seconds since the epoch, and tools take none. `labels` are attributes of the root.
    """
    place = round(started_at * 1e9)
    prompt, rest = trajectory.messages[:num_given], trajectory.messages[num_given:]
    root = {
        "name": f"{labels['stage']} {trajectory.prompt_id[:8]}",
        "type": "AGENT",
        "start": place,
        "inputs": {"messages": prompt},
        "outputs": rest[-1:] and {"messages": rest[-1:]},
        "error": trajectory.error and f"{trajectory.error['kind']}: {trajectory.error['message']}",
        "attributes": {
            **labels,
            "sample_index": trajectory.sample_index,
            "stop_reason": trajectory.stop_reason,
            "times": "of requests alone; the first is set to the start of the run that shows this",
            "mlflow.chat.tools": trajectory.tools,
        },
    }
    spans: list[JsonObject] = [root]
    new = list(prompt)
    turns = iter(trajectory.turns)
    for number, message in enumerate(rest, start=1):
        if message["role"] != "assistant" or (turn := next(turns, None)) is None:
            new.append(message)
            continue
        end = place + round((turn.latency_s or 0.0) * 1e9)
        spans.append(_model_span(trajectory.model, turn, new, message, place, end))
        place, new = end, []
        # Some endpoints give the calls of each turn the same ids.
        answers = takewhile(lambda one: one["role"] != "assistant", islice(rest, number, None))
        spans += _tool_spans(message, {one.get("tool_call_id"): one.get("content") for one in answers}, place)
    root["end"] = place
    return {"key": trajectory.rollout_key, "spans": spans}


def _model_span(model: str, turn: Turn, new: list[Message], answer: Message, start: int, end: int) -> JsonObject:
    reported: JsonObject = {**turn.usage}
    usage = {theirs: reported[ours] for theirs, ours in _USAGE.items() if ours in reported}
    if {"input_tokens", "output_tokens"} <= usage.keys():
        usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    attributes: JsonObject = {
        "model": turn.model or model,
        "provider": turn.provider,
        "mlflow.chat.tokenUsage": usage or None,
        "finish_reason": turn.finish_reason,
        "request_id": turn.request_id,
        "tool_errors": turn.num_tool_errors or None,
    }
    if turn.cost_usd is not None:
        # Of a model that it is told of without a cost MLflow guesses one, by prices that it fetches from GitHub.
        attributes |= {"mlflow.llm.model": attributes["model"], "mlflow.llm.cost": {"total_cost": turn.cost_usd}}
    return {
        "name": attributes["model"],
        "type": "CHAT_MODEL",
        "start": start,
        "end": end,
        "inputs": {"messages": new},
        "outputs": {"choices": [{"message": answer, "finish_reason": turn.finish_reason}]},
        "attributes": attributes,
    }


def _tool_spans(message: Message, results: Mapping[str | None, str | None], place: int) -> Iterator[JsonObject]:
    for call in message.get("tool_calls") or ():
        arguments: Any = call["function"]["arguments"]
        # Malformed ones are shown as the model wrote them.
        with suppress(TypeError, ValueError):
            arguments = json.loads(arguments)
        yield {
            "name": call["function"]["name"],
            "type": "TOOL",
            "start": place,
            "end": place,
            "inputs": arguments,
            "outputs": results.get(call["id"]),
            "attributes": {"tool_call_id": call["id"]},
        }


def send_traces(client: Any, run_id: str, record: JsonObject) -> None:
    """Send traces as `trace_of` returns them, each with its `question`, `answer`, `verdict` and `expected`.

    The ids follow from run and trajectory, so that a trace that is there already is replaced.
    """
    from mlflow.tracing.client import TracingClient

    experiment = client.get_run(run_id).info.experiment_id
    tracing = TracingClient(client.tracking_uri)
    traces = {}
    # Databases take no lone surrogates, which models write now and then.
    for trace in json.loads(json.dumps(record["traces"], ensure_ascii=False).encode("utf-8", "replace")):
        name = trace["spans"][0]["name"]
        traces["tr-" + sha256(f"{run_id} {name} {trace['key']}".encode()).hexdigest()[:32]] = trace
    spans = list(chain.from_iterable(_spans(trace["spans"], trace_id) for trace_id, trace in traces.items()))
    for start in range(0, len(spans), _MAX_SPANS_PER_CALL):
        tracing.log_spans(experiment, spans[start : start + _MAX_SPANS_PER_CALL])
    for trace_id, trace in traces.items():
        tracing.start_trace(_info(trace, trace_id, experiment, run_id))


def _spans(spans: list[JsonObject], trace_id: str) -> Iterator[Any]:
    from mlflow.entities import Span

    ids = [sha256(f"{trace_id} {number}".encode()).hexdigest()[:16] for number in range(len(spans))]
    for number, span in enumerate(spans):
        given = {"mlflow.spanInputs": span["inputs"], "mlflow.spanOutputs": span["outputs"]}
        attributes = {**span["attributes"], **given, "mlflow.spanType": span["type"]}
        known = {key: json.dumps(value) for key, value in attributes.items() if value not in (None, [])}
        yield Span.from_dict(
            {
                "name": span["name"],
                "trace_id": trace_id,
                "span_id": ids[number],
                "parent_span_id": ids[0] if number else None,
                "start_time_unix_nano": span["start"],
                "end_time_unix_nano": span["end"],
                "status": {"code": "ERROR" if span.get("error") else "OK", "message": span.get("error") or ""},
                "attributes": {**known, "mlflow.traceRequestId": json.dumps(trace_id)},
                "events": [],
            }
        )


def _info(trace: JsonObject, trace_id: str, experiment: str, run_id: str) -> Any:
    from mlflow.entities import AssessmentSource, Expectation, Feedback, TraceInfo, TraceLocation, TraceState

    root = trace["spans"][0]
    source = AssessmentSource(source_type="CODE", source_id="stillhouse")
    assessments: list[Any] = [
        Feedback(name="verdict", value=trace["verdict"], source=source, rationale=_preview(trace["why"]))
    ]
    if trace["expected"] is not None:
        assessments.append(Expectation(name="expected_answer", value=trace["expected"], source=source))
    for assessment in assessments:
        assessment.assessment_id = f"a-{trace_id[3:]}{assessment.name[:1]}"
    return TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(experiment),
        request_time=root["start"] // 1_000_000,
        execution_duration=(root["end"] - root["start"]) // 1_000_000,
        state=TraceState.ERROR if root["error"] else TraceState.OK,
        request_preview=_preview(trace["question"]),
        response_preview=_preview(trace["answer"]),
        trace_metadata={"mlflow.sourceRun": run_id},
        tags={"mlflow.traceName": root["name"], **{name: root["attributes"][name] for name in _TAGS}},
        assessments=assessments,
    )


def _preview(text: str) -> str:
    # Postgres takes no NUL.
    return text[:_PREVIEW_CHARS].replace("\0", "")
