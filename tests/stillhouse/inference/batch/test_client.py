import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.completion import Completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import FailureKind, RequestFailed
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.price import Price
from stillhouse.inference.sampling import ChatRequest, Sampling

AskAll = Callable[..., list[Any]]
PACE = BatchPace(gather_s=0.05, poll_s=0.05)

CHILD = """
import asyncio, json, sys
from pathlib import Path
from stillhouse.inference.batch import BatchClient, BatchPace
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.model_client import ModelClient

async def main(url, folder, questions, kind):
    endpoint = Endpoint(url, "m", "m", "key", client=kind)
    client = ModelClient(endpoint, BatchClient(endpoint, Path(folder), pace=BatchPace(gather_s=0.1, poll_s=0.1)))
    async def ask(index, question):
        answer = await client.complete(
            ChatRequest([{"role": "user", "content": question}], [], Sampling(1.0, 1.0, 50, index))
        )
        return answer.message["content"]
    answers = await asyncio.gather(*(ask(*pair) for pair in enumerate(questions)))
    await client.aclose()
    print(json.dumps(answers))

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]))
"""


@pytest.fixture
def ask_all(batch_server: Any, tmp_path: Path) -> AskAll:
    """Send questions together and return their answers or errors; the batch they make is done at once."""

    def ask(questions: Sequence[str], pace: BatchPace = PACE, price: Price | None = None, seed: int | None = 7) -> Any:
        async def main() -> list[Any]:
            endpoint = Endpoint(batch_server.url, "m", "m", "key", price)
            client = ModelClient(endpoint, BatchClient(endpoint, tmp_path, pace=pace))
            sampling = Sampling(1.0, 1.0, 50, seed)
            asked = [
                client.complete(ChatRequest([{"role": "user", "content": text}], [], sampling)) for text in questions
            ]
            try:
                async with asyncio.timeout(20):
                    return await asyncio.gather(*asked, return_exceptions=True)
            finally:
                await client.aclose()

        batch_server.finish.set()
        return asyncio.run(main())

    return ask


def failure_of(answer: Any) -> Any:
    assert isinstance(answer, RequestFailed)
    return answer.failure


def texts(answers: Sequence[Any]) -> list[str]:
    """Return contents without what the server writes around each question."""
    return [answer.message["content"].removeprefix("answer to ").removesuffix("\u2028end") for answer in answers]


def test_requests_sent_together_are_one_batch(batch_server: Any, ask_all: AskAll, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    assert texts(ask_all(["a", "b", "c"])) == ["a", "b", "c"]
    assert len(batch_server.batches) == 1
    assert [path.name for path in tmp_path.glob("*.json")] == ["broken.json"]


def test_an_answer_carries_its_usage_its_request_and_its_cost_at_batch_price(ask_all: AskAll) -> None:
    (answer,) = ask_all(["a"], price=Price(2.0, 8.0).half())
    assert isinstance(answer, Completion)
    assert answer.turn.usage == {"prompt_tokens": 10, "completion_tokens": 20}
    assert answer.turn.cost_usd == pytest.approx((10 * 1.0 + 20 * 4.0) / 1e6)
    assert answer.turn.request_id is not None
    assert answer.turn.request_id.startswith("req-")


@pytest.mark.parametrize("most", [{"max_requests": 2}, {"max_bytes": 2000}])
def test_a_batch_is_no_larger_than_it_may_be(batch_server: Any, ask_all: AskAll, most: dict[str, int]) -> None:
    questions = [letter * 500 for letter in "abcdef"]
    assert texts(ask_all(questions, pace=BatchPace(gather_s=0.05, poll_s=0.05, **most))) == questions
    files = [batch_server.files[batch["input_file_id"]] for batch in batch_server.batches]
    assert [len(file.splitlines()) for file in files] == [2, 2, 2]
    assert max(map(len, files)) <= 2000


def test_equal_requests_without_a_seed_are_each_answered(batch_server: Any, ask_all: AskAll) -> None:
    answers = ask_all(["a", "a"], seed=None)
    assert len(texts(answers)) == 2
    assert batch_server.asked == ["a", "a"]


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "bad", "type": "invalid_request_error"}, FailureKind.PERMANENT),
        (400, {"message": "flagged", "code": "content_filter"}, FailureKind.CONTENT),
        (400, {"message": "no call", "code": "tool_use_failed"}, FailureKind.MALFORMED),
        (429, {"message": "slow", "code": "rate_limit_exceeded"}, FailureKind.RATE),
        (429, {"message": "no money", "code": "insufficient_quota"}, FailureKind.QUOTA),
        (500, {"message": "oops"}, FailureKind.TRANSIENT),
    ],
)
def test_an_error_in_a_line_is_as_over_http(
    batch_server: Any, ask_all: AskAll, status: int, error: dict[str, Any], kind: FailureKind
) -> None:
    answer_well = batch_server.line

    def line(request: dict[str, Any]) -> dict[str, Any]:
        row = answer_well(request)
        if request["body"]["messages"][-1]["content"] == "b":
            row["response"] = {"status_code": status, "request_id": "r", "body": {"error": error}}
            row["error"] = {"code": "failed", "message": "see response"}
        return row

    batch_server.line = line
    good, bad = ask_all(["a", "b"])
    assert isinstance(good, Completion)
    assert failure_of(bad).kind is kind


