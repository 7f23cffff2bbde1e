"""What is sent after a seller's refusal of a parameter, and what is never left out."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from stillhouse.config import ModelRole
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.negotiation.book import TERMS_FILE, TermsBook
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.transport import HttpAnswer, refusal
from stillhouse.types import JsonObject
from tests.provider import completion

Refuses = Callable[[JsonObject], tuple[int, Any] | None]
OPENAI = "https://api.openai.com/v1"
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
ANSWER = orjson.dumps(completion("ok"))


class Seller:
    """A transport that answers as a seller does, and keeps what it was sent."""

    def __init__(self, refuses: Refuses) -> None:
        self._refuses = refuses
        self.bodies: list[Any] = []

    async def post(self, path: str, body: Any) -> HttpAnswer:
        self.bodies.append(orjson.loads(orjson.dumps(body)))
        await asyncio.sleep(0)
        if (refused := self._refuses(body)) is not None:
            raise RequestFailed(refusal(refused[0], {}, orjson.dumps(refused[1])))
        return HttpAnswer(ANSWER, {}, 0.1)

    async def aclose(self) -> None:
        return


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    TermsBook._known.clear()
    yield
    TermsBook._known.clear()


def ask(
    seller: Seller, url: str = OPENAI, *, count: int = 1, messages: Any = MESSAGES, folder: Path | None = None,
    tools: Sequence[Any] = (), alone_s: float = 0.0, role: ModelRole = ModelRole.TEACHER, **sampling: Any,
) -> list[Any]:  # fmt: skip
    async def main() -> list[Any]:
        client = ModelClient(Endpoint(url, "m", "m", role=role, api="chat"), seller, folder=folder, alone_s=alone_s)
        wanted = Sampling(**{"temperature": 0.7, "top_p": None, "max_tokens": 64, "seed": 5, **sampling})
        asked = (client.complete(ChatRequest(messages, tools, wanted)) for _ in range(count))
        return [*await asyncio.gather(*asked, return_exceptions=True)]

    return asyncio.run(main())


def told(message: str, status: int = 400, **error: Any) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "invalid_request_error", **error}}


def strict(body: JsonObject) -> tuple[int, Any] | None:
    """Refuse as OpenAI's reasoning models do."""
    for name in ("temperature", "top_p"):
        if name in body:
            message = f"Unsupported value: '{name}' does not support {body[name]} with this model."
            return told(message, param=name, code="unsupported_value")
    if "max_tokens" in body:
        message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
        return told(message, param="max_tokens", code="unsupported_parameter")
    return None


def refuses(name: str, status: int, body: Any) -> Refuses:
    return lambda sent: (status, body) if name in sent else None


def extra_forbidden(name: str) -> Any:
    return [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 1}]


GEMINI = 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'
ROUTED = (
    'Error from provider(x,m: 400): {"error":{"message":"Unsupported value: \'temperature\' does not support 0.7"}}'
)


@pytest.mark.parametrize(
    ("refuse", "name", "sent"),
    [
        (strict, "temperature", {}),
        (refuses("temperature", *told("`temperature` is deprecated for this model.")), "temperature", {}),
        (refuses("temperature", *told("`temperature` may only be set to 1 when thinking is enabled or in adaptive "
                                      "mode. Please consult our documentation.")), "temperature", {}),
        (refuses("temperature", *told(ROUTED, code="provider_response_error")), "temperature", {}),
        (refuses("temperature", *told("Unsupported parameter: 'temperature' is not supported with this model.",
                                      param="temperature", code=None)), "temperature", {}),
        (refuses("seed", 400, [{"error": {"code": 400, "message": GEMINI, "status": "INVALID_ARGUMENT"}}]), "seed", {}),
        (refuses("seed", *told("property 'seed' is unsupported, did you mean 'stop'?")), "seed", {}),
        (refuses("seed", *told("Unrecognized request argument supplied: seed")), "seed", {}),
        (refuses("seed", *told("Unknown parameter: 'seed'.", param="seed", code="unknown_parameter")), "seed", {}),
        (refuses("seed", 422, {"detail": extra_forbidden("seed")}), "seed", {"random_seed": 5}),
        (refuses("seed", 422, {"object": "error", "message": {"detail": extra_forbidden("seed")}, "param": None}),
         "seed", {"random_seed": 5}),
        (refuses("max_completion_tokens", 422, {"detail": extra_forbidden("max_completion_tokens")}),
         "max_completion_tokens", {"max_tokens": 64}),
        (refuses("max_completion_tokens", *told("Unrecognized request argument supplied: max_completion_tokens")),
         "max_completion_tokens", {"max_tokens": 64}),
    ],
)  # fmt: skip
def test_a_refused_parameter_is_left_out_or_renamed_once_for_all(
    refuse: Refuses, name: str, sent: JsonObject, caplog: pytest.LogCaptureFixture
) -> None:
    seller = Seller(refuse)
    with caplog.at_level(logging.WARNING):
        (first,) = ask(seller)
        later = ask(seller, count=3)
    assert len(seller.bodies) == 2 + 3
    assert [type(one) for one in (first, *later)] == [Completion] * 4
    assert name not in seller.bodies[-1]
    assert sent.items() <= seller.bodies[-1].items()
    assert len(caplog.messages) == 1
    # Under another name it is what was asked for.
    assert first.turn.not_taken == later[0].turn.not_taken == (None if sent else {name: None})


