"""Trajectories as MLflow traces: below a span for the trajectory one for each model turn and each tool call.

MLflow's functions for live spans send in a thread that hides errors, so that nothing would reach the fallback file.
"""

import json
from contextlib import suppress
from hashlib import sha256
from itertools import islice, takewhile
from typing import Any, Final

from stillhouse.types import JsonObject, Message, Trajectory, Turn

_USAGE: Final = {"prompt_tokens": "input", "completion_tokens": "output"}
_CACHED: Final = {"cached_tokens": "cache_read_input", "cache_write_tokens": "cache_creation_input"}
"""Names of token counts, ours and MLflow's, which has `_tokens` behind them."""


def trace_of(trajectory: Trajectory, num_given: int, started_at: float, labels: dict[str, str]) -> JsonObject:
    """Return the spans of a trajectory that begins with `num_given` messages of its prompt, the root first.

    A trajectory holds how long each request took and nothing else of time: turns follow each other from `started_at`,
    in seconds since the epoch, and tools take none. `labels` become tags, with `stage` among them.
    """
    start = place = round(started_at * 1e9)
    prompt, rest = trajectory.messages[:num_given], trajectory.messages[num_given:]
    spans, new, turns = list[JsonObject](), list(prompt), iter(trajectory.turns)
    for number, message in enumerate(rest, start=1):
        if message["role"] != "assistant" or (turn := next(turns, None)) is None:
            new.append(message)
            continue
        end = place + round((turn.latency_s or 0.0) * 1e9)
        spans.append(_model_span(trajectory.model, turn, new, message, (place, end)))
        place, new = end, []
        # Some endpoints give the calls of each turn the same ids.
        answers = takewhile(lambda one: one["role"] != "assistant", islice(rest, number, None))
        results = {one.get("tool_call_id"): one.get("content") for one in answers}
        for call in message.get("tool_calls") or ():
            arguments: Any = call["function"]["arguments"]
            # Malformed ones are shown as the model wrote them.
            with suppress(TypeError, ValueError):
                arguments = json.loads(arguments)
            spans.append(
                _span(call["function"]["name"], "TOOL", (place, place), arguments, results.get(call["id"]), {})
            )
    tags = {**labels, "prompt_id": trajectory.prompt_id}
    facts = {**tags, "sample_index": trajectory.sample_index, "stop_reason": trajectory.stop_reason}
    facts["times"] = "of requests alone; the first is set to the start of the run that shows this"
    facts["mlflow.chat.tools"] = trajectory.tools
    name = f"{labels['stage']} {trajectory.prompt_id[:8]}"
    root = _span(name, "AGENT", (start, place), {"messages": prompt}, {"messages": rest[-1:]}, facts)
    if trajectory.error:
        root["status"] = {"code": "ERROR", "message": f"{trajectory.error['kind']}: {trajectory.error['message']}"}
    return {"key": trajectory.rollout_key, "tags": {"mlflow.traceName": name, **tags}, "spans": [root, *spans]}


def _model_span(model: str, turn: Turn, new: list[Message], answer: Message, ends: tuple[int, int]) -> JsonObject:
    name, reported = turn.model or model, {**turn.usage}
    usage: JsonObject = {f"{_USAGE[key]}_tokens": reported[key] for key in _USAGE if key in reported}
    if len(usage) == len(_USAGE):
        usage["total_tokens"] = sum(usage.values())
    usage |= {f"{_CACHED[key]}_tokens": reported[key] for key in _CACHED if key in reported}
    facts: JsonObject = {"model": name, "provider": turn.provider, "finish_reason": turn.finish_reason}
    facts |= {"mlflow.chat.tokenUsage": usage, "request_id": turn.request_id, "tool_errors": turn.num_tool_errors}
    if turn.cost_usd is not None:
        # Of a model that it is told of without a cost MLflow guesses one, by prices that it fetches from GitHub.
        facts |= {"mlflow.llm.model": name, "mlflow.llm.cost": {"total_cost": turn.cost_usd}}
    outputs = {"choices": [{"message": answer, "finish_reason": turn.finish_reason}]}
    return _span(name, "CHAT_MODEL", ends, {"messages": new}, outputs, facts)


def _span(name: str, kind: str, ends: tuple[int, int], inputs: Any, outputs: Any, facts: JsonObject) -> JsonObject:
    """Return a span as `mlflow.entities.Span.from_dict` takes it, but for its ids; `ends` are nanoseconds."""
    facts = {"mlflow.spanType": kind, "mlflow.spanInputs": inputs, "mlflow.spanOutputs": outputs, **facts}
    told = {key: _plain(json.dumps(fact, ensure_ascii=False)) for key, fact in facts.items() if fact or fact == 0}
    times = {"start_time_unix_nano": ends[0], "end_time_unix_nano": ends[1]}
    return {"name": name, **times, "status": {"code": "OK"}, "attributes": told, "events": []}


def send_trace(client: Any, run_id: str, record: JsonObject) -> None:
    """Send a trace as `trace_of` returns it, with its `question`, `answer`, `verdict`, `why` and `expected`.

    The ids follow from run and trajectory, so that a trace that is there already is replaced.
    """
    from mlflow.entities import Span
    from mlflow.tracing.client import TracingClient

    experiment = client.get_run(run_id).info.experiment_id
    tracing = TracingClient(client.tracking_uri)
    trace_id = f"tr-{_id(32, run_id, record['tags']['stage'], record['key'])}"
    spans = []
    for number, span in enumerate(record["spans"]):
        parent = _id(16, trace_id, 0) if number else None
        ids = {"trace_id": trace_id, "span_id": _id(16, trace_id, number), "parent_span_id": parent}
        told = {**span["attributes"], "mlflow.traceRequestId": json.dumps(trace_id)}
        spans.append(Span.from_dict({**span, **ids, "attributes": told}))
    # MLflow writes them by one statement, whose variables databases limit.
    for first in range(0, len(spans), 500):
        tracing.log_spans(experiment, spans[first : first + 500])
    tracing.start_trace(_info(record, trace_id, experiment, run_id))


def _info(trace: JsonObject, trace_id: str, experiment: str, run_id: str) -> Any:
    from mlflow.entities import AssessmentSource, Expectation, Feedback, TraceInfo, TraceLocation, TraceState

    root, source = trace["spans"][0], AssessmentSource(source_type="CODE", source_id="stillhouse")
    assessments = [Feedback("verdict", trace["verdict"], source=source, rationale=_plain(trace["why"]))]
    if trace["expected"] is not None:
        assessments.append(Expectation("expected_answer", trace["expected"], source=source))
    for assessment in assessments:
        assessment.assessment_id = f"a-{_id(32, trace_id, assessment.name)}"
    start, end = root["start_time_unix_nano"] // 1_000_000, root["end_time_unix_nano"] // 1_000_000
    location, state = TraceLocation.from_experiment_id(experiment), TraceState(root["status"]["code"])
    # Of a question and an answer MLflow's list of traces takes a thousand characters.
    previews = [_plain(trace[name])[:1000] for name in ("question", "answer")]
    info = TraceInfo(trace_id, location, start, state, *previews, execution_duration=end - start)
    info.trace_metadata, info.tags, info.assessments = {"mlflow.sourceRun": run_id}, trace["tags"], assessments
    return info


def _id(num_digits: int, *parts: object) -> str:
    return sha256(" ".join(map(str, parts)).encode()).hexdigest()[:num_digits]


def _plain(text: str) -> str:
    """Return text that every database takes: without NUL and lone surrogates, which models write now and then."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