def test_answers_of_an_expired_batch_are_kept(batch_server: Any, ask_all: AskAll, tmp_path: Path) -> None:
    answer_well = batch_server.line

    def line(request: dict[str, Any]) -> dict[str, Any] | None:
        question = request["body"]["messages"][-1]["content"]
        if question == "b":
            error = {"code": "batch_expired", "message": "This request could not be executed in time."}
            return {"id": "r", "custom_id": request["custom_id"], "response": None, "error": error}
        return None if question == "c" else answer_well(request)

    batch_server.line = line
    batch_server.ends_as = "expired"
    first, expired, missing = ask_all(["a", "b", "c"])
    assert isinstance(first, Completion)
    assert failure_of(expired).kind is FailureKind.TRANSIENT
    assert failure_of(missing).kind is FailureKind.TRANSIENT
    assert "expired" in failure_of(missing).message
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("ends_as", "errors", "kind"),
    [
        ("cancelled", [], FailureKind.PERMANENT),
        ("failed", [{"code": "token_limit_exceeded", "message": "too much enqueued"}], FailureKind.RATE),
        ("failed", [{"code": "model_not_found", "message": "no such model"}], FailureKind.PERMANENT),
        ("failed", [{"code": "billing_hard_limit_reached", "message": "no money"}], FailureKind.QUOTA),
    ],
)
def test_a_failed_batch_fails_each_request(
    batch_server: Any, ask_all: AskAll, ends_as: str, errors: list[dict[str, str]], kind: FailureKind
) -> None:
    batch_server.line = lambda request: None
    batch_server.ends_as, batch_server.errors = ends_as, errors
    for answer in ask_all(["a", "b"]):
        assert failure_of(answer).kind is kind


def test_a_refused_key_is_told_as_such_and_leaves_no_note(batch_server: Any, ask_all: AskAll, tmp_path: Path) -> None:
    batch_server.refuse_create = (401, {"error": {"message": "Incorrect API key"}})
    (answer,) = ask_all(["a"])
    assert failure_of(answer).kind is FailureKind.AUTH
    assert not list(tmp_path.glob("*.json"))


def test_a_batch_whose_creation_was_not_confirmed_is_not_created_twice(batch_server: Any, ask_all: AskAll) -> None:
    batch_server.lose_create_answer = True
    answers = ask_all(["a", "b"])
    assert len(texts(answers)) == 2
    assert len(batch_server.batches) == 1


def test_a_cancelled_request_leaves_its_answer_to_the_next_run(
    batch_server: Any, ask_all: AskAll, tmp_path: Path
) -> None:
    async def give_up() -> None:
        endpoint = Endpoint(batch_server.url, "m", "m", "key")
        client = ModelClient(endpoint, BatchClient(endpoint, tmp_path, pace=PACE))
        asking = asyncio.create_task(
            client.complete(ChatRequest([{"role": "user", "content": "a"}], [], Sampling(1.0, 1.0, 50, 7)))
        )
        while not batch_server.batches or b"batch-0" not in notes(tmp_path):
            await asyncio.sleep(0.01)
        asking.cancel()
        await client.aclose()

    asyncio.run(give_up())
    batch_server.finish.set()
    assert texts(ask_all(["a", "b"])) == ["a", "b"]
    assert batch_server.asked == ["a", "b"]


def test_a_failed_answer_of_an_open_batch_is_asked_again_not_read_again(batch_server: Any, tmp_path: Path) -> None:
    answer_well = batch_server.line
    batch_server.line = lambda request: None
    batch_server.finish.set()

    async def main() -> str:
        endpoint = Endpoint(batch_server.url, "m", "m", "key")
        client = ModelClient(endpoint, BatchClient(endpoint, tmp_path, pace=PACE))
        messages: list[Any] = [{"role": "user", "content": "a"}]
        with pytest.raises(RequestFailed):
            await client.complete(ChatRequest(messages, [], Sampling(1.0, 1.0, 50, 7)))
        batch_server.line = answer_well
        answer = await client.complete(ChatRequest(messages, [], Sampling(1.0, 1.0, 50, 7)))
        await client.aclose()
        return str(answer.message["content"])

    assert asyncio.run(main()) == "answer to a\u2028end"


@pytest.mark.parametrize("client", ["direct", "openai"])
@pytest.mark.parametrize("moment", ["created but not confirmed", "in progress"])
def test_a_killed_run_returns_to_its_batch_and_pays_once(
    batch_server: Any, tmp_path: Path, moment: str, client: str
) -> None:
    questions = ["a", "b", "c"]
    command = [sys.executable, "-c", CHILD, batch_server.url, str(tmp_path), json.dumps(questions), client]
    if moment == "created but not confirmed":
        batch_server.answer_create.clear()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        deadline = time.monotonic() + 60
        while not batch_server.batches or (moment == "in progress" and b"batch-0" not in notes(tmp_path)):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()
    assert (b"batch-0" in notes(tmp_path)) is (moment == "in progress")
    batch_server.answer_create.set()
    batch_server.finish.set()
    again = subprocess.run(command, stdout=subprocess.PIPE, timeout=240, check=True)
    assert json.loads(again.stdout) == [f"answer to {question}\u2028end" for question in questions]
    assert batch_server.asked == questions
    assert not list(tmp_path.glob("*.json"))


def notes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("*.json"))
