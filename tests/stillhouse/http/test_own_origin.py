import asyncio
import socket
from typing import Any

import pytest

from stillhouse.http.own_origin import OwnOriginOnly, names_of


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "reached"})


def _answer(middleware: OwnOriginOnly, kind: str = "http", **headers: str) -> dict[str, Any]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": f"{kind}.connect"}

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(middleware({"type": kind, "headers": raw}, receive, send))
    return sent[0]


def test_a_web_socket_of_another_page_is_closed_before_it_opens() -> None:
    middleware = OwnOriginOnly(_app)
    assert _answer(middleware, "websocket", host="evil.test")["type"] == "websocket.close"
    assert _answer(middleware, "websocket", host="localhost", origin="http://evil.test")["type"] == "websocket.close"
    assert _answer(middleware, "websocket", host="localhost", origin="http://localhost")["type"] == "reached"


@pytest.mark.parametrize("origins", [["https://team.example"], ["*"]])
def test_a_named_origin_may_call_and_a_named_host_is_known(origins: list[str]) -> None:
    middleware = OwnOriginOnly(_app, ["Prefect"], origins)
    assert _answer(middleware, host="prefect:4200", origin="https://team.example")["type"] == "reached"
    assert _answer(middleware, host="other:4200")["status"] == 403


@pytest.mark.parametrize("host", ["[", "evil.test:x", "127.0.0.1.evil.test", "localhost.evil.test", "@localhost.test"])
def test_a_host_that_only_looks_like_its_own_is_refused(host: str) -> None:
    assert _answer(OwnOriginOnly(_app), host=host)["status"] == 403
    # Nor is a page of another port its own.
    assert _answer(OwnOriginOnly(_app), host="localhost:4200", origin="http://localhost:3000")["status"] == 403


def test_a_server_beyond_loopback_is_also_called_by_the_name_of_its_machine() -> None:
    assert names_of("127.0.0.1", ["team"]) == {"team"}
    assert names_of("0.0.0.0") == {"0.0.0.0", socket.gethostname()}
