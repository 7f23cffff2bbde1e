import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import ModelRole
from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from tests.batch_server import answered
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}}
TOOL: Any = {
    "type": "function",
    "function": {"name": "now", "description": "", "parameters": {"type": "object", "$schema": "s"}},
}


def schema_of(body: dict[str, Any]) -> dict[str, Any]:
    return body.get("response_format", {}).get("json_schema", {}).get("schema", {})


def ask(
    endpoint: Endpoint, count: int = 1, tools: Any = (), schema: Any = SCHEMA, client: Any = HttpClient
) -> list[Any]:
    async def main() -> list[Any]:
        chat = ModelClient(endpoint, client(endpoint, timeout_s=10.0))
        sampling = Sampling(1.0, 1.0, 50, None, response_schema=schema)
        try:
            messages: Any = [{"role": "user", "content": "?"}]
            asked = (chat.complete(ChatRequest(messages, tools, sampling)) for _ in range(count))
            return [*await asyncio.gather(*asked, return_exceptions=True)]
        finally:
            await chat.aclose()

    return asyncio.run(main())


def refusing(refuses: Callable[[dict[str, Any]], str | None]) -> Callable[[ReceivedRequest], Reply]:
    def script(request: ReceivedRequest) -> Reply:
        message = refuses(request.body)
        return Reply(completion("ok")) if message is None else error(400, message)

    return script


def anthropic(body: dict[str, Any]) -> str | None:
    refused = "output_config.format.schema: For 'integer' type, properties maximum, minimum are not supported"
    return refused if "maximum" in schema_of(body).get("properties", {}).get("n", {}) else None


def openai(body: dict[str, Any]) -> str | None:
    schema = schema_of(body)
    if not schema or schema.get("additionalProperties") is False:
        return None
    return (
        "Invalid schema for response_format 'answer': In context=(), 'additionalProperties' is required to be supplied "
        "and to be false."
    )


def gemini(body: dict[str, Any]) -> str | None:
    for tool in body.get("tools", []):
        if {"$schema", "additionalProperties"} & tool["function"]["parameters"].keys():
            return "Unknown name \"$schema\" at 'tools[0].function_declarations[0].parameters': Cannot find field."
    if "additionalProperties" in schema_of(body):
        return "Unknown name \"additionalProperties\" at 'generation_config.response_schema': Cannot find field."
    return None


def no_properties(body: dict[str, Any]) -> str | None:
    if all("properties" in tool["function"]["parameters"] for tool in body.get("tools", [])):
        return None
    return "Invalid schema for function 'now': In context=(), object schema missing properties."


@pytest.mark.parametrize("refuses", [anthropic, openai, gemini, no_properties])
def test_a_refused_schema_is_fitted_once_for_all_requests_and_said_once(
    refuses: Callable[[dict[str, Any]], str | None], caplog: pytest.LogCaptureFixture
) -> None:
    schema = {**SCHEMA, "additionalProperties": False} if refuses is gemini else SCHEMA
    with SimulatedProvider(refusing(refuses)) as provider, caplog.at_level(logging.WARNING):
        endpoint = Endpoint(provider.url, "m", "m")
        first = ask(endpoint, tools=[TOOL], schema=schema)
        num_refused = len(provider.requests) - 1
        assert num_refused == (2 if refuses is gemini else 1)
        later = ask(endpoint, 5, tools=[TOOL], schema=schema)
        assert len(provider.requests) == num_refused + 6
    assert [answer.message["content"] for answer in first + later] == ["ok"] * 6
    assert sum("checked here in full" in line for line in caplog.messages) == num_refused


def test_the_schema_is_sent_as_it_is_where_nothing_is_known_against_it() -> None:
    with SimulatedProvider(lambda _: Reply(completion("ok"))) as provider:
        ask(Endpoint(provider.url, "m", "m"), tools=[TOOL])
        assert schema_of(provider.requests[0]) == SCHEMA
        assert provider.requests[0]["tools"] == [TOOL]


def test_where_no_form_is_taken_the_error_names_the_place_and_the_remedy() -> None:
    free = {"type": "object", "properties": {"of": {"type": "object", "additionalProperties": {"type": "integer"}}}}
    with SimulatedProvider(refusing(openai)) as provider:
        (failed,) = ask(Endpoint(provider.url, "m", "m"), schema=free)
    assert isinstance(failed, RequestFailed)
    assert "(at $.of " in failed.failure.message
    assert "rollouts.extra_body: {response_format: {type: text}}" in failed.failure.message


@pytest.mark.parametrize("role", [ModelRole.TEACHER, ModelRole.JUDGE])
def test_a_judge_is_asked_without_a_schema_where_none_is_taken_and_a_teacher_is_not(role: ModelRole) -> None:
    def unavailable(body: dict[str, Any]) -> str | None:
        return "This response_format type is unavailable now" if "response_format" in body else None

    with SimulatedProvider(refusing(unavailable)) as provider:
        (got,) = ask(Endpoint(provider.url, "m", "m", role=role))
        assert isinstance(got, RequestFailed) is (role is ModelRole.TEACHER)
        assert len(provider.requests) == (3 if role is ModelRole.JUDGE else 2)


@pytest.mark.parametrize("message", ["the temperature is too high", "Invalid value for messages[2].content"])
def test_a_refusal_about_something_else_is_not_answered_with_another_schema(message: str) -> None:
    with SimulatedProvider(lambda _: error(400, message)) as provider:
        (failed,) = ask(Endpoint(provider.url, "m", "m"), tools=[TOOL])
        assert isinstance(failed, RequestFailed)
        assert failed.failure.message == f"HTTP 400: {message}"
        assert len(provider.requests) == 1


def test_lines_of_a_batch_that_were_refused_go_into_a_second_batch(batch_server: Any, tmp_path: Path) -> None:
    def line(written: dict[str, Any]) -> dict[str, Any]:
        message = anthropic(written["body"])
        row = answered(written)
        if message is not None:
            row["response"] |= {"status_code": 400, "body": {"error": {"message": message}}}
        return row

    batch_server.line = line
    batch_server.finish.set()

    def batches(endpoint: Endpoint, **_: Any) -> BatchClient:
        return BatchClient(endpoint, tmp_path, pace=BatchPace(gather_s=0.05, poll_s=0.05))

    got = ask(Endpoint(batch_server.url, "m", "m", "key"), 3, client=batches)
    assert ["answer to ?" in answer.message["content"] for answer in got] == [True] * 3
    assert len(batch_server.batches) == 2
