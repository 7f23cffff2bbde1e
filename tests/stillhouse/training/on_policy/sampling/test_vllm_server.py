import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.inference.retry import Effects
from stillhouse.training.on_policy.sampling.vllm_server import VllmServer

Answer = tuple[int, dict[str, str], Any]
Client = Callable[[str, list[float]], VllmServer]


class Scripted:
    """A server on loopback that answers as it is told, the last answer for ever."""

    def __init__(self, answers: list[Answer]) -> None:
        self.asked: list[str] = []
        self.keys: list[str | None] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                script.asked.append(self.path)
                script.keys.append(self.headers.get("authorization"))
                status, headers, body = answers[min(len(script.asked), len(answers)) - 1]
                content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(*answers: Answer) -> Scripted:
        made.append(Scripted(list(answers)))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def client() -> Iterator[Client]:
    """Connects to a server, and notes in place of waiting how long it would."""
    with ExitStack() as stack:

        def connect(url: str, waits: list[float]) -> VllmServer:
            async def sleep(seconds: float) -> None:
                waits.append(seconds)

            effects = Effects(lambda: sum(waits), sleep, random.Random(0))
            return stack.enter_context(closing(VllmServer(url, effects=effects)))

        yield connect


def test_passing_faults_are_tried_again_after_what_the_server_asks(client: Client, scripted: Callable[..., Scripted]):
    server = scripted(
        (503, {"retry-after": "7"}, "busy"), (429, {"retry-after": "3"}, {}), (500, {}, {}), (200, {}, {"a": 1})
    )
    waits: list[float] = []
    assert client(server.url, waits).post("/v1/completions", {}) == {"a": 1}
    assert server.asked == ["/v1/completions"] * 4
    assert waits[0] >= 7
    assert waits[1] >= 3


def test_server_that_keeps_failing_is_given_up(client: Client, scripted: Callable[..., Scripted]):
    server = scripted((500, {}, {"error": {"message": "out of memory"}}))
    waits: list[float] = []
    with pytest.raises(EndpointError, match="out of memory"):
        client(server.url, waits).post("/v1/completions", {})
    assert len(server.asked) == 8
    assert len(waits) == 7


def test_full_server_is_waited_for_longer_than_a_failing_one_and_not_for_ever(
    client: Client, scripted: Callable[..., Scripted]
):
    server = scripted((429, {"retry-after": "60"}, {}))
    waits: list[float] = []
    with pytest.raises(EndpointError, match="HTTP 429"):
        client(server.url, waits).post("/v1/completions", {})
    assert 1800 <= sum(waits) <= 1920


@pytest.mark.parametrize(
    ("path", "status", "remedy"),
    [
        ("/v1/load_lora_adapter", 404, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("/v1/load_lora_adapter", 400, "--max-lora-rank"),
        ("/collective_rpc", 404, "VLLM_SERVER_DEV_MODE=1"),
        ("/v1/completions", 400, "--max-model-len"),
    ],
)
def test_refusal_is_final_and_names_the_remedy(
    client: Client, scripted: Callable[..., Scripted], path: str, status: int, remedy: str
):
    server = scripted((status, {}, {"error": {"message": "no"}}))
    with pytest.raises(EndpointError, match=remedy):
        client(server.url, []).post(path, {})
    assert len(server.asked) == 1


def test_key_is_read_from_the_environment_and_sent(scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch):
    server = scripted((200, {}, {}))
    with pytest.raises(AuthenticationError, match="the environment variable SAMPLER_KEY is not set"):
        VllmServer(server.url, "SAMPLER_KEY")
    monkeypatch.setenv("SAMPLER_KEY", "secret")
    with closing(VllmServer(server.url, "SAMPLER_KEY")) as sampler:
        sampler.post("/v1/completions", {})
    assert server.keys == ["Bearer secret"]


def test_refused_key_is_said(client: Client, scripted: Callable[..., Scripted]):
    server = scripted((401, {}, {"error": {"message": "no key"}}))
    with pytest.raises(AuthenticationError, match="engine_api_key_env"):
        client(server.url, []).post("/v1/completions", {})


@pytest.mark.parametrize("page", ["<html>", None, [], {}, {"data": []}, {"data": [{}]}])
def test_what_is_no_list_of_models_is_shown(client: Client, scripted: Callable[..., Scripted], page: Any):
    server = scripted((200, {}, page))
    with pytest.raises(EndpointError, match=r"/v1/models does .*: no list of models: .* Check on_policy.engine_url"):
        client(server.url, []).models()


def test_nothing_is_tried_again_once_it_is_stopped(scripted: Callable[..., Scripted]):
    server = scripted((503, {"retry-after": "600"}, {}))
    waiting = VllmServer(server.url)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(waiting.post, "/v1/completions", {})
        while not server.asked:
            time.sleep(0.001)
        waiting.stop()
        with pytest.raises(EndpointError, match="HTTP 503"):
            answer.result(10)
        waiting.close()
    assert len(server.asked) <= 2
