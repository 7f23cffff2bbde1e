import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.inference.retry import Effects
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer

Answer = tuple[int, dict[str, str], Any]


class Scripted:
    """A server on loopback that gives its answers in turn, the last one for ever, and clients that do not sleep."""

    def __init__(self, stack: ExitStack) -> None:
        self.answers: list[Answer] = [(200, {}, {})]
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.waits: list[float] = []
        """How long the clients would have slept."""
        self._stack = stack
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                script.paths.append(self.path)
                script.keys.append(self.headers.get("authorization"))
                status, headers, body = script.answers[min(len(script.paths), len(script.answers)) - 1]
                content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, *arguments: object) -> None: ...

        server = stack.enter_context(HTTPServer(("127.0.0.1", 0), Handler))
        self.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        stack.callback(server.shutdown)

    def client(self, *answers: Answer) -> VllmServer:
        self.answers = list(answers)

        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        effects = Effects(lambda: sum(self.waits), sleep, random.Random(0))
        return self._stack.enter_context(closing(VllmServer(self.url, effects=effects)))


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with ExitStack() as stack:
        yield Scripted(stack)


def test_passing_faults_are_tried_again_after_what_the_server_asks(scripted: Scripted):
    faults = ((503, {"retry-after": "7"}, "busy"), (429, {"retry-after": "3"}, {}), (500, {}, {}))
    assert scripted.client(*faults, (200, {}, {"a": 1})).post("/v1/completions", {}) == {"a": 1}
    assert scripted.paths == ["/v1/completions"] * 4
    assert scripted.waits[0] >= 7
    assert scripted.waits[1] >= 3


def test_a_query_is_sent_as_one(scripted: Scripted):
    scripted.client((200, {}, {})).post("/sleep?level=1", None)
    assert scripted.paths == ["/sleep?level=1"]


def test_server_that_keeps_failing_is_given_up(scripted: Scripted):
    with pytest.raises(EndpointError, match="out of memory"):
        scripted.client((500, {}, {"error": {"message": "out of memory"}})).post("/v1/completions", {})
    assert (len(scripted.paths), len(scripted.waits)) == (8, 7)


def test_full_server_is_waited_for_longer_than_a_failing_one_and_not_for_ever(scripted: Scripted):
    with pytest.raises(EndpointError, match="HTTP 429"):
        scripted.client((429, {"retry-after": "60"}, {})).post("/v1/completions", {})
    assert 1800 <= sum(scripted.waits) <= 1920


@pytest.mark.parametrize(
    ("path", "status", "error", "remedy"),
    [
        ("/v1/load_lora_adapter", 404, EndpointError, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("/v1/load_lora_adapter", 400, EndpointError, "--max-lora-rank"),
        ("/collective_rpc", 404, EndpointError, "VLLM_SERVER_DEV_MODE=1"),
        ("/v1/completions", 400, EndpointError, "--max-model-len"),
        ("/v1/completions", 401, AuthenticationError, "engine_api_key_env"),
    ],
)
def test_refusal_is_final_and_names_the_remedy(
    scripted: Scripted, path: str, status: int, error: type[Exception], remedy: str
):
    with pytest.raises(error, match=remedy):
        scripted.client((status, {}, {"error": {"message": "no"}})).post(path, {})
    assert scripted.paths == [path]


def test_key_is_read_from_the_environment_and_sent(scripted: Scripted, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(AuthenticationError, match="SAMPLER_KEY"):
        VllmServer(scripted.url, "SAMPLER_KEY")
    monkeypatch.setenv("SAMPLER_KEY", "secret")
    with closing(VllmServer(scripted.url, "SAMPLER_KEY")) as sampler:
        sampler.post("/v1/completions", {})
    assert scripted.keys == ["Bearer secret"]


@pytest.mark.parametrize("page", ["<html>", None, [], {}, {"data": []}, {"data": [{}]}])
def test_answer_that_is_no_list_of_models_is_shown(scripted: Scripted, page: Any):
    with pytest.raises(EndpointError, match=r"/v1/models .*on_policy\.engine_url"):
        scripted.client((200, {}, page)).models()


def test_nothing_is_tried_again_once_it_is_stopped(scripted: Scripted):
    scripted.answers = [(503, {"retry-after": "600"}, {})]
    waiting = VllmServer(scripted.url)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(waiting.post, "/v1/completions", {})
        while not scripted.paths:
            time.sleep(0.001)
        waiting.stop()
        with pytest.raises(EndpointError, match="HTTP 503"):
            answer.result(120)
        waiting.close()
    assert len(scripted.paths) <= 2
