"""Batches of the Responses API and of Anthropic's Messages, as `test_client` has them of chat completions."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import FailureKind, RequestFailed
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from tests.batch_server import BatchServer, serve_batches
from tests.message_batch_server import MessageBatchServer

PACE = BatchPace(gather_s=0.05, poll_s=0.05)
AS_IT_IS: dict[str, Any] = {"temperature": None, "top_p": None, "max_tokens": 50, "seed": None}
CHILD = """
import asyncio, json, sys
from pathlib import Path
from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling

async def main(url, api, folder, *questions):
    endpoint = Endpoint(url, "m", "m", "key-of-some-length", api=api)
    client = ModelClient(endpoint, BatchClient(endpoint, Path(folder), pace=BatchPace(gather_s=0.1, poll_s=0.1)))
    sampling = Sampling(None, None, 50, None)
    asked = (client.complete(ChatRequest([{"role": "user", "content": text}], [], sampling)) for text in questions)
    answers = await asyncio.gather(*asked)
    await client.aclose()
    print(json.dumps([answer.message["content"] for answer in answers]))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["responses", "messages"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(api: str) -> Iterator[BatchServer]:
    with serve_batches(MessageBatchServer() if api == "messages" else BatchServer()) as server:
        yield server


async def ask_all(url: str, api: Any, folder: str, questions: Sequence[str]) -> list[Any]:
    endpoint = Endpoint(url, "m", "m", "key-of-some-length", api=api)
    client = ModelClient(endpoint, BatchClient(endpoint, Path(folder), pace=PACE))
    asked = [
        client.complete(ChatRequest([{"role": "user", "content": text}], [], Sampling(**AS_IT_IS)))
        for text in questions
    ]
    try:
        async with asyncio.timeout(60):
            return await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await client.aclose()


def texts(answers: list[Any]) -> list[str]:
    assert all(isinstance(answer, Completion) for answer in answers), answers
    return [answer.message["content"].removeprefix("answer to ").removesuffix("\u2028end") for answer in answers]


def notes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("*.json"))


def test_requests_sent_together_are_one_batch(server: BatchServer, api: str, tmp_path: Path) -> None:
    server.finish.set()
    answers = asyncio.run(ask_all(server.url, api, str(tmp_path), ["a", "b", "a"]))
    assert texts(answers) == ["a", "b", "a"]
    assert len(server.batches) == 1
    assert answers[0].turn.usage["completion_tokens"] in (20, 30)
    assert not list(tmp_path.glob("*.json"))
    if isinstance(server, MessageBatchServer):
        assert server.versions == {"2026-10-21"}


def test_a_batch_whose_creation_was_not_confirmed_is_not_created_twice(
    server: BatchServer, api: str, tmp_path: Path
) -> None:
    server.finish.set()
    server.lose_create_answer = True
    assert texts(asyncio.run(ask_all(server.url, api, str(tmp_path), ["a", "b"]))) == ["a", "b"]
    assert len(server.batches) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["created but not confirmed", "in progress"])
def test_a_killed_run_returns_to_its_batch_and_pays_once(
    server: BatchServer, api: str, tmp_path: Path, moment: str
) -> None:
    questions = ["a", "b", "c"]
    if moment == "created but not confirmed":
        # Of the same size, and somebody else's.
        server.finish.set()
        asyncio.run(ask_all(server.url, api, str(tmp_path / "others"), ["x", "y", "z"]))
        server.finish.clear()
        server.answer_create.clear()
    num_others = len(server.batches)
    command = [sys.executable, "-c", CHILD, server.url, api, str(tmp_path), *questions]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        deadline = time.monotonic() + 60
        own = f"batch-{num_others}".encode()
        while len(server.batches) == num_others or (moment == "in progress" and own not in notes(tmp_path)):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()
    assert (own in notes(tmp_path)) is (moment == "in progress")
    server.answer_create.set()
    server.finish.set()
    again = subprocess.run(command, stdout=subprocess.PIPE, timeout=240, check=True)
    assert json.loads(again.stdout) == [f"answer to {question}\u2028end" for question in questions]
    assert len(server.batches) == num_others + 1
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize("api", ["messages"])
@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ({"type": "canceled"}, FailureKind.PERMANENT),
        ({"type": "expired"}, FailureKind.TRANSIENT),
        ("overloaded_error", FailureKind.RATE),
        ("invalid_request_error", FailureKind.PERMANENT),
        ("api_error", FailureKind.TRANSIENT),
        ("billing_error", FailureKind.QUOTA),
    ],
)
def test_what_became_of_a_request_of_a_message_batch(
    server: MessageBatchServer, api: str, tmp_path: Path, result: Any, kind: FailureKind
) -> None:
    if isinstance(result, str):
        error = {"type": "error", "error": {"type": result, "message": "no"}, "request_id": None}
        result = {"type": "errored", "error": error}
    server.results["b"] = result
    server.finish.set()
    good, bad = asyncio.run(ask_all(server.url, api, str(tmp_path), ["a", "b"]))
    assert texts([good]) == ["a"]
    assert isinstance(bad, RequestFailed)
    assert bad.failure.kind is kind