def test_anthropic_takes_one_of_temperature_and_top_p() -> None:
    def refuse(body: JsonObject) -> tuple[int, Any] | None:
        both = "temperature and top_p cannot both be specified for this model. Please use only one."
        return told(both) if {"temperature", "top_p"} <= body.keys() else None

    seller = Seller(refuse)
    (got,) = ask(seller, top_p=0.9)
    assert (seller.bodies[-1]["temperature"], got.turn.not_taken) == (0.7, {"top_p": None})


@pytest.mark.parametrize(
    ("asked", "message", "param", "sent"),
    [
        ("minimal", "Unsupported value: 'minimal' is not supported with the 'gpt-5.1' model. Supported values are: "
         "'none', 'low', 'medium', and 'high'.", "reasoning_effort", "low"),
        ("minimal", "Unsupported value: 'minimal' is not supported with the 'gpt-5.1' model. Supported values are: "
         "'none', 'low', 'medium', and 'high'.", "***.effort", "low"),
        ("none", "`reasoning_effort` does not support `none`. Supported values are: low, medium, high, xhigh", None,
         "low"),
        ("xhigh", "Invalid reasoning_effort: xhigh. Valid values are: high, low, medium, none", None, "high"),
    ],
)  # fmt: skip
def test_a_refused_effort_becomes_the_nearest_of_those_listed(
    asked: str, message: str, param: str | None, sent: str
) -> None:
    seller = Seller(lambda body: told(message, param=param) if body["reasoning_effort"] == asked else None)
    (got,) = ask(seller, reasoning_effort=asked)
    assert seller.bodies[-1]["reasoning_effort"] == sent
    assert got.turn.not_taken == {"reasoning_effort": sent}


@pytest.mark.parametrize(
    ("message", "status", "sampling", "remedy"),
    [
        ("This model is only supported in v1/responses and not in v1/chat/completions.", 404, {},
         "Change teacher.api to responses"),
        ("Function tools with reasoning_effort are not supported for m in /v1/chat/completions. To use function tools, "
         "use /v1/responses or set reasoning_effort to 'none'.", 400, {"tools": True},
         "responses, or rollouts.reasoning_effort to none"),
        ("This is not a chat model and thus not supported in the v1/chat/completions endpoint. Did you mean to use "
         "v1/completions?", 404, {}, "Change teacher.api, or teacher.model"),
        ("Unsupported parameter: 'tools' is not supported with this model.", 400, {"tools": True}, "Change tools ("),
        ("Unsupported parameter: 'logprobs' is not supported with this model.", 400, {"record_tokens": True},
         "or rollouts.record_tokens"),
        ("max_tokens is too large: 8000. This model supports at most 4096 completion tokens, whereas you provided "
         "8000.", 400, {"max_tokens": 8000}, "Change rollouts.max_tokens"),
        ("max_tokens: 128001 > 64000, which is the maximum allowed number of output tokens for claude-opus-4-5", 400,
         {"max_tokens": 128_001}, "Change rollouts.max_tokens"),
        ("Invalid 'top_logprobs'", 400, {"record_top_k": 30}, "Change rollouts.record_top_k (OpenAI takes 20"),
        ("Unknown parameter: 'top_k'.", 400, {"extra_body": {"top_k": 5}}, "Change rollouts.extra_body.top_k"),
        ("Unsupported value: 'temperature' does not support 0.2 with this model.", 400,
         {"extra_body": {"temperature": 0.2}}, "Change rollouts.extra_body.temperature"),
        ("Unsupported parameter: 'reasoning_effort' is not supported with this model.", 400,
         {"reasoning_effort": "low"}, "Change rollouts.reasoning_effort"),
    ],
)  # fmt: skip
def test_what_changes_the_meaning_is_never_left_out_and_the_error_says_what_to_set(
    message: str, status: int, sampling: JsonObject, remedy: str
) -> None:
    schema = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    tools = [schema] if sampling.pop("tools", False) else []
    seller = Seller(lambda body: told(message, status))
    (failed,) = ask(seller, tools=tools, **sampling)
    assert isinstance(failed, RequestFailed)
    assert remedy in failed.failure.message
    assert failed.failure.is_of_settings
    assert len(seller.bodies) == 1


