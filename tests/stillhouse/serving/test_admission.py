"""Who is let in before a request's body is read, over real sockets."""

import socket
from collections.abc import Iterable

import httpx
import pytest

from stillhouse.serving.admission import MAX_BODY_BYTES

BEARER = "authorization: Bearer secret\r\n"


def status(server: str, *headers: str, chunks: Iterable[bytes] = ()) -> int:
    """Return what the server answers to headers and chunks of a body that never ends."""
    url = httpx.URL(server)
    with socket.create_connection((url.host, url.port or 80), timeout=60) as opened:
        opened.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{''.join(headers)}\r\n".encode())
        for chunk in chunks:
            opened.sendall(chunk)
        return int(opened.recv(65536).split()[1])


def test_a_wrong_or_missing_key_is_a_401_everywhere_but_at_health(server: str) -> None:
    root = server.removesuffix("/v1")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
        answer = httpx.get(f"{server}/models", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    for path in ("/openapi.json", "/docs", "/redoc", "/v1/stats", "/nothing"):
        assert httpx.get(root + path).status_code == 401, path
    assert httpx.get(f"{server}/models", headers={"authorization": "Bearer secret"}).status_code == 200
    assert httpx.get(f"{root}/health").status_code == 200


@pytest.mark.parametrize(
    ("key", "num_bytes", "expected"), [("", 800 * 2**20, 401), (BEARER, MAX_BODY_BYTES + 1, 413)], ids=["key", "length"]
)
def test_the_key_and_the_length_are_checked_before_any_of_the_body_is_there(
    server: str, key: str, num_bytes: int, expected: int
) -> None:
    assert status(server, key, f"Content-Length: {num_bytes}\r\n") == expected


def test_a_body_in_chunks_is_a_413_as_soon_as_it_is_too_long(server: str) -> None:
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    chunks = [chunk] * (MAX_BODY_BYTES // 2**20 + 1)
    assert status(server, BEARER, "Transfer-Encoding: chunked\r\n", chunks=chunks) == 413


def test_a_long_body_that_is_allowed_is_answered(http: httpx.Client) -> None:
    body = {"model": "student", "prompt": [7], "max_tokens": 1, "user": "x" * (MAX_BODY_BYTES - 2**20)}
    assert http.post("/completions", json=body).status_code in {200, 400}


@pytest.mark.parametrize(
    "headers", [{"host": "evil.test"}, {"host": ""}, {"origin": "http://evil.test"}, {"origin": "null"}]
)
def test_pages_of_other_sites_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.get("/models", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8000"])
def test_its_own_names_are_accepted(http: httpx.Client, host: str) -> None:
    assert http.get("/models", headers={"host": host}).status_code == 200
    assert http.get("/models", headers={"host": host, "origin": f"http://{host}"}).status_code == 200
