import asyncio

import httpx
import pytest

from stillhouse.tools.network.guard import Guard
from stillhouse.tools.network.proxy import REASON_HEADER, GuardedProxy


async def _ask(proxy: str, *lines: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(proxy).port)
    writer.write("\r\n".join([*lines, "", ""]).encode())
    answer = await reader.read()
    writer.close()
    return answer


def ask(guard: Guard, *lines: str) -> bytes:
    """Return what the proxy answers to a request head."""

    async def use() -> bytes:
        proxy = GuardedProxy(guard)
        url = await proxy.start()
        try:
            return await _ask(url, *lines)
        finally:
            await proxy.close()

    return asyncio.run(use())


def test_a_request_reaches_an_allowed_host_whose_name_is_resolved_once(site) -> None:
    site.html("/a", "hello")
    asked = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    url = f"http://pinned.example:{site.port}/a?b=1"
    answer = ask(Guard(["pinned.example"], resolve), f"GET {url} HTTP/1.1", "Proxy-Connection: x")
    assert answer.startswith(b"HTTP/1.0 200")
    assert b"hello" in answer
    assert site.seen == ["/a?b=1"]
    assert asked == ["pinned.example"]


def test_a_tunnel_reaches_an_allowed_host(site) -> None:
    site.html("/", "hello")

    async def use() -> str:
        proxy = GuardedProxy(Guard([site.host]))
        port = httpx.URL(await proxy.start()).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {site.host} HTTP/1.1\r\n\r\n".encode())
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await proxy.close()
        return answer.decode()

    assert "hello" in asyncio.run(use())


@pytest.mark.parametrize("method", ["GET http://{host}/", "CONNECT {host}"])
def test_a_private_host_is_refused_with_the_reason(site, method: str) -> None:
    answer = ask(Guard([]), f"{method.format(host=site.host)} HTTP/1.1")
    assert answer.startswith(b"HTTP/1.1 403 Forbidden")
    assert f"{REASON_HEADER}: 127.0.0.1 ".encode() in answer
    assert site.seen == []


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET http://nowhere.invalid/ HTTP/1.1", b"502"),
        ("GET http://127.0.0.1:1/ HTTP/1.1", b"502"),
        ("GET /no-proxy-request HTTP/1.1", b"403"),
        ("CONNECT [::1 HTTP/1.1", b"403"),
        ("rubbish", b"403"),
    ],
)
def test_a_request_that_leads_nowhere_is_answered(line: str, status: bytes) -> None:
    assert ask(Guard(["127.0.0.1"]), line).split()[1] == status