def system_refused(body: JsonObject) -> tuple[int, Any] | None:
    roles = [message["role"] for message in body["messages"]]
    if "system" in roles:
        message = "Unsupported value: 'messages[0].role' does not support 'system' with this model."
        return told(message, param="messages[0].role", code="unsupported_value")
    return None


def no_instructions(body: JsonObject) -> tuple[int, Any] | None:
    roles = [message["role"] for message in body["messages"]]
    refused = told("Developer instruction is not enabled for models/gemma-3-27b-it")
    return refused if {"system", "developer"} & {*roles} else None


@pytest.mark.parametrize(
    ("refuse", "sent"),
    [
        (system_refused, [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "?"}]),
        (no_instructions, [{"role": "user", "content": "Be brief.\n\n?"}]),
        (lambda body: None, MESSAGES),
    ],
)
def test_instructions_take_another_role_where_theirs_is_refused(refuse: Refuses, sent: Any) -> None:
    seller = Seller(refuse)
    (got,) = ask(seller)
    assert seller.bodies[-1]["messages"] == sent
    assert got.turn.not_taken == (None if sent is MESSAGES else {"system": "user" if len(sent) == 1 else "developer"})


def test_parts_of_content_stay_parts_under_another_role() -> None:
    seller = Seller(no_instructions)
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    ask(seller, messages=[MESSAGES[0], {"role": "user", "content": [picture]}])
    assert seller.bodies[-1]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Be brief."}, picture]}
    ]


def test_the_first_request_goes_alone_so_that_the_others_are_not_refused_as_well() -> None:
    seller = Seller(strict)
    got = ask(seller, count=64, alone_s=60.0, top_p=0.5)
    assert {type(one) for one in got} == {Completion}
    assert len(seller.bodies) == 64 + 2


def test_what_was_learnt_survives_the_process_for_a_month(tmp_path: Path) -> None:
    def num_sent() -> int:
        seller = Seller(strict)
        TermsBook._known.clear()
        ask(seller, folder=tmp_path)
        return len(seller.bodies)

    assert (num_sent(), num_sent()) == (2, 1)
    kept = orjson.loads((tmp_path / TERMS_FILE).read_bytes())
    for changed in ({"saved_at": 0.0}, {"learnt": {"of": "another version"}}):
        entries = {name: {**entry, **changed} for name, entry in kept.items()}
        (tmp_path / TERMS_FILE).write_bytes(orjson.dumps(entries))
        assert (num_sent(), num_sent()) == (2, 1)


def test_an_effort_that_is_refused_although_it_is_listed_is_not_sent_forever() -> None:
    message = "`reasoning_effort` does not support `low`. Supported values are: low"
    seller = Seller(lambda body: told(message))
    (failed,) = ask(seller, reasoning_effort="low")
    assert (type(failed), len(seller.bodies)) == (RequestFailed, 1)


def test_a_refusal_with_http_200_teaches_as_well() -> None:
    message = "Unsupported value: 'temperature' does not support 0.7 with this model."

    class Router(Seller):
        async def post(self, path: str, body: Any) -> HttpAnswer:
            await super().post(path, body)
            refused = orjson.dumps({"error": {"message": message, "code": 400}})
            return HttpAnswer(refused if "temperature" in body else ANSWER, {}, 0.1)

    (got,) = ask(Router(lambda body: None))
    assert got.turn.not_taken == {"temperature": None}


def test_a_failure_of_another_kind_teaches_nothing() -> None:
    for status, message in ((500, "temperature unsupported"), (429, "Unsupported value: 'temperature'"), (400, "no")):
        seller = Seller(refuses("model", *told(message, status)))
        (failed,) = ask(seller)
        assert isinstance(failed, RequestFailed)
        assert (len(seller.bodies), failed.failure.is_of_settings) == (1, False)
