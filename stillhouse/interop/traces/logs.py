"""Logs of a model's calls: OpenTelemetry's, Langfuse's and MLflow's spans, and pairs of OpenAI's.

OpenTelemetry: OTLP JSON as the collector's file exporter writes it, with the attributes of
https://github.com/open-telemetry/semantic-conventions-genai. Langfuse: observations, or traces that hold them, of its
API, page or export to storage (https://langfuse.com/docs/api-and-data-platform). MLflow: `Trace.to_json()` or rows of
`mlflow.search_traces()`. OpenAI: a request and its response a line; a line of a batch's output alone is refused.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from stillhouse.interop.traces.calls import Call, call_in, gather_calls, json_in
from stillhouse.prompts.row import RowProblem
from stillhouse.types import JsonObject

_NO_CONTENT: Final = (
    "a chat span without messages: the application has to capture content, as most instrumentations do by "
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
)
_NO_PROMPT: Final = (
    "a line of a batch's output has no prompt: add to it the body of the batch's input with the same custom_id, under "
    "the key request"
)


def _otel_spans(row: JsonObject) -> Iterator[JsonObject]:
    for scope in (scope for resource in row.get("resourceSpans", ()) for scope in resource.get("scopeSpans", ())):
        yield from scope.get("spans", ())


def _otel_call(span: JsonObject, _: str) -> Call | None:
    said = {one["key"].removeprefix("gen_ai."): _value(one["value"]) for one in span.get("attributes", ())}
    if said.get("operation.name") not in ("chat", "generate_content", "text_completion"):
        return None
    if "input.messages" not in said:
        raise RowProblem(_NO_CONTENT)
    request = {"messages": said["input.messages"], "system": said.get("system_instructions")}
    request |= {"tools": said.get("tool.definitions"), "model": said.get("request.model")}
    response = {"choices": said.get("output.messages"), "model": said.get("response.model")}
    response["stop_reason"] = next(iter(said.get("response.finish_reasons") or ()), None)
    group = said.get("conversation.id") or span["traceId"]
    return call_in(span["spanId"], group, request, response)


def _value(written: JsonObject) -> Any:
    """Return an attribute's value, which OTLP writes under the name of its type."""
    ((kind, value),) = written.items()
    if kind == "kvlistValue":
        return {one["key"]: _value(one["value"]) for one in value.get("values", ())}
    return [_value(one) for one in value.get("values", ())] if kind == "arrayValue" else value


def is_langfuse(row: JsonObject) -> bool:
    return {"traceId", "type", "input", "output"} <= {*map(_camel, row)} or isinstance(row.get("observations"), list)


def _langfuse_spans(row: JsonObject) -> Iterator[JsonObject]:
    for one in row.get("observations", [row]):
        yield {"sessionId": row.get("sessionId")} | {_camel(key): value for key, value in one.items()}


def _langfuse_call(span: JsonObject, _: str) -> Call | None:
    if span.get("type") != "GENERATION":
        return None
    response = {"choices": span["output"], "model": span.get("model") or span.get("providedModelName")}
    return call_in(span["id"], span["sessionId"] or span["traceId"], span["input"], response)


def _camel(key: str) -> str:
    """Return a key of the export to storage, such as `trace_id`, as the API spells it."""
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), key)


def is_mlflow(row: JsonObject) -> bool:
    return {"info", "data"} <= row.keys() or {"trace_id", "trace_metadata", "spans"} <= row.keys()


def _mlflow_spans(row: JsonObject) -> Iterator[JsonObject]:
    trace = json_in(row.get("trace", row))
    info = trace.get("info", trace)
    group = (json_in(info.get("trace_metadata")) or {}).get("mlflow.trace.session") or info["trace_id"]
    yield from ({**span, "group": group} for span in json_in(trace.get("data", trace)["spans"]))


def _mlflow_call(span: JsonObject, _: str) -> Call | None:
    said = {key.removeprefix("mlflow."): json_in(value) for key, value in span["attributes"].items()}
    if said.get("spanType") not in ("CHAT_MODEL", "LLM"):
        return None
    request, response = said.get("spanInputs"), said.get("spanOutputs")
    request = request if isinstance(request, dict) else {"messages": request}
    if chat := said.get("chat.messages"):
        request |= {"messages": chat[:-1]}
        response = (response if isinstance(response, dict) else {}) | {"choices": chat[-1:]}
    request |= {"tools": said.get("chat.tools") or request.get("tools")}
    return call_in(span["span_id"], span["group"], request, response)


def is_openai(row: JsonObject) -> bool:
    return {"request", "response"} <= row.keys() or {"custom_id", "response"} <= row.keys()


def _openai_call(row: JsonObject, place: str) -> Call | None:
    if "request" not in row:
        raise RowProblem(_NO_PROMPT)
    request, response = row["request"], row["response"] or {}
    return call_in(place, "", request.get("body", request), response.get("body", response))


gather_otel: Final = partial(gather_calls, spans_of=_otel_spans, call_of=_otel_call)
gather_langfuse: Final = partial(gather_calls, spans_of=_langfuse_spans, call_of=_langfuse_call)
gather_mlflow: Final = partial(gather_calls, spans_of=_mlflow_spans, call_of=_mlflow_call)
gather_openai: Final = partial(gather_calls, spans_of=lambda row: [row], call_of=_openai_call)
