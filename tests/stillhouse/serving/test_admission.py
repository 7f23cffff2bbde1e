"""Who is let in before a request's body is read, over real sockets."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from stillhouse.serving.admission import MAX_BODY_BYTES

BEARER = "authorization: Bearer secret\r\n"


@contextmanager
def connection(server: str) -> Iterator[socket.socket]:
    url = httpx.URL(server)
    with socket.create_connection((url.host, url.port or 80), timeout=60) as opened:
        yield opened


def post(path: str, *headers: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{''.join(headers)}\r\n".encode()


def status(opened: socket.socket) -> int:
    return int(opened.recv(65536).split()[1])


def test_a_wrong_or_missing_key_is_a_401_and_health_is_open(server: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
        answer = httpx.get(f"{server}/models", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{server}/models", headers={"authorization": "Bearer secret"}).status_code == 200
    assert httpx.get(server.removesuffix("/v1") + "/health").status_code == 200


def test_the_key_is_asked_for_before_any_of_the_body_is_there(server: str) -> None:
    with connection(server) as opened:
        opened.sendall(post("/v1/completions", f"Content-Length: {800 * 2**20}\r\n"))
        assert status(opened) == 401


def test_a_body_that_says_it_is_too_long_is_a_413_before_any_of_it_is_there(server: str) -> None:
    with connection(server) as opened:
        opened.sendall(post("/v1/completions", BEARER, f"Content-Length: {MAX_BODY_BYTES + 1}\r\n"))
        assert status(opened) == 413


def test_a_body_in_chunks_is_a_413_as_soon_as_it_is_too_long(server: str) -> None:
    with connection(server) as opened:
        opened.sendall(post("/v1/completions", BEARER, "Transfer-Encoding: chunked\r\n"))
        chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
        # The last chunk never comes: nobody waits for it.
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            opened.sendall(chunk)
        assert status(opened) == 413


def test_a_long_body_that_is_allowed_is_answered(http: httpx.Client) -> None:
    body = {"model": "student", "prompt": [7], "max_tokens": 1, "user": "x" * (MAX_BODY_BYTES - 2**20)}
    assert http.post("/completions", json=body).status_code in {200, 400}


def test_nothing_but_health_is_answered_without_the_key(server: str) -> None:
    root = server.removesuffix("/v1")
    for path in ("/openapi.json", "/docs", "/redoc", "/v1/stats", "/nothing"):
        assert httpx.get(root + path).status_code == 401, path
    assert httpx.get(f"{root}/health").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.test"},
        {"host": "evil.test:8000"},
        {"host": ""},
        {"origin": "http://evil.test"},
        {"origin": "null"},
    ],
)
def test_pages_of_other_sites_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.get("/models", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000"])
def test_its_own_names_are_accepted(http: httpx.Client, host: str) -> None:
    assert http.get("/models", headers={"host": host}).status_code == 200
    assert http.get("/models", headers={"host": host, "origin": f"http://{host}"}).status_code == 200
